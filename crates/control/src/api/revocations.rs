//! The way of revocations from the store to this node, whose connections then refuse and cut.
//!
//! ```text
//! this node leads:  store ──list, watch──▶ Identity       at once
//! another leads:    GET /own/revocations there, every two seconds ──▶ Identity
//! nobody leads:     what was learned last goes on
//! ```

use std::time::Duration;

use berth_peer::{Identity, Peers};
use berth_spec::WorkerId;
use futures::StreamExt as _;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{peer_queries, tokens::now};
use crate::{Handle, handle::Error, leadership::LeadershipView};

/// Interval at which a node asks the leader. A revocation takes effect within it and the time of one answer.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Longest that a watch is trusted without looking anew: one that has silently ended would keep revoked nodes in.
const MAX_WATCH_AGE: Duration = Duration::from_secs(30);

/// Follows the revocations of whoever leads, for as long as it is polled.
pub(super) async fn follow(
    peers: &Peers,
    mut leadership: watch::Receiver<LeadershipView>,
    leader: impl Fn() -> Option<WorkerId>,
) {
    let identity = peers.identity();
    loop {
        let leading = match &*leadership.borrow_and_update() {
            LeadershipView::Leading { handle, .. } => Some(handle.clone()),
            LeadershipView::Following { .. } => None,
        };
        match leading {
            Some(handle) => tokio::select! {
                ended = of_store(identity, &handle) => {
                    if let Err(error) = ended {
                        tracing::warn!(event = "revocations_unread", %error, "the revocations cannot be read: those that are known go on");
                    }
                    sleep(POLL_INTERVAL).await;
                }
                Ok(()) = leadership.changed() => {}
            },
            None => {
                if let Some(leader) = leader() {
                    match peer_queries::revocations(peers, &leader).await {
                        Ok(revocations) => identity.learn_revocations(revocations),
                        Err(why) => tracing::debug!(event = "revocations_unread", %leader, why),
                    }
                }
                sleep(POLL_INTERVAL).await;
            }
        }
    }
}

/// Learns what the store says until the watch on it ends.
async fn of_store(identity: &Identity, handle: &Handle) -> Result<(), Error> {
    let mut revocations = handle.revocations().await?;
    let (now, at) = (now(), revocations.revision);
    let ended = revocations.items.extract_if(.., |revocation| revocation.until <= now).collect::<Vec<_>>();
    identity.learn_revocations(revocations);
    handle.remove_revocations(ended.iter().map(|revocation| revocation.id.as_str())).await?;
    let mut changes = handle.watch_revocations(at).await?;
    while let Ok(Some(commit)) = timeout(MAX_WATCH_AGE, changes.next()).await {
        if !commit?.changes.is_empty() {
            identity.learn_revocations(handle.revocations().await?);
        }
    }
    Ok(())
}
