//! What goes in and out of a [`Candidate`](super::Candidate).

use std::time::Duration;

use berth_spec::{Epoch, Time, WorkerId};

use super::Leader;
use crate::store::{
    Rev,
    etcd::{Lease, LeaseId},
};

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The leader's key was read, or a watch told of it.
    Seen {
        /// As of this rev.
        at: Rev,
        /// Who leads.
        leader: Option<Leader>,
    },
    /// A lease was granted.
    Granted {
        /// When it was asked for.
        sent: Time,
        /// The lease.
        lease: Lease,
    },
    /// A lease was not granted.
    NotGranted,
    /// The key is ours.
    Won {
        /// Whose claim it was.
        lease: LeaseId,
        /// The term.
        epoch: Epoch,
    },
    /// It is not known whether the key is ours, or another has it: the key tells.
    NotWon {
        /// Whose claim it was.
        lease: LeaseId,
    },
    /// A lease was renewed, or not.
    RenewalResult(RenewalResult),
    /// A lease was given back, or that failed.
    Released {
        /// Which.
        lease: LeaseId,
    },
    /// Stand for election no more.
    Resign,
    /// [`Candidate::wake_at`](super::Candidate::wake_at) has come.
    Tick,
}

/// What came of renewing a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenewalResult {
    /// Which.
    pub lease: LeaseId,
    /// When it was asked for.
    pub sent: Time,
    /// How long it lasts from then on; `Some(ZERO)`: it is over; `None`: no answer.
    pub ttl: Option<Duration>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read the leader's key.
    Look,
    /// Ask for a lease.
    Grant,
    /// Create the key with this lease, if it does not exist.
    Claim(LeaseId),
    /// Renew the lease.
    Keep(LeaseId),
    /// Give the lease back: the key goes with it.
    Release(LeaseId),
    /// Say where we sit now.
    Stand(CandidateRole),
    /// The term surely lasts until then.
    Extend(Time),
}

/// Where the candidate sits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CandidateRole {
    /// Another leads, or nobody.
    Following(Option<(WorkerId, Epoch)>),
    /// It leads.
    Leading {
        /// The term.
        epoch: Epoch,
        /// It surely lasts until then.
        until: Time,
    },
}
