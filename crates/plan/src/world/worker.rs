//! State of one worker: its capacity, its assignment, its inventory.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{
    Breaker, ByteSize, Cordon, Generation, Load, Placed, Residency, RevisionId, Time, Usage, WorkerInfo, WorkerState,
    worker::Eviction,
};

use super::AssumedInventory;
use crate::{
    Policy,
    claim::{Cores, Hardware, RuntimeTotal},
};

/// One worker and the replicas that sit on it.
#[derive(Debug, Clone, Default)]
pub struct TrackedWorker {
    /// Its description under the terms of the registry; `None`: known from records only.
    pub info: Option<WorkerInfo>,
    /// Its description as it gave it when it joined.
    pub said: Option<WorkerInfo>,
    /// May hold nothing, since the registry does not name it.
    pub unlisted: bool,
    /// Eviction rules for it, by the registry; the default where that says nothing.
    pub eviction: Eviction,
    /// Reachability, as the controller and the members see it.
    pub liveness: Liveness,
    /// Cordon set by operators.
    pub cordon: Cordon,
    /// Its own plan to stay or leave.
    pub state: WorkerState,
    /// Its last reported load.
    pub load: Load,
    /// Circuit breakers that it last spoke of: those that are not simply closed.
    pub breakers: Vec<Breaker>,
    /// The number of the credentials that it reported; 0: none.
    pub credentials: Generation,
    /// When it had others before.
    pub(crate) renewed: Option<Time>,
    /// Its inventory is whole: it has reported since it joined.
    pub reported: bool,
    /// Its reported replicas.
    pub inventory: BTreeMap<RevisionId, Residency>,
    /// Their reported use.
    pub usage: BTreeMap<RevisionId, Usage>,
    /// Replicas that it should hold, by the last committed plan.
    pub assigned: BTreeMap<RevisionId, Placed>,
    /// The sum of the claims in `assigned`.
    pub used: ByteSize,
    /// Memory of its process that no replica accounts for, by its own word: models cannot have it.
    pub overhead: ByteSize,
    /// The assignment's number.
    pub sent: Generation,
    /// `assigned`, the first to be evicted first.
    pub(crate) order: BTreeSet<Rank>,
    /// The sum of the cores in `hardware`.
    pub(crate) cores: Cores,
    /// Claims in `assigned` on each runtime, by its place in `info`.
    pub(crate) in_runtimes: Vec<RuntimeTotal>,
    /// Claims of replicas in `assigned` beside memory, where they have any.
    pub(crate) hardware: BTreeMap<RevisionId, Hardware>,
    /// When its inventory was first whole since it started.
    pub joined: Time,
    /// Revisions of `assigned` that are on their way: neither ready nor failed.
    pub(crate) coming: BTreeSet<RevisionId>,
    /// Revisions on which it works or that leave, assigned or not: those of which [`TrackedWorker::work_on`] tells something.
    pub(crate) busy: BTreeSet<RevisionId>,
    /// When it came back after it had been lost.
    pub(crate) back: Option<Time>,
    /// Lost with many others: until then only models that requests wait for are placed anew.
    pub(crate) held_until: Time,
    /// Assumption that it holds its assignment before it has reported.
    pub(crate) assumed: AssumedInventory,
}

/// Decision on replicas that a worker has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// May stay: the worker can be reached and does not leave.
    Stays,
    /// Answers, and should be elsewhere: its worker leaves, or cannot be told anything.
    Leaves,
    /// Cannot be reached.
    Gone {
        /// Time from which it could not be reached.
        since: Time,
    },
}

/// Reachability of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Liveness {
    /// Not seen since the controller started.
    #[default]
    Unseen,
    /// Connected to the controller.
    Alive,
    /// The controller has lost its connection, but the members see it: it answers requests, and gets nothing new.
    Detached {
        /// Time at which the connection was lost.
        since: Time,
    },
    /// No longer reachable.
    Lost {
        /// Time at which it was found to be unreachable.
        since: Time,
    },
}

