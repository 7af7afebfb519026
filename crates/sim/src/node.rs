//! A worker's machine: the agent's effects take time, and may fail as the artifact or the machine's state says.
//!
//! It keeps its own account of what really lies in memory, from the artifacts alone: neither the plan's claims nor the
//! agent's word count there.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use berth_spec::{ByteSize, FailureCategory, InventoryChange, RevisionId, Time, WorkerInfo};
use berth_worker::{
    Agent, Effect, Event, Fault,
    artifacts::{Artifact, Source},
    order::Limits,
    replica::{Facts, Validated},
};

/// The time of small operations on a healthy machine.
const SMALL_OPERATION: Duration = Duration::from_millis(5);

/// The model at a location.
#[derive(Debug, Clone)]
pub struct Model {
    /// The memory that it takes once loaded.
    pub memory: ByteSize,
    /// The time to fetch it.
    pub fetch: Duration,
    /// The time to load it.
    pub load: Duration,
    /// The failure of its loads, if they fail.
    pub fails: Option<FailureCategory>,
}

/// A worker's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// Has room.
    Roomy,
    /// Nothing can be fetched.
    Full,
}

/// A running worker: the real brain, and a stand-in for its disk, its memory and its models.
pub struct Machine {
    /// The worker's description of itself.
    pub info: WorkerInfo,
    /// The real brain of a worker, which gets events and whose effects are carried out here.
    pub agent: Agent,
    /// Revisions that answer requests, and since when.
    pub callable: BTreeMap<RevisionId, Time>,
    /// The factor by which fetches, loads, runs and all else take longer; 1: a healthy machine.
    pub slowdown: u32,
    /// Room for artifacts; a full disk fails every fetch.
    pub disk: Disk,
    /// True if the worker announced that it leaves; it does so once it holds nothing any more.
    pub(crate) leaves: bool,
    /// The models in memory, by what was loaded: weights that are shared count once.
    resident: BTreeMap<RevisionId, Resident>,
    /// The number of requests that each revision runs.
    running: BTreeMap<RevisionId, u32>,
    /// Revisions that go once the last of their requests is answered.
    draining: BTreeSet<RevisionId>,
    /// Revisions whose process is not there just now: it runs nothing.
    down: BTreeSet<RevisionId>,
}

/// The true memory of one replica.
#[derive(Debug, Clone)]
struct Resident {
    memory: ByteSize,
    shares: Option<RevisionId>,
}

/// The next step of a worker.
pub(crate) enum Next {
    /// An event for the agent, after a while.
    Hear(Duration, Event),
    /// A report to the controller.
    Report(InventoryChange),
}

impl Machine {
    /// A worker that has just started.
    #[must_use]
    pub fn new(info: WorkerInfo) -> Self {
        let limits = Limits {
            memory: info.memory,
            unload_reserve: ByteSize::ZERO,
            models: info.max_models,
            parallel_loads: 2,
            parallel_fetches: 4,
        };
        let agent = Agent::new(info.id.clone(), info.incarnation, limits).with_gpus(info.gpus.clone());
        Self {
            info,
            agent,
            callable: BTreeMap::new(),
            slowdown: 1,
            disk: Disk::Roomy,
            leaves: false,
            resident: BTreeMap::new(),
            running: BTreeMap::new(),
            draining: BTreeSet::new(),
            down: BTreeSet::new(),
        }
    }

    /// Hears something at `now`, when its own clock shows `clock`, and does what its brain says.
    pub(crate) fn hear(&mut self, event: Event, clock: Time, now: Time, models: &BTreeMap<String, Model>) -> Vec<Next> {
        self.account_for(&event);
        let effects = self.agent.on(event, clock);
        effects.into_iter().filter_map(|effect| self.perform(effect, now, models)).collect()
    }

    /// The memory in use, loads in progress included.
    #[must_use]
    pub fn really_held(&self) -> ByteSize {
        self.resident.values().filter(|resident| resident.shares.is_none()).map(|resident| resident.memory).sum()
    }

    /// A request begins to run, if the revision answers requests. Says whether it does.
    pub(crate) fn run(&mut self, revision: &RevisionId) -> bool {
        let runs = self.callable.contains_key(revision) && !self.down.contains(revision);
        if runs {
            *self.running.entry(revision.clone()).or_default() += 1;
        }
        runs
    }

    /// A request was run. Says what the agent hears of it, if it was the last that a leaving replica waited for.
    pub(crate) fn ran(&mut self, revision: &RevisionId) -> Option<Event> {
        let left = self.running.get_mut(revision)?;
        *left -= 1;
        if *left > 0 {
            return None;
        }
        self.running.remove(revision);
        self.draining.remove(revision).then(|| Event::Drained { revision: revision.clone() })
    }

