//! Performs the agent's effects, each as a task or on a blocking thread. Each ends with one [`Completion`], or at once with an event.
//!
//! `acquire` gets what a replica needs, `ready` makes it callable, `retire` takes it away again.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_mesh::local::{LocalReplicas, Replica as Callable};
use berth_spec::{Breaker, CredentialSet, RevisionId, WorkerId};
use tokio::sync::{mpsc, watch};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{
    Stopped,
    acquire::{Fetched, LoadDirs},
    load_threads::LoadThreads,
    ready::BegunValidation,
    telemetry::Commands,
};
use crate::{
    agent::{Agent, Effect, Event},
    artifacts::Artifacts,
    load_times::LoadTimes,
    metrics::WorkerMetrics,
    prepare::{PreparedModel, Preparer},
    runtime::{Health, LoadRequest, LoadedModel, Runtime},
};

/// The result of an effect: an event for the agent, and what the driver retains.
pub(super) struct Completion {
    event: Event,
    update: DriverUpdate,
}

impl Completion {
    /// A completion that retains nothing.
    pub(super) fn of(event: Event) -> Self {
        Self { event, update: DriverUpdate::Nothing }
    }
}

/// Results that stay with the driver.
pub(super) enum DriverUpdate {
    Nothing,
    /// A card's code and environment.
    PreparedModel(RevisionId, u64, PreparedModel),
    /// Keeps what was fetched in the cache until it is loaded.
    Fetched(RevisionId, u64, Fetched),
    Model(RevisionId, Arc<dyn LoadedModel>),
    /// Requests that were in flight when the time for draining was up.
    Cut(u32),
}

/// All that the driver holds for one replica: its tasks, artifact, model and place in the gateway.
#[derive(Default)]
pub(super) struct ReplicaResources {
    pub(super) ticket: u64,
    /// The version name that clients see.
    pub(super) version: String,
    /// Name of the runtime that loads its model.
    pub(super) runtime: String,
    pub(super) begun: Option<Instant>,
    pub(super) fetching: Option<Instant>,
    pub(super) validating: Option<Instant>,
    /// True if it came beside another revision of its deployment that answered already.
    pub(super) reload: bool,
    pub(super) cancel: Option<CancellationToken>,
    pub(super) prepared: Option<PreparedModel>,
    pub(super) fetched: Option<Fetched>,
    pub(super) model: Option<Arc<dyn LoadedModel>>,
    /// The validation inference that follows its load, until the agent asks for it.
    pub(super) validation: Option<BegunValidation>,
    pub(super) callable: Option<Arc<Callable>>,
    /// Reports changes of health to the agent while it lives.
    pub(super) health_watch: Option<DropGuard>,
}

/// The parts that effects are performed with.
pub(super) struct Deps {
    pub(super) runtimes: Vec<Arc<dyn Runtime>>,
    pub(super) artifacts: Arc<Artifacts>,
    pub(super) preparer: Arc<Preparer>,
    pub(super) load_dirs: Arc<LoadDirs>,
    pub(super) load_threads: LoadThreads,
    pub(super) load_times: Arc<LoadTimes>,
    pub(super) local: Arc<LocalReplicas>,
    pub(super) metrics: WorkerMetrics,
    /// The credentials for stores and repositories; each use takes the latest.
    pub(super) credentials: watch::Sender<Arc<CredentialSet>>,
}

/// Performs effects and holds what the replicas consist of.
pub(super) struct EffectRunner {
    pub(super) deps: Deps,
    pub(super) completions: mpsc::Sender<Completion>,
    pub(super) tasks: TaskTracker,
    pub(super) commands: Commands,
    pub(super) slots: BTreeMap<RevisionId, ReplicaResources>,
    /// As they were told last.
    pub(super) breakers: Vec<Breaker>,
    /// Memory was short when the load was told last.
    pub(super) degraded: bool,
    pub(super) stopped: Stopped,
}

impl EffectRunner {
    pub(super) fn new(worker: WorkerId, deps: Deps, completions: mpsc::Sender<Completion>) -> Self {
        let (tasks, slots, stopped) = (TaskTracker::new(), BTreeMap::new(), Stopped::default());
        Self {
            deps,
            completions,
            tasks,
            commands: Commands::new(worker),
            slots,
            breakers: Vec::new(),
            degraded: false,
            stopped,
        }
    }

    /// Replaces the credentials for stores, repositories and package indexes; what is under way ends with the old ones.
    pub(super) fn take_credentials(&self, set: Arc<CredentialSet>) {
        let names = set.secrets.iter().map(|(name, granted)| format!("{name} ({})", granted.credential.kind()));
        let names = names.collect::<Vec<_>>().join(", ");
        tracing::info!(event = "credentials_received", generation = %set.generation, names);
        self.deps.credentials.send_replace(set);
    }

