//! Leadership: at most one controller decides at a time, and a standby takes over within seconds.
//!
//! ```text
//! Candidate (brain) ◀──Event── Election (driver) ◀── the leader's key: watch, and a look now and then
//!        └──Effect──▶ grant, claim, keep, release ──▶ etcd
//!               Leadership ──▶ whoever runs the controller: Following | Leading { epoch, fence }
//! ```
//! Who creates the key `/leader` under a lease leads; the revision that created it is the term's [`Epoch`]. The leader
//! keeps the lease; when it dies the key goes, and the others, who watch it, claim it. A leader counts its lease from
//! before it asked for it and gives up after two thirds of it, so it stops long before etcd lets anybody else in. Since
//! a process can be paused between looking at the clock and writing, every write also carries a [`Fence`]:
//! [`crate::store::fenced`].

mod candidate;
mod election;
mod exchange;
mod fence;
mod leader_loop;
mod record;
mod view;

use std::time::Duration;

use berth_spec::{Epoch, WorkerId};

pub use candidate::Candidate;
pub use election::Election;
pub use exchange::{CandidateRole, Effect, Event, RenewalResult};
pub use fence::Fence;
pub use leader_loop::LeaderLoop;
pub use record::LeaderRecord;
pub use view::LeadershipView;
pub(crate) use view::changed;

/// Identity of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CandidateInfo {
    /// Name of the node, which is unique in the cluster.
    pub name: WorkerId,
    /// Address for other nodes, `HOST:PORT`, for those that do not know it yet.
    pub peer: String,
    /// Settings that all candidates must share, as comparable text.
    pub rules: String,
}

/// The timings of an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Duration of the lease without renewal. A standby leads about one second after it. etcd requires at least twice
    /// its election timeout.
    pub ttl: Duration,
    /// Longest random pause before a free key is claimed, so that standbys do not all claim at once.
    pub hesitation: Duration,
    /// Pause after a failed request. Leaves a leader several attempts before it must step down.
    pub retry: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(3), hesitation: Duration::from_millis(100), retry: Duration::from_millis(100) }
    }
}

/// Role of this node.
#[derive(Debug, Clone)]
pub enum Leadership {
    /// Another controller leads, or there is no leader.
    Following {
        /// Name and term of the leader; `None` if there is none, or it is not known yet.
        leader: Option<(WorkerId, Epoch)>,
    },
    /// The leader is this node, until [`Fence::holds`] is false.
    Leading {
        /// Term of this node: greater than that of every earlier leader.
        epoch: Epoch,
        /// Condition on every write of the term.
        fence: Fence,
    },
}