    /// The time of an operation on this machine.
    pub(crate) fn takes(&self, when_well: Duration) -> Duration {
        when_well * self.slowdown
    }

    /// Frees the memory of what has ended.
    fn account_for(&mut self, event: &Event) {
        match event {
            Event::Loaded { revision, result: Err(_), .. } | Event::Unloaded { revision } => {
                self.down.remove(revision);
                self.free(revision);
            }
            Event::Health { revision, health } => {
                match health.deaths.as_ref().is_some_and(|deaths| deaths.again_at.is_some()) {
                    true => self.down.insert(revision.clone()),
                    false => self.down.remove(revision),
                };
            }
            _ => {}
        }
    }

    /// Frees a replica. The one that shared its weights has them to itself now.
    fn free(&mut self, revision: &RevisionId) {
        let Some(freed) = self.resident.remove(revision) else { return };
        let mut heir: Option<RevisionId> = None;
        for (id, other) in &mut self.resident {
            if other.shares.as_ref() != Some(revision) {
                continue;
            }
            other.shares = heir.clone();
            if heir.is_none() && freed.shares.is_none() {
                heir = Some(id.clone());
            }
        }
    }

    fn perform(&mut self, effect: Effect, now: Time, models: &BTreeMap<String, Model>) -> Option<Next> {
        let hear = |this: &Self, after: Duration, event: Event| Some(Next::Hear(this.takes(after), event));
        match effect {
            Effect::Fetch { revision, ticket } => {
                let model = models.get(&revision.uri);
                let took = model.map_or(SMALL_OPERATION, |model| model.fetch);
                let result = match self.disk {
                    Disk::Roomy => fetched(&revision.uri, model),
                    Disk::Full => Err(fault(FailureCategory::Disk)),
                };
                hear(self, took, Event::Fetched { revision: revision.id.clone(), ticket, result })
            }
            Effect::Prepare { revision, ticket, .. } => {
                let (revision, outcomes) = (revision.id.clone(), Vec::new());
                hear(self, SMALL_OPERATION, Event::Prepared { revision, ticket, result: Ok(()), outcomes })
            }
            Effect::Load { revision, ticket, share, .. } => {
                let model = models.get(&revision.uri);
                let took = model.map_or(SMALL_OPERATION, |model| model.load);
                let memory = model.map_or(ByteSize::ZERO, |model| model.memory);
                self.resident.insert(revision.id.clone(), Resident { memory, shares: share });
                hear(self, took, Event::Loaded { revision: revision.id.clone(), ticket, result: loaded(model) })
            }
            Effect::Validate { revision, ticket, .. } => {
                hear(self, SMALL_OPERATION, Event::Validated { revision, ticket, result: Ok(Validated::default()) })
            }
            Effect::Announce { revision, .. } => {
                self.callable.insert(revision, now);
                None
            }
            Effect::Drain { revision, .. } => {
                self.callable.remove(&revision);
                if self.running.contains_key(&revision) {
                    self.draining.insert(revision);
                    return None;
                }
                hear(self, SMALL_OPERATION, Event::Drained { revision })
            }
            Effect::Unload { revision } => hear(self, SMALL_OPERATION, Event::Unloaded { revision }),
            Effect::Report(change) => Some(Next::Report(change)),
            Effect::Forget { .. } | Effect::GiveUp { .. } | Effect::Reconfigure { .. } => None,
        }
    }
}

fn fault(category: FailureCategory) -> Fault {
    Fault::new(category, format!("it fails with {}", category.as_str()))
}

fn fetched(uri: &str, model: Option<&Model>) -> Result<Artifact, Fault> {
    use FailureCategory::{Auth, Checksum, Disk, Network, NotFound};
    let Some(model) = model else { return Err(fault(NotFound)) };
    match model.fails {
        Some(category @ (Auth | Checksum | Disk | Network | NotFound)) => Err(fault(category)),
        _ => {
            let digest = berth_plan::fixture::digest_of(&berth_spec::RevisionId::of(
                berth_plan::fixture::name("artifact"),
                uri.as_bytes(),
            ));
            Ok(Artifact { source: Source::File(PathBuf::from("artifact")), digest, size: ByteSize(model.memory.0 / 2) })
        }
    }
}

fn loaded(model: Option<&Model>) -> Result<Facts, Fault> {
    let Some(model) = model else { return Err(fault(FailureCategory::Internal)) };
    match model.fails {
        Some(category) => Err(fault(category)),
        None => Ok(Facts { memory: model.memory, measured: true, signature: None, note: None, unvalidated: None }),
    }
}
