//! Tells of the replicas of this node before the controller does: the requests that wait here, and the other nodes.

use std::sync::{Arc, Weak};

use berth_peer::{Hint, Members};

use crate::{
    local::{ReplicaChange, ReplicaListener},
    routes::Routes,
};

/// A listener that wakes what waits in this gateway for a replica to come or to go, and announces every change of the replicas
/// here to the other nodes, if there are any.
pub(crate) fn announcer(routes: Weak<Routes>, members: Option<Members>) -> ReplicaListener {
    Arc::new(move |revision, change| {
        if let Some(routes) = routes.upgrade() {
            routes.wake(revision.deployment());
        }
        if let Some(members) = &members {
            members.say(Hint {
                worker: members.me().clone(),
                revision: revision.clone(),
                ready: change == ReplicaChange::Ready,
            });
        }
    })
}
