//! What the store remembers of the source for the next leader: the last good commit, and what a newer one disables.

use std::collections::BTreeMap;

use berth_git::Oid;
use berth_spec::{Origin, Time, UnknownWorkers};

use super::{super::halt::Halt, Driver};
use crate::{
    Handle,
    handle::Error,
    store::{Compare, Op, Outcome, Txn, layout, source::StoredSource},
};

/// Takes back what a source that is not configured any more said of workers. What it declared stays.
///
/// # Errors
/// As of the store; say it again.
pub async fn forget(handle: &Handle) -> Result<(), Error> {
    if handle.store.get(layout::GIT_SOURCE).await?.is_none() {
        return Ok(());
    }
    handle.set_worker_terms(BTreeMap::new(), UnknownWorkers::Allow).await?;
    let ops = vec![Op::Delete { key: layout::GIT_SOURCE.to_owned() }];
    handle.store.commit(Txn { compare: Vec::new(), ops }).await?;
    tracing::info!(event = "source_forgotten", "there is no registry any more: workers are as they say of themselves");
    Ok(())
}

impl Driver {
    /// What the store remembers; of another registry only whose deployments to take over.
    pub(super) async fn remembered(&mut self) -> Result<Option<StoredSource>, Error> {
        let Some(entry) = self.handle.store.get(layout::GIT_SOURCE).await? else { return Ok(None) };
        let stored = match StoredSource::read(&entry) {
            Ok(stored) => stored,
            // The next good commit takes its place.
            Err(error) => {
                tracing::error!(event = "stored_value_skipped", %error, "what was in force before is not known");
                return Ok(None);
            }
        };
        if stored.origin == self.config.place() {
            self.halt = stored.halted.as_ref().and_then(Halt::restored);
            return Ok(Some(stored));
        }
        self.formerly = Some(Origin::Git(stored.origin));
        Ok(None)
    }

    /// Remembers the last good commit, and what a newer one disables.
    pub(super) async fn remember(&self, commit: &Oid, now: Time) -> Result<(), Error> {
        let before = self.handle.store.get(layout::GIT_SOURCE).await?;
        let place = self.config.place();
        let known = before.as_ref().and_then(|entry| StoredSource::read(entry).ok());
        let since = known.as_ref().filter(|known| known.applied == commit.as_str() && known.origin == place);
        let at = since.map_or(now, |known| Time(known.at));
        let halted = self.halt.as_ref().filter(|halt| halt.commit != *commit).map(Halt::stored);
        let stored = StoredSource::new(place, commit.to_string(), at).with_halted(halted);
        if known.as_ref() == Some(&stored) {
            return Ok(());
        }
        let key = layout::GIT_SOURCE.to_owned();
        let compare =
            vec![Compare::Modified { key: key.clone(), rev: before.map(|entry| entry.modified).unwrap_or_default() }];
        let txn = Txn { compare, ops: vec![Op::Put { key, value: stored.bytes() }] };
        match self.handle.store.commit(txn).await? {
            Outcome::Committed(_) => Ok(()),
            // Nobody else writes it in this term: it is read again with the rest.
            Outcome::Conflict => Err(Error::Stopped),
        }
    }
}
