//! A worker's machine: the agent's effects take time, and may fail as the artifact says.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use berth_spec::{ByteSize, FailureCategory, InventoryChange, RevisionId, Time, WorkerInfo};
use berth_worker::{Agent, Effect, Event, Fault, artifacts::Artifact, order::Limits, replica::Facts};

/// What is behind a location.
#[derive(Debug, Clone)]
pub struct Model {
    /// The memory that it takes once loaded.
    pub memory: ByteSize,
    /// How long it takes to fetch.
    pub fetch: Duration,
    /// How long it takes to load.
    pub load: Duration,
    /// How it fails.
    pub fails: Option<FailureCategory>,
}

/// One worker.
pub struct Node {
    /// What it says of itself.
    pub info: WorkerInfo,
    /// Its brain.
    pub agent: Agent,
    /// Revisions that answer requests.
    pub callable: BTreeSet<RevisionId>,
}

/// What a worker does next.
pub enum Next {
    /// It hears this after a while.
    Hear(Duration, Event),
    /// It tells the controller.
    Report(InventoryChange),
}

impl Node {
    /// A worker that has just started.
    #[must_use]
    pub fn new(info: WorkerInfo) -> Self {
        let limits = Limits { memory: info.memory, parallel_loads: 2, parallel_fetches: 4 };
        let agent = Agent::new(info.id.clone(), info.incarnation, limits);
        Self { info, agent, callable: BTreeSet::new() }
    }

    /// Hears something, and does what its brain says.
    pub fn hear(&mut self, event: Event, now: Time, models: &BTreeMap<String, Model>) -> Vec<Next> {
        let effects = self.agent.on(event, now);
        effects.into_iter().filter_map(|effect| self.perform(effect, models)).collect()
    }

    fn perform(&mut self, effect: Effect, models: &BTreeMap<String, Model>) -> Option<Next> {
        const SOON: Duration = Duration::from_millis(5);
        Some(match effect {
            Effect::Fetch { revision, ticket } => {
                let model = models.get(&revision.uri);
                let took = model.map_or(SOON, |model| model.fetch);
                let result = fetched(&revision.uri, model);
                Next::Hear(took, Event::Fetched { revision: revision.id.clone(), ticket, result })
            }
            Effect::Load { revision, ticket, .. } => {
                let model = models.get(&revision.uri);
                let took = model.map_or(SOON, |model| model.load);
                Next::Hear(took, Event::Loaded { revision: revision.id.clone(), ticket, result: loaded(model) })
            }
            Effect::Validate { revision, ticket, .. } => {
                Next::Hear(SOON, Event::Validated { revision, ticket, result: Ok(()) })
            }
            Effect::Announce { revision, .. } => {
                self.callable.insert(revision);
                return None;
            }
            Effect::Drain { revision, .. } => {
                self.callable.remove(&revision);
                Next::Hear(SOON, Event::Drained { revision })
            }
            Effect::Unload { revision } => Next::Hear(SOON, Event::Unloaded { revision }),
            Effect::Report(change) => Next::Report(change),
            Effect::Forget { .. } | Effect::Reconfigure { .. } => return None,
        })
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
            Ok(Artifact { path: PathBuf::from("artifact"), digest, size: ByteSize(model.memory.0 / 2) })
        }
    }
}

fn loaded(model: Option<&Model>) -> Result<Facts, Fault> {
    let Some(model) = model else { return Err(fault(FailureCategory::Internal)) };
    match model.fails {
        Some(category) => Err(fault(category)),
        None => Ok(Facts { memory: model.memory, measured: true, signature: Arc::default(), note: None }),
    }
}
