//! Inputs and outputs of a [`Candidate`](super::Candidate).

use std::time::Duration;

use berth_spec::{Epoch, Time, WorkerId};

use super::LeaderRecord;
use crate::store::{
    Rev,
    etcd::{Lease, LeaseId},
};

/// Input of [`Candidate::on`](super::Candidate::on): answers to its effects, and the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The leader's key was read, or a watch told of it.
    Seen {
        /// Rev at which the key had this content; earlier news is ignored.
        at: Rev,
        /// Content of the key; `None` if there is no key, and so no leader.
        leader: Option<LeaderRecord>,
    },
    /// A lease was granted.
    Granted {
        /// Time at which the request was sent: the lease surely lasts from then.
        sent: Time,
        /// The lease with its time to live.
        lease: Lease,
    },
    /// A lease was not granted.
    NotGranted,
    /// The key is ours.
    Won {
        /// Lease that the key was to be created with.
        lease: LeaseId,
        /// Term that began: the rev that created the key.
        epoch: Epoch,
    },
    /// The claim failed or its result is unknown. The key shows who has it.
    NotWon {
        /// Lease that the key was to be created with.
        lease: LeaseId,
    },
    /// A lease was renewed, or not.
    RenewalResult(RenewalResult),
    /// A lease was given back, or that failed.
    Released {
        /// Lease that was given back.
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
    /// Lease that was to be renewed.
    pub lease: LeaseId,
    /// Time at which the request was sent: the lease surely lasts from then.
    pub sent: Time,
    /// Duration from that time; `Some(ZERO)` if the lease is over, `None` without an answer.
    pub ttl: Option<Duration>,
}

/// Action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read the leader's key; answer with [`Event::Seen`].
    Look,
    /// Ask for a lease of [`Policy::ttl`](super::Policy::ttl); answer with [`Event::Granted`] or [`Event::NotGranted`].
    Grant,
    /// Create the key with this lease, if it does not exist.
    Claim(LeaseId),
    /// Renew the lease; answer with [`Event::RenewalResult`].
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
    /// Leads: it holds the key, and a lease that is not over.
    Leading {
        /// Term in which it leads.
        epoch: Epoch,
        /// Time until which the term is certain.
        until: Time,
    },
}
