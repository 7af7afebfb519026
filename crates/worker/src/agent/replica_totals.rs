//! Sums over the replicas, kept as each of them changes: a worker may hold thousands, and what happens to one costs no look at the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use berth_spec::{ByteSize, DeploymentName, RevisionId, Time};

use crate::{
    order::ModelKey,
    replica::{Replica, State},
};

/// Replicas by their id.
pub(super) type Replicas = BTreeMap<RevisionId, Replica>;

/// Numbers of replicas by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// In memory: ready or draining.
    pub loaded: u32,
    /// Ready, those in `restarting` included.
    pub ready: u32,
    /// Ready, though their process is being started again.
    pub restarting: u32,
    /// Failed, or refused for want of memory.
    pub failed: u32,
}

impl Counts {
    fn of(state: &State) -> Self {
        let is = |is: bool| u32::from(is);
        Self {
            loaded: is(matches!(state, State::Ready(_) | State::Draining { .. })),
            ready: is(matches!(state, State::Ready(_))),
            restarting: is(matches!(state, State::Ready(ready) if !ready.is_up())),
            failed: is(matches!(state, State::Failed(_) | State::Refused(..))),
        }
    }

    fn with(self, other: Self) -> Self {
        Self {
            loaded: self.loaded + other.loaded,
            ready: self.ready + other.ready,
            restarting: self.restarting + other.restarting,
            failed: self.failed + other.failed,
        }
    }

    fn without(self, other: Self) -> Self {
        Self {
            loaded: self.loaded - other.loaded,
            ready: self.ready - other.ready,
            restarting: self.restarting - other.restarting,
            failed: self.failed - other.failed,
        }
    }
}

/// The part of one replica that the sums hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CountedReplica {
    counts: Counts,
    wake: Option<Time>,
    /// Memory that is set aside for it and that its model was measured not to take.
    slack: ByteSize,
}

/// Sums over all replicas of a worker, so that none of them needs a walk. [`recount`](Self::recount) keeps them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ReplicaTotals {
    counted: BTreeMap<RevisionId, CountedReplica>,
    counts: Counts,
    wakes: BTreeSet<(Time, RevisionId)>,
    /// Replicas on their way: neither ready nor failed.
    moving: BTreeSet<RevisionId>,
    /// Replicas that wait for room.
    without_room: BTreeSet<RevisionId>,
    /// Memory by deployment, of those that hold any.
    held_by: BTreeMap<DeploymentName, ByteSize>,
    held: ByteSize,
    slack: ByteSize,
}

impl ReplicaTotals {
    /// Counts a replica that came, changed or went.
    pub(super) fn recount(&mut self, replicas: &Replicas, id: &RevisionId) {
        let replica = replicas.get(id);
        let now = replica.map(|replica| CountedReplica {
            counts: Counts::of(replica.state()),
            wake: replica.wake_at(),
            slack: replica.held().saturating_sub(replica.taken()),
        });
        let before = match now {
            Some(now) => self.counted.insert(id.clone(), now),
            None => self.counted.remove(id),
        };
        if let Some(CountedReplica { counts, wake, slack }) = before {
            self.counts = self.counts.without(counts);
            self.slack = self.slack.saturating_sub(slack);
            if let Some(at) = wake {
                self.wakes.remove(&(at, id.clone()));
            }
        }
        if let Some(CountedReplica { counts, wake, slack }) = now {
            self.counts = self.counts.with(counts);
            self.slack += slack;
            if let Some(at) = wake {
                self.wakes.insert((at, id.clone()));
            }
        }
        let moves = |replica: &Replica| !matches!(replica.state(), State::Ready(_) | State::Failed(_));
        set(&mut self.moving, id, replica.is_some_and(moves));
        set(&mut self.without_room, id, replica.is_some_and(|replica| replica.without_room.is_some()));
        self.recount_memory(replicas, id.deployment());
    }

    fn recount_memory(&mut self, replicas: &Replicas, name: &DeploymentName) {
        let now = held_by(replicas, name);
        let before =
            if now == ByteSize::ZERO { self.held_by.remove(name) } else { self.held_by.insert(name.clone(), now) };
        self.held = self.held.saturating_sub(before.unwrap_or_default()) + now;
    }

    /// The memory that is held: resident, being loaded, draining or being unloaded. Shared weights count once.
    pub(super) fn held(&self) -> ByteSize {
        self.held
    }

    /// Memory that is set aside for models and that they were measured not to take.
    pub(super) fn slack(&self) -> ByteSize {
        self.slack
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// The first time at which a replica wants to be woken.
    pub(super) fn wake_at(&self) -> Option<Time> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// Replicas that want to be woken by now, by their ids.
    pub(super) fn due(&self, now: Time) -> BTreeSet<RevisionId> {
        self.wakes.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| id.clone()).collect()
    }

    /// Replicas on their way: neither ready nor failed.
    pub(super) fn moving(&self) -> impl Iterator<Item = &RevisionId> {
        self.moving.iter()
    }

    /// Replicas that wait for room.
    pub(super) fn without_room(&self) -> impl Iterator<Item = &RevisionId> {
        self.without_room.iter()
    }

    /// The sums made anew.
    pub(super) fn of(replicas: &Replicas) -> Self {
        let mut totals = Self::default();
        replicas.keys().for_each(|id| totals.recount(replicas, id));
        totals
    }
}

/// The replicas of a deployment: they lie side by side.
pub(crate) fn of_deployment<'a, V>(
    replicas: &'a BTreeMap<RevisionId, V>,
    name: &DeploymentName,
) -> impl Iterator<Item = (&'a RevisionId, &'a V)> {
    let first = RevisionId::with_hash(name.clone(), [0; 6]);
    replicas.range((Bound::Included(first), Bound::Unbounded)).take_while(move |(id, _)| id.deployment() == name)
}

/// The memory of one deployment's replicas, of which those with the same model count once, with the largest word. Only replicas of
/// one deployment share.
fn held_by(replicas: &Replicas, name: &DeploymentName) -> ByteSize {
    let holding = || of_deployment(replicas, name).filter(|(_, replica)| replica.held() > ByteSize::ZERO);
    let mut first_two = holding().map(|(_, replica)| replica);
    match (first_two.next(), first_two.next()) {
        (None, _) => return ByteSize::ZERO,
        (Some(only), None) => return only.held(),
        (Some(_), Some(_)) => {}
    }
    let mut by_model: BTreeMap<_, ByteSize> = BTreeMap::new();
    for (_, replica) in holding() {
        let key = replica.digest().map(|digest| ModelKey::of(&replica.placed.revision, &digest));
        let largest = by_model.entry(key).or_default();
        *largest = replica.held().max(*largest);
    }
    by_model.into_values().sum()
}

fn set(set: &mut BTreeSet<RevisionId>, id: &RevisionId, present: bool) {
    if present {
        set.insert(id.clone());
    } else {
        set.remove(id);
    }
}
