//! The store as a model: one sequence of writes (every read and write sees all that were acknowledged before), a leader
//! key under a lease that runs by the store's own clock, and a fence for every write of a plan.
//!
//! A write counts for the epoch that the writer claims: the rev at which the leader key was created. When another
//! leader has created it since, or it has expired, the write is refused as [`Stored::Deposed`].

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_control::{
    controller::{Declared, Event, PlanCommit, Restored},
    store::Rev,
};
use berth_plan::Record;
use berth_spec::{ByteSize, Cordon, Deployment, DeploymentName, Digest, Generation, Time, UnknownWorkers, WorkerId};

/// The name of the store among the nodes.
pub const STORE: &str = "store";

/// The time that the leader key outlives its last renewal, by the store's clock.
pub const LEASE: Duration = Duration::from_secs(3);

/// An answer of the store.
#[derive(Debug, Clone)]
pub enum Stored {
    /// The controller leads from now on.
    Won {
        /// The rev at which its key was created.
        epoch: u64,
    },
    /// Another one leads.
    Taken,
    /// The controller goes on leading.
    Renewed {
        /// When that was asked, by the clock of who asked.
        asked: Time,
    },
    /// A plan is stored.
    Committed,
    /// The controller does not lead, or nobody knows.
    Refused,
    /// Whoever asked leads no longer.
    Deposed,
    /// All that is stored.
    Content {
        /// Read at this rev.
        rev: u64,
    },
}

/// The leader key, which a controller holds while it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// The controller that holds the key.
    pub name: WorkerId,
    /// The rev at which its key was created.
    pub epoch: u64,
    /// When its lease ends. `None`: never, there is only one controller.
    pub until: Option<Time>,
}

/// The state of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quorum {
    /// Well.
    Whole,
    /// A member is gone: everything takes longer.
    Slow(Duration),
    /// Too many are gone: nothing is read or written.
    Lost,
}

/// A stand-in for etcd: deployments, decisions and the leader key, numbered by revs.
#[derive(Debug)]
pub struct Store {
    /// The members that are left; without a quorum nothing is read or written.
    pub quorum: Quorum,
    /// Its clock runs this much faster than it should, in percent (100: right).
    pub pace_percent: u64,
    rev: u64,
    leader: Option<Leader>,
    deployments: BTreeMap<DeploymentName, Arc<Deployment>>,
    records: BTreeMap<DeploymentName, Record>,
    measured: BTreeMap<Digest, ByteSize>,
    cordons: BTreeMap<WorkerId, Cordon>,
    generation: Generation,
    /// The events for watchers, by rev.
    changes: BTreeMap<u64, Change>,
}

/// Something that watchers are told.
#[derive(Debug, Clone)]
enum Change {
    Declared(Declared),
    Cordon(WorkerId, Cordon),
}

impl Default for Store {
    fn default() -> Self {
        Self {
            quorum: Quorum::Whole,
            pace_percent: 100,
            rev: 0,
            leader: None,
            deployments: BTreeMap::new(),
            records: BTreeMap::new(),
            measured: BTreeMap::new(),
            cordons: BTreeMap::new(),
            generation: Generation(0),
            changes: BTreeMap::new(),
        }
    }
}

impl Store {
    /// The rev of the last write.
    #[must_use]
    pub const fn rev(&self) -> u64 {
        self.rev
    }

    /// The leader at `now`: an expired key is gone.
    pub fn leader(&mut self, now: Time) -> Option<&Leader> {
        if self.leader.as_ref().is_some_and(|leader| leader.until.is_some_and(|until| until <= now)) {
            // Leases are not ended by a store that cannot write.
            if self.quorum != Quorum::Lost {
                self.rev += 1;
                self.leader = None;
            }
        }
        self.leader.as_ref()
    }

    /// Makes a controller the leader if there is none. `lease`: whether it has to renew.
    pub fn campaign(&mut self, name: &WorkerId, now: Time, lease: Option<Duration>) -> Option<u64> {
        if self.leader(now).is_some() {
            return None;
        }
        self.rev += 1;
        let until = lease.map(|lease| now + self.by_own_clock(lease));
        self.leader = Some(Leader { name: name.clone(), epoch: self.rev, until });
        Some(self.rev)
    }

    /// Lets the leader of this epoch go on. Says whether it leads.
    pub fn renew(&mut self, epoch: u64, now: Time) -> bool {
        let until = now + self.by_own_clock(LEASE);
        let leads = self.leads(epoch, now);
        if leads && let Some(leader) = &mut self.leader {
            leader.until = leader.until.map(|_| until);
        }
        leads
    }

    /// The leader of this epoch lets go.
    pub fn resign(&mut self, epoch: u64, now: Time) {
        if self.leads(epoch, now) {
            self.rev += 1;
            self.leader = None;
        }
    }

    /// The only controller died: whoever comes next need not wait.
    pub(crate) fn vacate(&mut self) {
        self.leader = None;
    }

