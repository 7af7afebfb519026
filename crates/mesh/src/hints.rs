//! Tells the other nodes of the replicas of this one, before the controller does.

use std::sync::Arc;

use berth_peer::{Hint, Members};

use crate::local::{ReplicaChange, ReplicaListener};

/// A listener that announces every change of the replicas here.
pub(crate) fn announcer(members: Members) -> ReplicaListener {
    Arc::new(move |revision, change| {
        members.say(Hint {
            worker: members.me().clone(),
            revision: revision.clone(),
            ready: change == ReplicaChange::Ready,
        });
    })
}
