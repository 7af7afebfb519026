//! What is known of one worker: what it may hold, what it should hold, what it says it holds.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{
    Breaker, ByteSize, Cordon, Generation, Load, Placed, Residency, RevisionId, Time, Usage, WorkerInfo, WorkerState,
    worker::Eviction,
};

use super::AssumedInventory;
use crate::{
    Policy,
    claim::{Cores, Hardware},
};

/// One worker and the replicas that sit on it.
#[derive(Debug, Clone, Default)]
pub struct TrackedWorker {
    /// What it is, under what the registry says of it; `None`: known from records only.
    pub info: Option<WorkerInfo>,
    /// What it said of itself when it joined.
    pub said: Option<WorkerInfo>,
    /// It may hold nothing, since the registry does not name it.
    pub unlisted: bool,
    /// How room is made on it.
    pub eviction: Eviction,
    /// Whether it can be reached.
    pub liveness: Liveness,
    /// What people say of it.
    pub cordon: Cordon,
    /// Whether it means to stay.
    pub state: WorkerState,
    /// What it last said of its load.
    pub load: Load,
    /// Circuit breakers that it last spoke of: those that are not simply closed.
    pub breakers: Vec<Breaker>,
    /// The number of the credentials that it has.
    pub credentials: Generation,
    /// When it had others before.
    pub(crate) renewed: Option<Time>,
    /// Its inventory is whole: it has reported since it joined.
    pub reported: bool,
    /// What it says it holds.
    pub inventory: BTreeMap<RevisionId, Residency>,
    /// How much that was used, where it said so.
    pub usage: BTreeMap<RevisionId, Usage>,
    /// What it should hold.
    pub assigned: BTreeMap<RevisionId, Placed>,
    /// The sum of the claims in `assigned`.
    pub used: ByteSize,
    /// The assignment's number.
    pub sent: Generation,
    /// `assigned`, the first to be evicted first.
    pub(crate) order: BTreeSet<Rank>,
    /// The sum of the cores in `hardware`.
    pub(crate) cores: Cores,
    /// What replicas in `assigned` claim beside memory, where they do.
    pub(crate) hardware: BTreeMap<RevisionId, Hardware>,
    /// When its inventory was first whole since it started.
    pub joined: Time,
    /// Those of `assigned` that are on their way: neither ready nor failed.
    pub(crate) coming: BTreeSet<RevisionId>,
    /// When it came back after it had been lost.
    pub(crate) back: Option<Time>,
    /// It was lost with many others: until then only what requests wait for is placed anew.
    pub(crate) held_until: Time,
    /// Whether what it should hold is taken to be there before it has said so.
    pub(crate) assumed: AssumedInventory,
}

/// Whether what sits on a worker may stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It may.
    Stays,
    /// It answers, and should be elsewhere: its worker leaves, or cannot be told anything.
    Leaves,
    /// It cannot be reached.
    Gone {
        /// Since when.
        since: Time,
    },
}

/// Whether a worker can be reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Liveness {
    /// It has not been seen since the controller started.
    #[default]
    Unseen,
    /// It can.
    Alive,
    /// The controller has lost its connection, but the members see it: it answers requests, and gets nothing new.
    Detached {
        /// Since when.
        since: Time,
    },
    /// It could.
    Lost {
        /// Since when it cannot.
        since: Time,
    },
}

/// The order of eviction: what matters least, then copies that others stand in for, then what may come back by itself,
/// then what was not used for longest. The revision makes it unique: two deployments that were last used in the same
/// nanosecond are still two.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: u8,
    pub(crate) hold: Hold,
    pub(crate) last_used: Time,
    pub(crate) revision: RevisionId,
}

/// What a replica is to its deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hold {
    /// There are more than there must be.
    Surplus,
    /// It may be loaded again by a request.
    OnDemand,
    /// It should always be there.
    Resident,
}

impl TrackedWorker {
    /// The memory that models may take there.
    #[must_use]
    pub fn memory(&self) -> ByteSize {
        self.info.as_ref().map_or(ByteSize::ZERO, |info| info.memory)
    }

    /// What of its memory or its cores is claimed, whichever is more, in whole percent.
    #[must_use]
    pub fn utilization_percent(&self) -> u64 {
        let cores = self.info.as_ref().map(Cores::in_all).unwrap_or_default();
        let percent = |used: u64, all: u64| used.saturating_mul(100).checked_div(all).unwrap_or(0);
        percent(self.used.0, self.memory().0).max(percent(self.cores.0, cores.0))
    }

    /// Whether it can be reached.
    #[must_use]
    pub fn alive(&self) -> bool {
        self.liveness == Liveness::Alive
    }

    /// Whether it answers requests: also one that the controller cannot reach, but gateways can.
    #[must_use]
    pub fn answers(&self) -> bool {
        matches!(self.liveness, Liveness::Alive | Liveness::Detached { .. })
    }

    /// Whether a replica is ready there, as far as one can reach it.
    #[must_use]
    pub fn ready(&self, revision: &RevisionId) -> bool {
        self.answers() && self.inventory.get(revision).is_some_and(Residency::is_ready)
    }

    /// Whether what sits there may stay. `started`: when the first plan was made.
    pub(crate) fn standing(&self, policy: &Policy, started: Time, now: Time) -> Standing {
        match self.liveness {
            // It is known to live, and will say soon what it holds.
            Liveness::Unseen if self.is_assumed() => Standing::Stays,
            Liveness::Unseen => Standing::Gone { since: started },
            Liveness::Lost { since } => Standing::Gone { since },
            Liveness::Detached { since } if now >= since + policy.detached_grace => Standing::Leaves,
            Liveness::Alive | Liveness::Detached { .. } if self.leaves() => Standing::Leaves,
            Liveness::Alive | Liveness::Detached { .. } => Standing::Stays,
        }
    }

    /// Whether what it holds should move elsewhere, because somebody said so.
    #[must_use]
    pub fn leaves(&self) -> bool {
        self.cordon == Cordon::Draining || self.state == WorkerState::Leaving || self.unlisted
    }

    /// When it was lost, if it is.
    pub(crate) fn lost_at(&self) -> Option<Time> {
        match self.liveness {
            Liveness::Lost { since } => Some(since),
            _ => None,
        }
    }

    /// Since when it is back, while it gets little at a time.
    pub(crate) fn recovering(&self, policy: &Policy, now: Time) -> Option<Time> {
        self.back.filter(|back| now < *back + policy.recovering)
    }

    /// Keeps `coming` true for one replica.
    pub(crate) fn refresh_coming(&mut self, revision: &RevisionId) {
        let settled = matches!(self.inventory.get(revision), Some(Residency::Ready(_) | Residency::Failed(_)));
        if self.assigned.contains_key(revision) && !settled {
            self.coming.insert(revision.clone());
        } else {
            self.coming.remove(revision);
        }
    }

    /// Since when a replica is ready there, if it is.
    pub(crate) fn ready_since(&self, revision: &RevisionId) -> Option<Time> {
        match self.inventory.get(revision).filter(|_| self.answers())? {
            Residency::Ready(ready) => Some(ready.since),
            _ => None,
        }
    }

    /// The assignment, what should be loaded first first: what somebody waits for, then what would be evicted last.
    pub(crate) fn in_loading_order(&self) -> Vec<Placed> {
        let ranked = self.order.iter().rev().filter_map(|rank| self.assigned.get(&rank.revision));
        let (mut placed, rest): (Vec<Placed>, Vec<Placed>) = ranked.cloned().partition(|placed| placed.urgent);
        placed.extend(rest);
        placed
    }
}
