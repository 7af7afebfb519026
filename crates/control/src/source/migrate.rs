//! Migration of the stored state of sources at the start of a term: from an earlier version, and of sources that are
//! gone.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{Setup, SourceName};
use crate::{
    Handle,
    handle::Error,
    store::{Entry, Op, Txn, layout},
};

/// The slot that took the place of `/sources/git`.
const CHECKPOINT: &str = "checkpoint";

/// The slot that took the place of `/sources/git-told`.
const NOTIFIED: &str = "notified";

/// Moves what a version with one Git source stored to the source that it belongs to.
pub(super) async fn migrate(handle: &Handle, setup: &Setup) -> Result<(), Error> {
    let (old, told) = (handle.store.get(layout::OLD_GIT_SOURCE).await?, handle.store.get(layout::OLD_GIT_TOLD).await?);
    if old.is_none() && told.is_none() {
        return Ok(());
    }
    let name = heir(old.as_ref(), setup);
    handle.adopt_worker_settings(&name).await?;
    let moves = [(old, CHECKPOINT), (told, NOTIFIED)];
    let ops = moves.into_iter().filter_map(|(entry, slot)| Some((entry?, slot))).flat_map(|(entry, slot)| {
        let put = Op::Put { key: layout::source_key(&name, slot), value: entry.value };
        [put, Op::Delete { key: entry.key }]
    });
    handle.store.commit(Txn { compare: Vec::new(), ops: ops.collect() }).await?;
    tracing::info!(event = "source_migrated", source = %name, "its checkpoint is in the layout of this version now");
    Ok(())
}

/// The source that followed the same place; else the one called `git`, else the only Git source.
fn heir(old: Option<&Entry>, setup: &Setup) -> SourceName {
    #[derive(Deserialize)]
    struct Old {
        origin: String,
    }
    let place = old.and_then(|entry| serde_json::from_slice::<Old>(&entry.value).ok()).map(|old| old.origin);
    let git: Vec<_> = setup.iter().filter(|(_, source)| source.kind() == "git").collect();
    let same = git.iter().find(|(_, source)| Some(source.origin().id()) == place.as_deref());
    let usual = git.iter().find(|(name, _)| name.as_str() == "git");
    let only = git.first().filter(|_| git.len() == 1);
    match same.or(usual).or(only) {
        Some((name, _)) => name.clone(),
        None => SourceName::derived("git", "git"),
    }
}

/// Takes back the settings of workers, and removes the checkpoints, of sources that are not configured any more. What they
/// declared stays.
pub(super) async fn forget(handle: &Handle, setup: &Setup) -> Result<(), Error> {
    let configured: BTreeSet<&SourceName> = setup.iter().map(|(name, _)| name).collect();
    let entries = handle.entries(layout::SOURCES).await?;
    let stored: BTreeSet<SourceName> = entries.iter().filter_map(|entry| layout::source_in(&entry.key)).collect();
    for gone in stored.iter().filter(|name| !configured.contains(name)) {
        handle.clear_worker_settings(gone).await?;
        let keys = entries.iter().filter(|entry| layout::source_in(&entry.key).as_ref() == Some(gone));
        let ops = keys.map(|entry| Op::Delete { key: entry.key.clone() }).collect();
        handle.store.commit(Txn { compare: Vec::new(), ops }).await?;
        tracing::info!(event = "source_forgotten", source = %gone, "no longer configured; its deployments stay");
    }
    Ok(())
}
