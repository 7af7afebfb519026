//! Inputs and outputs of a [`Candidate`](super::Candidate).

use std::time::Duration;

use berth_spec::{Epoch, Time, WorkerId};

use super::LeaderRecord;
use crate::store::{
    Rev,
    etcd::{Lease, LeaseId},
};

/// Input of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The leader's key was read, or a watch told of it.
    Seen {
        /// As of this rev.
        at: Rev,
        /// Current leader.
        leader: Option<LeaderRecord>,
    },
    /// A lease was granted.
    Granted {
        /// Time of the request.
        sent: Time,
        /// Granted lease.
        lease: Lease,
    },
    /// A lease was not granted.
    NotGranted,
    /// The key is ours.
    Won {
        /// Lease of the claim.
        lease: LeaseId,
        /// Term that began.
        epoch: Epoch,
    },
    /// The claim failed or its result is unknown. The key shows who has it.
    NotWon {
        /// Lease of the claim.
        lease: LeaseId,
    },
    /// A lease was renewed, or not.
    RenewalResult(RenewalResult),
    /// A lease was given back, or that failed.
    Released {
        /// Lease that ended.
        lease: LeaseId,
    },
    /// Stand for election no more.
    Resign,
    /// [`Candidate::wake_at`](super::Candidate::wake_at) has come.
    Tick,
}

/// Result of renewing a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenewalResult {
    /// Renewed lease.
    pub lease: LeaseId,
    /// Time of the request.
    pub sent: Time,
    /// Duration from that time; `Some(ZERO)` if the lease is over, `None` without an answer.
    pub ttl: Option<Duration>,
}

/// Action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read the leader's key.
    Look,
    /// Ask for a lease.
    Grant,
    /// Create the key with this lease, if it does not exist.
    Claim(LeaseId),
    /// Renews the lease.
    Keep(LeaseId),
    /// Give the lease back: the key goes with it.
    Release(LeaseId),
    /// Say where we sit now.
    Stand(CandidateRole),
    /// The term surely lasts until then.
    Extend(Time),
}

/// Role of the candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CandidateRole {
    /// Follows another leader, or none.
    Following(Option<(WorkerId, Epoch)>),
    /// Leads.
    Leading {
        /// Term of the leader.
        epoch: Epoch,
        /// Time until which the term is certain.
        until: Time,
    },
}
