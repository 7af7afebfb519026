//! Performs the agent's effects: each as a task or on a blocking thread, and each answers with one piece of news.
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
    acquire::{Fetched, Shelter},
    told::Commands,
};
use crate::{
    agent::{Agent, Effect, Event},
    artifacts::Artifacts,
    metrics::WorkerMetrics,
    prepare::{Kit, Preparer},
    runtime::{Health, LoadedModel, Runtime},
};

/// What came of an effect: what the agent hears, and what stays in the driver's hands.
pub(super) struct News {
    event: Event,
    kept: Kept,
}

impl News {
    /// News of which nothing stays here.
    pub(super) fn of(event: Event) -> Self {
        Self { event, kept: Kept::Nothing }
    }
}

pub(super) enum Kept {
    Nothing,
    /// A card's code and environment.
    Kit(RevisionId, u64, Kit),
    /// Keeps what was fetched in the cache until it is loaded.
    Fetched(RevisionId, u64, Fetched),
    Model(RevisionId, Arc<dyn LoadedModel>),
    /// Requests that were in flight when the time for draining was up.
    Cut(u32),
}

/// What the driver holds of one replica.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) ticket: u64,
    /// The version name that clients see.
    pub(super) version: String,
    pub(super) begun: Option<Instant>,
    pub(super) fetching: Option<Instant>,
    pub(super) validating: Option<Instant>,
    /// It came beside another revision of its deployment that answered already.
    pub(super) reload: bool,
    pub(super) cancel: Option<CancellationToken>,
    pub(super) kit: Option<Kit>,
    pub(super) fetched: Option<Fetched>,
    pub(super) model: Option<Arc<dyn LoadedModel>>,
    pub(super) callable: Option<Arc<Callable>>,
    /// Has the agent hear of its process as long as this is here.
    pub(super) heeded: Option<DropGuard>,
}

/// What the hands work with.
pub(super) struct Tools {
    pub(super) runtimes: Vec<Arc<dyn Runtime>>,
    pub(super) artifacts: Arc<Artifacts>,
    pub(super) preparer: Arc<Preparer>,
    pub(super) shelter: Arc<Shelter>,
    pub(super) local: Arc<LocalReplicas>,
    pub(super) metrics: WorkerMetrics,
    /// What opens stores and repositories; who uses it takes the latest.
    pub(super) credentials: watch::Sender<Arc<CredentialSet>>,
}

/// The driver's hands.
pub(super) struct Hands {
    pub(super) tools: Tools,
    pub(super) news: mpsc::Sender<News>,
    pub(super) tasks: TaskTracker,
    pub(super) commands: Commands,
    pub(super) slots: BTreeMap<RevisionId, Slot>,
    /// As they were told last.
    pub(super) breakers: Vec<Breaker>,
    /// Memory was short when the load was told last.
    pub(super) degraded: bool,
    pub(super) stopped: Stopped,
}

impl Hands {
    pub(super) fn new(worker: WorkerId, tools: Tools, news: mpsc::Sender<News>) -> Self {
        let (tasks, slots, stopped) = (TaskTracker::new(), BTreeMap::new(), Stopped::default());
        Self {
            tools,
            news,
            tasks,
            commands: Commands::new(worker),
            slots,
            breakers: Vec::new(),
            degraded: false,
            stopped,
        }
    }

    /// What opens stores, repositories and package indexes from now on; what is under way ends with what it began with.
    pub(super) fn take_credentials(&self, set: Arc<CredentialSet>) {
        let names = set.secrets.iter().map(|(name, granted)| format!("{name} ({})", granted.credential.kind()));
        let names = names.collect::<Vec<_>>().join(", ");
        tracing::info!(event = "credentials_received", generation = %set.generation, names);
        self.tools.credentials.send_replace(set);
    }

    pub(super) fn metrics(&self) -> &WorkerMetrics {
        &self.tools.metrics
    }

    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Prepare { revision, ticket, barred } => self.prepare(revision, ticket, barred),
            Effect::Fetch { revision, ticket } => self.fetch(revision, ticket),
            Effect::Forget { revision } => {
                self.commands.forget(&revision);
                if let Some(cancel) = self.slots.remove(&revision).and_then(|slot| slot.cancel) {
                    cancel.cancel();
                }
            }
            Effect::Load { revision, ticket, artifact, serving, share } => match share {
                Some(twin) => self.share(&revision, ticket, &twin),
                None => self.load(revision, ticket, artifact, serving),
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
            Effect::Drain { revision, timeout } => self.drain(revision, timeout),
            Effect::Unload { revision } => self.unload(revision),
            Effect::Report(_) => {}
        }
    }

    /// Requests that the replicas that are here have answered, well or badly.
    pub(super) fn requests(&self) -> u64 {
        let models = self.slots.values().filter_map(|slot| slot.model.as_ref());
        models.map(|model| model.statistics()).map(|sums| sums.success.count + sums.fail.count).sum()
    }

    /// How the models are that answer, as far as that can be said of them.
    pub(super) fn health(&self) -> Vec<(RevisionId, Health)> {
        let answering = self.slots.iter().filter(|(_, slot)| slot.callable.is_some());
        let health = answering.filter_map(|(id, slot)| Some((id.clone(), slot.model.as_ref()?.health())));
        health.filter(|(_, health)| *health != Health::default()).collect()
    }

    /// Keeps what came with the news and hands on what the agent is to hear.
    pub(super) fn absorb(&mut self, news: News) -> Event {
        match news.kept {
            Kept::Nothing => {}
            Kept::Cut(requests) => self.stopped.cut += requests as usize,
            Kept::Kit(revision, ticket, kit) => {
                if let Some(slot) = self.slots.get_mut(&revision).filter(|slot| slot.ticket == ticket) {
                    slot.kit = Some(kit);
                }
            }
            Kept::Fetched(revision, ticket, fetched) => {
                if let Some(slot) = self.slots.get_mut(&revision).filter(|slot| slot.ticket == ticket) {
                    slot.fetched = Some(fetched);
                }
            }
            Kept::Model(revision, model) => {
                let slot = self.slots.entry(revision).or_default();
                slot.model = Some(model);
                // The engine has read it.
                slot.fetched = None;
            }
        }
        if let Event::Loaded { revision, result: Err(_), .. } = &news.event
            && let Some(slot) = self.slots.get_mut(revision)
        {
            slot.fetched = None;
        }
        self.log_outcome(&news.event);
        news.event
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
            drop(self.news);
            self.tasks.wait().await;
        }
        self.stopped.left = left;
        let Stopped { drained, cut, left } = self.stopped;
        tracing::info!(event = "worker_stopped", drained, cut, left);
        self.stopped
    }
}

pub(super) async fn tell(news: &mpsc::Sender<News>, event: Event, kept: Kept) {
    // The driver is gone only when nobody needs the news.
    let _ = news.send(News { event, kept }).await;
}