    /// True if this controller leads in this epoch, by the store's last answer.
    #[must_use]
    pub fn is_led_by(&self, name: &WorkerId, epoch: u64) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.name == *name && leader.epoch == epoch)
    }

    fn leads(&mut self, epoch: u64, now: Time) -> bool {
        self.leader(now).is_some_and(|leader| leader.epoch == epoch)
    }

    fn by_own_clock(&self, lease: Duration) -> Duration {
        lease * 100 / u32::try_from(self.pace_percent).unwrap_or(100)
    }

    /// The content that a controller reads when it starts now.
    #[must_use]
    pub fn restore(&self) -> Restored {
        Restored {
            rev: Rev(self.rev),
            deployments: self.deployments.values().cloned().collect(),
            aliases: Vec::new(),
            records: self.records.iter().map(|(name, record)| (name.clone(), record.clone())).collect(),
            measured: self.measured.iter().map(|(digest, size)| (*digest, *size)).collect(),
            cordons: self.cordons.clone(),
            terms: BTreeMap::new(),
            unknown: UnknownWorkers::default(),
            generation: self.generation,
        }
    }

    /// Stores a deployment with the next rev as its `resource_version`, and tells watchers.
    pub fn declare(&mut self, deployment: Arc<Deployment>) {
        self.rev += 1;
        let stored = Arc::new(Deployment { resource_version: self.rev, ..deployment.as_ref().clone() });
        self.deployments.insert(stored.name.clone(), Arc::clone(&stored));
        self.changes.insert(self.rev, Change::Declared(Declared::Set(stored)));
    }

    /// Stores that a worker is cordoned or draining, or forgets it for `Open`, and tells watchers.
    pub fn cordon(&mut self, worker: WorkerId, cordon: Cordon) {
        self.rev += 1;
        match cordon {
            Cordon::Open => self.cordons.remove(&worker),
            Cordon::Cordoned | Cordon::Draining => self.cordons.insert(worker.clone(), cordon),
        };
        self.changes.insert(self.rev, Change::Cordon(worker, cordon));
    }

    /// A deployment as it is stored; `None`: it was not declared, or is deleted.
    #[must_use]
    pub fn deployment(&self, name: &DeploymentName) -> Option<&Arc<Deployment>> {
        self.deployments.get(name)
    }

    /// Every deployment, by name.
    pub fn deployments(&self) -> impl Iterator<Item = &Arc<Deployment>> {
        self.deployments.values()
    }

    /// The decision about a deployment; `None` until a plan has one.
    #[must_use]
    pub fn record(&self, name: &DeploymentName) -> Option<&Record> {
        self.records.get(name)
    }

    /// All that was decided.
    #[must_use]
    pub fn records(&self) -> &BTreeMap<DeploymentName, Record> {
        &self.records
    }

    /// Takes what a plan wants stored, all or nothing: a deployment that changed meanwhile is not forgotten.
    pub fn commit(&mut self, commit: &PlanCommit, epoch: u64, now: Time) -> Stored {
        if !self.leads(epoch, now) {
            return Stored::Deposed;
        }
        let current = |(name, rev): &(DeploymentName, Rev)| {
            self.deployments.get(name).is_none_or(|is| is.resource_version == rev.0)
        };
        if !commit.forget.iter().all(current) {
            return Stored::Refused;
        }
        self.rev += 1;
        self.generation = commit.generation;
        for (name, record) in &commit.records {
            match record {
                Some(record) => self.records.insert(name.clone(), record.clone()),
                None => self.records.remove(name),
            };
        }
        for (name, _) in &commit.forget {
            if self.deployments.remove(name).is_some() {
                self.rev += 1;
                self.changes.insert(self.rev, Change::Declared(Declared::Gone(name.clone())));
            }
        }
        Stored::Committed
    }

    /// Remembers what an artifact takes.
    pub fn measure(&mut self, digest: Digest, size: ByteSize) {
        self.measured.insert(digest, size);
    }

    /// The next events for a controller that has heard of everything up to `told`.
    pub(crate) fn changes(&self, told: u64, upto: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let mut declared = Vec::new();
        let new = self.changes.range(told + 1..).take_while(|(rev, _)| **rev <= upto);
        for change in new.map(|(_, change)| change) {
            match change {
                Change::Declared(change) => declared.push(change.clone()),
                Change::Cordon(worker, cordon) => {
                    events.push(Event::Cordon { worker: worker.clone(), cordon: *cordon });
                }
            }
        }
        if !declared.is_empty() {
            events.push(Event::Changed { rev: Rev(upto), changes: declared });
        }
        events
    }

    /// The rev of the last change that watchers are told.
    pub(crate) fn last_change(&self) -> u64 {
        self.changes.last_key_value().map_or(0, |(rev, _)| *rev)
    }
}

#[cfg(test)]
mod tests {
    use berth_plan::fixture;

    use super::*;

    #[test]
    fn a_deposed_leader_writes_nothing() {
        let mut store = Store::default();
        let (a, b) = (fixture::worker_id("a"), fixture::worker_id("b"));
        let commit =
            PlanCommit { generation: Generation(1), records: Vec::new(), forget: Vec::new(), reconstructible: false };
        let begin = Time(1_000_000_000_000);
        let first = store.campaign(&a, begin, Some(LEASE)).expect("nobody leads");
        assert!(store.campaign(&b, begin + LEASE / 2, Some(LEASE)).is_none());
        assert!(matches!(store.commit(&commit, first, begin + LEASE / 2), Stored::Committed));
        let second = store.campaign(&b, begin + LEASE, Some(LEASE)).expect("the first one's lease is over");
        assert!(second > first && !store.renew(first, begin + LEASE));
        assert!(matches!(store.commit(&commit, first, begin + LEASE), Stored::Deposed));
        assert!(matches!(store.commit(&commit, second, begin + LEASE), Stored::Committed));
    }
}
