//! What is known of one worker: what it may hold, what it should hold, what it says it holds.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{ByteSize, Cordon, Generation, Load, Placed, Residency, RevisionId, Time, WorkerInfo, WorkerState};

/// One worker and the replicas that sit on it.
#[derive(Debug, Clone, Default)]
pub struct Seats {
    /// What it said when it joined; `None`: known from records only.
    pub info: Option<WorkerInfo>,
    /// Whether it can be reached.
    pub liveness: Liveness,
    /// What people say of it.
    pub cordon: Cordon,
    /// Whether it means to stay.
    pub state: WorkerState,
    /// What it last said of its load.
    pub load: Load,
    /// Its inventory is whole: it has reported since it joined.
    pub reported: bool,
    /// What it says it holds.
    pub inventory: BTreeMap<RevisionId, Residency>,
    /// What it should hold.
    pub assigned: BTreeMap<RevisionId, Placed>,
    /// The sum of the claims in `assigned`.
    pub used: ByteSize,
    /// The assignment's number.
    pub sent: Generation,
    /// `assigned`, the first to be evicted first.
    pub(crate) order: BTreeSet<Rank>,
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

/// The order of eviction: what matters least, then what may come back by itself, then what was not used for longest.
/// The revision makes it unique: two deployments that were last used in the same nanosecond are still two.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: u8,
    /// It should always be resident, rather than on demand.
    pub(crate) resident: bool,
    pub(crate) last_used: Time,
    pub(crate) revision: RevisionId,
}

impl Seats {
    /// The memory that models may take there.
    #[must_use]
    pub fn memory(&self) -> ByteSize {
        self.info.as_ref().map_or(ByteSize::ZERO, |info| info.memory)
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

    /// Since when a replica is ready there, if it is.
    pub(crate) fn ready_since(&self, revision: &RevisionId) -> Option<Time> {
        match self.inventory.get(revision).filter(|_| self.answers())? {
            Residency::Ready(ready) => Some(ready.since),
            _ => None,
        }
    }

    /// The assignment, what should be loaded first first: what somebody waits for, then by claim on the machine.
    pub(crate) fn in_loading_order(&self) -> Vec<Placed> {
        let mut placed: Vec<(bool, u8, &Placed)> = self
            .order
            .iter()
            .filter_map(|rank| self.assigned.get(&rank.revision).map(|placed| (placed.urgent, rank.priority, placed)))
            .collect();
        placed.sort_by_key(|(urgent, priority, _)| std::cmp::Reverse((*urgent, *priority)));
        placed.into_iter().map(|(_, _, placed)| placed.clone()).collect()
    }
}
