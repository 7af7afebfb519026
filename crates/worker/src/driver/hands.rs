//! Performs the agent's effects: each as a task or on a blocking thread, and each answers with one piece of news.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_mesh::local::{LocalReplicas, Model, Replica as Callable};
use berth_spec::{Breaker, ByteSize, CredentialSet, FailureCategory, Revision, RevisionId, Serving, WorkerId};
use tokio::sync::{mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Stopped,
    acquire::{Fetched, Shelter},
    told::{Commands, millis},
};
use crate::{
    agent::{Agent, Effect, Event},
    artifacts::{Artifact, Artifacts},
    fault::Fault,
    metrics::WorkerMetrics,
    prepare::{Kit, Preparer},
    replica::Facts,
    runtime::{Health, LoadRequest, Loaded, LoadedModel, Runtime},
};

/// How often a draining replica tells how many requests it still has.
const DRAIN_WORD: Duration = Duration::from_secs(1);
/// A validation inference that takes longer has failed. Halved, a large model's first run (which allocates) may not
/// make it on a busy machine; doubled, a stuck one holds its slot for two minutes.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(60);

/// A load that takes longer has failed. Halved, tens of gigabytes from a cold disk may not make it; doubled, a stuck
/// engine holds its slot for 40 minutes.
const LOAD_TIMEOUT: Duration = Duration::from_secs(20 * 60);

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
    stopped: Stopped,
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

    fn load(&mut self, revision: Arc<Revision>, ticket: u64, artifact: Artifact, serving: Arc<Serving>) {
        let id = revision.id.clone();
        tracing::debug!(
            event = "model_initialization_started",
            deployment_id = %id.deployment(),
            revision = %id,
            correlation_id = self.commands.of(&id),
        );
        let format = revision.format;
        let runtime = self.tools.runtimes.iter().find(|runtime| runtime.formats().contains(&format)).cloned();
        let news = self.news.clone();
        let request =
            LoadRequest { revision, artifact: artifact.path, digest: artifact.digest, serving, prepared: None };
        let equipment = request.revision.card.as_ref().map(|_| {
            let slot = self.slots.get_mut(&id);
            slot.and_then(|slot| slot.kit.take().zip(slot.fetched.take()))
        });
        let given_up = CancellationToken::new();
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.cancel = Some(given_up.clone());
        }
        let shelter = Arc::clone(&self.tools.shelter);
        self.tasks.spawn(async move {
            let loaded = match runtime {
                Some(runtime) => {
                    // A thread cannot be stopped: what it still loads after that is dropped when it is done.
                    let load = on_thread(move || {
                        let request = equipped(request, equipment, &shelter, given_up)?;
                        runtime.load(&request).map_err(Fault::from)
                    });
                    tokio::time::timeout(LOAD_TIMEOUT, load).await.unwrap_or_else(|_| Err(load_too_long()))
                }
                None => Err(Fault::new(
                    FailureCategory::Runtime,
                    format!("this worker has no runtime for {}: see its log for what is missing", format.as_str()),
                )),
            };
            let (kept, result) = match loaded {
                Ok(loaded) => {
                    let facts = facts(&loaded);
                    (Kept::Model(id.clone(), loaded.model), Ok(facts))
                }
                Err(fault) => (Kept::Nothing, Err(fault)),
            };
            tell(&news, Event::Loaded { revision: id, ticket, result }, kept).await;
        });
    }

    /// Takes the model of a twin. The twin's memory is the larger word on it; the agent counts it once.
    fn share(&mut self, revision: &Revision, ticket: u64, twin: &RevisionId) {
        let id = revision.id.clone();
        let news = self.news.clone();
        let model = self.slots.get(twin).and_then(|slot| slot.model.clone());
        if let Some(slot) = self.slots.get_mut(&id) {
            // At once: the twin may be unloaded before the agent has heard of this.
            slot.model.clone_from(&model);
        }
        self.tasks.spawn(async move {
            let (kept, result) = match model {
                Some(model) => {
                    let memory = ByteSize(model.statistics().memory);
                    let signature = Arc::clone(model.signature());
                    let facts = Facts { memory, measured: true, signature, note: None };
                    (Kept::Model(id.clone(), model), Ok(facts))
                }
                None => (Kept::Nothing, Err(Fault::internal("the model to share is gone"))),
            };
            tell(&news, Event::Loaded { revision: id, ticket, result }, kept).await;
        });
    }

    fn validate(&mut self, id: RevisionId, ticket: u64, serving: Arc<Serving>) {
        let correlation_id = self.commands.of(&id);
        tracing::debug!(event = "model_validation_started", deployment_id = %id.deployment(), revision = %id, correlation_id);
        let slot = self.slots.get_mut(&id);
        let model = slot.and_then(|slot| {
            slot.validating = Some(Instant::now());
            slot.model.clone()
        });
        let news = self.news.clone();
        self.tasks.spawn(async move {
            let result = match model {
                Some(model) => {
                    let run = on_thread(move || {
                        model.validate(&serving.warmup).map_err(Fault::from).map(|()| model.health().memory)
                    });
                    tokio::time::timeout(VALIDATION_TIMEOUT, run).await.unwrap_or_else(|_| Err(validation_too_long()))
                }
                None => Err(Fault::internal("the model to validate is gone")),
            };
            tell(&news, Event::Validated { revision: id, ticket, result }, Kept::Nothing).await;
        });
    }

    fn announce(&mut self, id: &RevisionId, serving: &Serving) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Some(model) = slot.model.clone() else { return };
        model.set_serving(serving);
        slot.callable = Some(self.tools.local.insert(id.clone(), model as Arc<dyn Model>));
        let took = slot.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        let (event, histogram) = match slot.reload {
            true => ("model_reload_success", &self.metrics().reload),
            false => ("model_load_success", &self.metrics().load),
        };
        histogram.observe(took.as_secs_f64());
        self.metrics().succeeded();
        let slot = self.slots.get(id);
        let version = slot.map(|slot| slot.version.as_str());
        tracing::info!(
            event,
            deployment_id = %id.deployment(),
            model_version = version,
            new_version = version.filter(|_| slot.is_some_and(|slot| slot.reload)),
            revision = %id,
            correlation_id = self.commands.of(id),
            total_duration_ms = millis(took),
        );
    }

    fn drain(&mut self, id: RevisionId, timeout: Duration) {
        let correlation_id = self.commands.of(&id);
        tracing::info!(event = "model_unload_started", deployment_id = %id.deployment(), revision = %id, correlation_id);
        let callable = self.slots.get(&id).and_then(|slot| slot.callable.clone());
        if let Some(callable) = &callable {
            callable.begin_drain();
        }
        let news = self.news.clone();
        self.tasks.spawn(async move {
            // The agent may have the model freed as soon as it hears: nothing of it is held here by then.
            let cut = match callable {
                Some(callable) => drained(callable, &id, timeout, &news).await,
                None => 0,
            };
            if cut > 0 {
                tracing::warn!(event = "drain_timed_out", deployment_id = %id.deployment(), revision = %id, in_flight = cut);
            }
            tell(&news, Event::Drained { revision: id }, Kept::Cut(cut)).await;
        });
    }

    /// Ends the model, unless a twin has it, and lets go of it. Requests that outlived their time to drain end with it, or
    /// keep it until they end where their engine cannot be stopped.
    fn unload(&mut self, id: RevisionId) {
        let begun = Instant::now();
        let slot = self.slots.remove(&id).unwrap_or_default();
        let correlation_id = self.commands.of(&id);
        self.commands.forget(&id);
        if slot.callable.is_some() {
            self.tools.local.remove(&id);
            self.stopped.drained += 1;
        }
        let models = || self.slots.values().filter_map(|slot| slot.model.as_ref());
        let ends = slot.model.clone().filter(|model| !models().any(|other| Arc::ptr_eq(model, other)));
        let (news, histogram) = (self.news.clone(), self.metrics().unload.clone());
        self.tasks.spawn(async move {
            // Freeing gigabytes takes a while. A panic in it leaves nothing to be done.
            let free = move || {
                if let Some(model) = &ends {
                    model.end();
                }
                drop((ends, slot.callable, slot.model, slot.fetched, slot.kit));
            };
            let _ = tokio::task::spawn_blocking(free).await;
            let took = begun.elapsed();
            histogram.observe(took.as_secs_f64());
            tracing::info!(
                event = "model_unload_success",
                deployment_id = %id.deployment(),
                revision = %id,
                correlation_id,
                duration_ms = millis(took),
            );
            tell(&news, Event::Unloaded { revision: id }, Kept::Nothing).await;
        });
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

fn facts(loaded: &Loaded) -> Facts {
    let signature = Arc::clone(loaded.model.signature());
    Facts { memory: loaded.memory, measured: loaded.measured, signature, note: loaded.note.clone() }
}

/// A card's request, with its code and environment; any other as it is.
fn equipped(
    request: LoadRequest,
    equipment: Option<Option<(Kit, Fetched)>>,
    shelter: &Shelter,
    given_up: CancellationToken,
) -> Result<LoadRequest, Fault> {
    let Some(equipment) = equipment else { return Ok(request) };
    let (kit, fetched) = equipment.ok_or_else(|| Fault::internal("a card is loaded that was not prepared"))?;
    let (artifact, prepared) = shelter.equip(kit, &request.revision, &request.artifact, fetched)?;
    Ok(LoadRequest { artifact, prepared: Some(Arc::new(prepared.until(given_up))), ..request })
}

fn load_too_long() -> Fault {
    let minutes = LOAD_TIMEOUT.as_secs() / 60;
    Fault::new(
        FailureCategory::Timeout,
        format!(
            "loading took longer than {minutes} min: check the machine's disk and memory; a restart frees the thread"
        ),
    )
}

fn validation_too_long() -> Fault {
    let seconds = VALIDATION_TIMEOUT.as_secs();
    Fault::new(
        FailureCategory::Validation,
        format!(
            "the validation inference took longer than {seconds} s: give a smaller one (spec.warmup), or turn it off"
        ),
    )
}

pub(super) async fn tell(news: &mpsc::Sender<News>, event: Event, kept: Kept) {
    // The driver is gone only when nobody needs the news.
    let _ = news.send(News { event, kept }).await;
}

async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Fault::internal(format!("the runtime panicked: {error}"))),
    }
}

/// Waits for the last request; returns how many are left when the time is up.
async fn drained(callable: Arc<Callable>, id: &RevisionId, timeout: Duration, news: &mpsc::Sender<News>) -> u32 {
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        let in_flight = callable.in_flight();
        if in_flight > 0 {
            tell(news, Event::Draining { revision: id.clone(), in_flight }, Kept::Nothing).await;
        }
        let word = tokio::time::Instant::now() + DRAIN_WORD;
        tokio::select! {
            () = callable.drained() => return 0,
            () = tokio::time::sleep_until(deadline) => return callable.in_flight(),
            () = tokio::time::sleep_until(word) => {}
        }
    }
}
