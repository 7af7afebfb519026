//! Leadership: at most one controller decides at a time, and a standby takes over within seconds.
//!
//! ```text
//! Candidate (brain) ◀──Event── Election (driver) ◀── the leader's key: watch, and a look now and then
//!        └──Effect──▶ grant, claim, keep, release ──▶ etcd
//!                     Seat ──▶ whoever runs the controller: Following | Leading { epoch, fence }
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
pub use record::Leader;
pub use view::LeadershipView;
pub(crate) use view::changed;

/// Who stands for election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CandidateInfo {
    /// The node.
    pub name: WorkerId,
    /// Where other nodes reach it, `HOST:PORT`, for those who do not know it yet.
    pub peer: String,
    /// What all who stand must be told alike, as text that can be compared.
    pub rules: String,
}

/// The timings of an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long a term lasts without its leader. etcd notices the end within half a second, so a standby leads about a
    /// second after it. Halved, etcd refuses (it has a least of about twice its election timeout) or a leader loses its
    /// term whenever etcd elects its own; doubled, nobody leads for twice as long after a crash.
    pub ttl: Duration,
    /// The longest pause before a free key is claimed, so that standbys do not all come at once. Halved, more of them
    /// claim in vain; doubled, a crash takes that much longer to get over.
    pub hesitation: Duration,
    /// How long after a failed request the next is made. Halved, an etcd in trouble is asked more; doubled, a leader has
    /// fewer attempts before it must step down.
    pub retry: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(3), hesitation: Duration::from_millis(100), retry: Duration::from_millis(100) }
    }
}

/// Where this node sits.
#[derive(Debug, Clone)]
pub enum Leadership {
    /// Another leads, or nobody does.
    Following {
        /// Who, as far as is known.
        leader: Option<(WorkerId, Epoch)>,
    },
    /// This node leads.
    Leading {
        /// The term.
        epoch: Epoch,
        /// What its writes have to carry.
        fence: Fence,
    },
}
