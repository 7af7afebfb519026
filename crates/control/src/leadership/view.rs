//! View of the leadership for the rest of the node: this node leads, or another does.
//!
//! ```text
//! leadership::Leadership ─▶ LeaderLoop ─▶ LeadershipView::Leading { handle, epoch } ─▶ api, fleet: answered here
//! (the election)             │ └────────▶ LeadershipView::Following { leader }    ─▶ api: relayed, fleet: sent there
//!                            └ one controller per term, with a fenced store
//! ```
//! A process that is alone always leads: [`LeadershipView::alone`]. A node without the controller role always
//! follows: [`LeadershipView::never`].

use std::fmt;

use berth_spec::{Epoch, WorkerId};
use tokio::sync::watch;

use crate::Handle;

/// Current leader, from the point of view of this node.
#[derive(Clone)]
pub enum LeadershipView {
    /// The leader is this node: requests are answered here.
    Leading {
        /// Access to the controller of this term; it ends with the term.
        handle: Handle,
        /// Term of this node; 0 if it is alone.
        epoch: Epoch,
    },
    /// Another node leads, or none.
    Following {
        /// Leader and its term, as far as they are known.
        leader: Option<(WorkerId, Epoch)>,
    },
}

impl LeadershipView {
    /// For a process that is alone: it decides as long as it lives. The term is 0: there is no other.
    #[must_use]
    pub fn alone(handle: Handle) -> watch::Receiver<Self> {
        watch::channel(Self::Leading { handle, epoch: Epoch(0) }).1
    }

    /// For a node that never decides, and is not told who does: it asks the controllers.
    #[must_use]
    pub fn never() -> watch::Receiver<Self> {
        watch::channel(Self::Following { leader: None }).1
    }

    /// Current leader, as far as it is known. `me` is this node.
    #[must_use]
    pub fn leader(&self, me: &WorkerId) -> Option<(WorkerId, Epoch)> {
        match self {
            Self::Leading { epoch, .. } => Some((me.clone(), *epoch)),
            Self::Following { leader } => leader.clone(),
        }
    }

    /// The term in which this node decides.
    #[must_use]
    pub fn leads(&self) -> Option<Epoch> {
        match self {
            Self::Leading { epoch, .. } => Some(*epoch),
            Self::Following { .. } => None,
        }
    }
}

impl fmt::Debug for LeadershipView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leading { epoch, .. } => write!(f, "Leading({epoch})"),
            Self::Following { leader: Some((name, epoch)) } => write!(f, "Following({name}, {epoch})"),
            Self::Following { leader: None } => f.write_str("Following(nobody)"),
        }
    }
}

/// Waits until `leadership` changes. Never returns once nothing can change it.
pub(crate) async fn changed(leadership: &mut watch::Receiver<LeadershipView>) {
    if leadership.changed().await.is_err() {
        std::future::pending().await
    }
}
