//! The way of tokens from the store to this node.
//!
//! ```text
//! this node leads:  store ──list, watch──▶ Access           a revocation takes effect at once
//! another leads:    GET /own/tokens there, every second ──▶ Access
//! nobody leads:     what was learned last goes on
//! ```

use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path, sync::Arc, time::Duration};

use berth_peer::Peers;
use berth_spec::Epoch;
use berth_wire::access::{Access, Action, Grant, Resource, Role, Secret, Snapshot, TokenRecord};
use futures::StreamExt as _;
use tokio::{sync::watch, time::sleep};

use super::peer_queries;
use crate::{Handle, handle::Error, leadership::LeadershipView};

/// Interval at which a node asks the leader: a revocation takes effect within it and the time of one answer.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Longest that a watch is trusted without looking anew: a watch that has silently ended would keep revoked tokens alive.
const MAX_WATCH_AGE: Duration = Duration::from_secs(30);

/// Follows the tokens of whoever leads, for as long as it is polled.
pub(super) async fn follow(
    access: Arc<Access>,
    mut leadership: watch::Receiver<LeadershipView>,
    peers: Option<Peers>,
    leader: impl Fn() -> Option<berth_spec::WorkerId>,
    first: Option<&Path>,
) {
    if !access.is_required() {
        return;
    }
    let mut last: Option<Epoch> = None;
    loop {
        let leading = match &*leadership.borrow_and_update() {
            LeadershipView::Leading { handle, epoch } => Some((handle.clone(), *epoch)),
            LeadershipView::Following { .. } => None,
        };
        match leading {
            Some((handle, epoch)) => {
                if last.replace(epoch) != Some(epoch) {
                    access.forget_revision();
                }
                tokio::select! {
                    () = of_store(&access, &handle, first) => sleep(POLL_INTERVAL).await,
                    // Nobody tells a process that is alone: it leads for good.
                    Ok(()) = leadership.changed() => {}
                }
            }
            None => {
                if let (Some(peers), Some(leader)) = (&peers, leader()) {
                    match peer_queries::tokens(peers, &leader).await {
                        Ok(snapshot) => access.learn(&snapshot),
                        Err(why) => tracing::debug!(event = "tokens_unread", %leader, why),
                    }
                }
                sleep(POLL_INTERVAL).await;
            }
        }
    }
}

/// Learns what the store says until the watch on it ends.
async fn of_store(access: &Access, handle: &Handle, first: Option<&Path>) {
    if let Err(error) = learn_and_watch(access, handle, first).await {
        tracing::warn!(event = "tokens_unread", %error, "the tokens cannot be read: those that are known go on");
    }
}

async fn learn_and_watch(access: &Access, handle: &Handle, first: Option<&Path>) -> Result<(), Error> {
    let mut snapshot = handle.tokens().await?;
    if let Some(path) = first.filter(|_| !has_admin(&snapshot)) {
        make_first(handle, path).await?;
        snapshot = handle.tokens().await?;
    }
    access.learn(&snapshot);
    let mut changes = handle.watch_tokens(snapshot.revision).await?;
    while let Ok(Some(commit)) = tokio::time::timeout(MAX_WATCH_AGE, changes.next()).await {
        if !commit?.changes.is_empty() {
            access.learn(&handle.tokens().await?);
        }
    }
    Ok(())
}

fn has_admin(snapshot: &Snapshot) -> bool {
    let now = now();
    let mut valid = snapshot.tokens.iter().filter(|record| record.is_valid(now));
    valid.any(|record| record.principal().may(Action::ManageTokens, Resource::Server).is_ok())
}

/// Makes the first admin's token: its file first, so that no token is in the store that nobody holds.
async fn make_first(handle: &Handle, path: &Path) -> Result<(), Error> {
    let secret = Secret::generate();
    if let Err(error) = write(path, secret.reveal()) {
        let path = path.display();
        tracing::error!(event = "admin_token_unwritten", %path, %error, "the admin's token cannot be written: nobody can make others");
        return Ok(());
    }
    handle
        .add_token(TokenRecord {
            id: secret.id().to_owned(),
            hash: secret.hash(),
            grant: Grant::everywhere(Role::Admin),
            description: "made at the first start".to_owned(),
            created_by: "server".to_owned(),
            created: now(),
            expires: None,
            limits: None,
        })
        .await?;
    let path = path.display();
    tracing::info!(event = "admin_token_made", %path, "the token of an admin is in {path}");
    Ok(())
}

/// Writes a file that its owner alone can read, whole or not at all.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let new = path.with_extension("new");
    match fs_err::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs_err::rename(&new, path)
}

/// Seconds since the Unix epoch.
pub(super) fn now() -> u64 {
    peer_queries::now().0 / 1_000_000_000
}