/// The order of eviction: what matters least, then copies that others stand in for, then what may come back by itself,
/// then what was not used for longest. The revision makes it unique: two deployments that were last used in the same
/// nanosecond are still two.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: u8,
    pub(crate) class: EvictionClass,
    pub(crate) last_used: Time,
    pub(crate) revision: RevisionId,
}

/// Importance of a replica to its deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EvictionClass {
    /// There are more than there must be.
    Surplus,
    /// May be loaded again by a request.
    OnDemand,
    /// Should always be there.
    Resident,
}

impl TrackedWorker {
    /// The replica that leaves first when room is needed, and the last use of its deployment (0: never). `None`: all stay.
    #[must_use]
    pub fn leaves_first(&self) -> Option<(&RevisionId, Time)> {
        let first = self.order.iter().find(|rank| rank.class != EvictionClass::Resident)?;
        Some((&first.revision, first.last_used))
    }

    /// The memory that models may take there.
    #[must_use]
    pub fn memory(&self) -> ByteSize {
        self.info.as_ref().map_or(ByteSize::ZERO, |info| info.memory)
    }

    /// The part of the overhead that keeps others out, where a replica of this claim is the largest: a claim that fits
    /// into the worker alone is never kept out, since the author's word counts, and a measured one cannot be made
    /// smaller.
    #[must_use]
    pub fn overhead_beside(&self, claim: ByteSize) -> ByteSize {
        self.overhead.min(self.memory().saturating_sub(claim))
    }

    /// Claimed share of its memory or of its cores, whichever is more, in whole percent.
    #[must_use]
    pub fn utilization_percent(&self) -> u64 {
        let cores = self.info.as_ref().map(Cores::in_all).unwrap_or_default();
        let percent = |used: u64, all: u64| used.saturating_mul(100).checked_div(all).unwrap_or(0);
        percent(self.used.0, self.memory().0).max(percent(self.cores.0, cores.0))
    }

    /// Returns true if it can be reached.
    #[must_use]
    pub fn alive(&self) -> bool {
        self.liveness == Liveness::Alive
    }

    /// Returns true if it answers requests: also if only gateways reach it.
    #[must_use]
    pub fn answers(&self) -> bool {
        matches!(self.liveness, Liveness::Alive | Liveness::Detached { .. })
    }

    /// Returns true if a replica is ready there, as far as known.
    #[must_use]
    pub fn ready(&self, revision: &RevisionId) -> bool {
        self.answers() && self.inventory.get(revision).is_some_and(Residency::is_ready)
    }

    /// Decides if its replicas may stay. `started`: when the first plan was made.
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

    /// Returns true if its replicas should move elsewhere because somebody said so.
    #[must_use]
    pub fn leaves(&self) -> bool {
        self.cordon == Cordon::Draining || self.state == WorkerState::Leaving || self.unlisted
    }

    /// Time at which it was lost; `None`: it is not.
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

    /// Work on a replica there, for people. `None`: nothing, or it waits for its turn or its next attempt.
    pub(crate) fn work_on(&self, revision: &RevisionId) -> Option<&'static str> {
        let leaves = !self.assigned.contains_key(revision);
        match self.inventory.get(revision)? {
            Residency::Queued | Residency::Failed(_) => None,
            Residency::Ready(_) if !leaves => None,
            Residency::Ready(_) | Residency::Draining { .. } => Some("leaves"),
            _ if leaves => Some("leaves"),
            Residency::Preparing(_) => Some("is being prepared"),
            Residency::Fetching { .. } => Some("is being fetched"),
            Residency::Loading | Residency::Validating => Some("is being loaded"),
        }
    }

    /// Keeps `coming` and `busy` true for one replica.
    pub(crate) fn refresh_coming(&mut self, revision: &RevisionId) {
        if self.work_on(revision).is_some() {
            self.busy.insert(revision.clone());
        } else {
            self.busy.remove(revision);
        }
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