    pub(super) fn metrics(&self) -> &WorkerMetrics {
        &self.deps.metrics
    }

    /// Begins what the agent wants done; gives the event of what is done already.
    pub(super) fn perform(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Prepare { revision, ticket, blocked } => self.prepare(revision, ticket, blocked),
            Effect::Fetch { revision, ticket } => self.fetch(revision, ticket),
            Effect::Forget { revision } => {
                self.commands.forget(&revision);
                if let Some(cancel) = self.slots.remove(&revision).and_then(|slot| slot.cancel) {
                    cancel.cancel();
                }
            }
            Effect::Load { revision, ticket, artifact, serving, devices, share } => match share {
                Some(source) => self.share(&revision, ticket, &source),
                None => self.load(ticket, LoadRequest::new(revision, artifact, serving).on(devices)),
            },
            Effect::GiveUp { revision } => {
                if let Some(cancel) = self.slots.get(&revision).and_then(|slot| slot.cancel.as_ref()) {
                    cancel.cancel();
                }
            }
            Effect::Validate { revision, ticket, serving } => self.validate(revision, ticket, serving),
            Effect::Announce { revision, serving } => self.announce(&revision, &serving),
            Effect::Reconfigure { revision, serving } => {
                if let Some(model) = self.slots.get(&revision).and_then(|slot| slot.model.as_ref()) {
                    tracing::info!(event = "model_reconfigured", deployment_id = %revision.deployment(), revision = %revision);
                    model.set_serving(&serving);
                }
            }
            Effect::Drain { revision, timeout } => return self.drain(revision, timeout),
            Effect::Unload { revision } => self.unload(revision),
            Effect::Report(_) => {}
        }
        None
    }

    /// Requests that the replicas that are here have answered, well or badly.
    pub(super) fn requests(&self) -> u64 {
        let models = self.slots.values().filter_map(|slot| slot.model.as_ref());
        models.map(|model| model.statistics()).map(|sums| sums.success.count + sums.fail.count).sum()
    }

    /// The health of the models that answer, as far as they report it.
    pub(super) fn health(&self) -> Vec<(RevisionId, Health)> {
        let answering = self.slots.iter().filter(|(_, slot)| slot.callable.is_some());
        let health = answering.filter_map(|(id, slot)| Some((id, slot.model.as_ref()?.health())));
        health.filter(|(_, health)| *health != Health::default()).map(|(id, health)| (id.clone(), health)).collect()
    }

    /// Stores what the completion retains and returns its event for the agent.
    pub(super) fn absorb(&mut self, completion: Completion) -> Event {
        match completion.update {
            DriverUpdate::Nothing => {}
            DriverUpdate::Cut(requests) => self.stopped.cut += requests as usize,
            DriverUpdate::PreparedModel(revision, ticket, prepared) => {
                if let Some(slot) = self.slots.get_mut(&revision).filter(|slot| slot.ticket == ticket) {
                    slot.prepared = Some(prepared);
                }
            }
            DriverUpdate::Fetched(revision, ticket, fetched) => {
                if let Some(slot) = self.slots.get_mut(&revision).filter(|slot| slot.ticket == ticket) {
                    slot.fetched = Some(fetched);
                }
            }
            DriverUpdate::Model(revision, model) => {
                let slot = self.slots.entry(revision).or_default();
                slot.model = Some(model);
                // The engine has read it.
                slot.fetched = None;
            }
        }
        if let Event::Loaded { revision, result: Err(_), .. } = &completion.event
            && let Some(slot) = self.slots.get_mut(revision)
        {
            slot.fetched = None;
        }
        self.log_outcome(&completion.event);
        completion.event
    }

    /// The time that the replicas which answer have for their last requests.
    pub(super) fn longest_drain(&self, agent: &Agent) -> Duration {
        let times = agent.replicas().map(|(_, replica)| replica.placed.serving.drain_timeout);
        times.max().unwrap_or_default()
    }

    pub(super) async fn finish(mut self, left: usize) -> Stopped {
        self.slots.values().filter_map(|slot| slot.cancel.as_ref()).for_each(CancellationToken::cancel);
        self.tasks.close();
        if left == 0 {
            drop(self.completions);
            self.tasks.wait().await;
        }
        self.stopped.left = left;
        let Stopped { drained, cut, left } = self.stopped;
        tracing::info!(event = "worker_stopped", drained, cut, left);
        self.stopped
    }
}

pub(super) async fn complete(completions: &mpsc::Sender<Completion>, event: Event, update: DriverUpdate) {
    // The receiver ends with the driver, and then nobody needs the result.
    let _ = completions.send(Completion { event, update }).await;
}
