//! Makes a replica callable: loads its model, or shares one that is loaded, runs the validation inference, and hands it to
//! the gateway. From then on the agent is told when its process ends, and when it is up again.

use std::{
    any::Any,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use berth_mesh::local::Model;
use berth_spec::{ByteSize, FailureCategory, Revision, RevisionId, Serving};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    acquire::{Fetched, LoadDirs},
    effects::{DriverUpdate, EffectRunner, complete},
    load_threads::{Job, LoadThreads, Pending, Task},
    telemetry::millis,
};
use crate::{
    agent::Event,
    fault::Fault,
    load_times::LoadTimes,
    prepare::PreparedModel,
    replica::{Facts, Validated},
    runtime::{Health, LoadRequest, Loaded, LoadedModel, Runtime},
};

/// The time limit of a validation inference: a large model's first run, which allocates, passes on a busy machine.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(60);

/// The time limit of a load: tens of gigabytes from a cold disk pass.
const LOAD_TIMEOUT: Duration = Duration::from_secs(20 * 60);

impl EffectRunner {
    /// Loads a model with the first runtime that takes its format.
    pub(super) fn load(&mut self, ticket: u64, request: LoadRequest) {
        let id = request.revision.id.clone();
        tracing::debug!(
            event = "model_initialization_started",
            deployment_id = %id.deployment(),
            revision = %id,
            correlation_id = self.commands.of(&id),
        );
        let format = request.revision.format.clone();
        let runtime = self.deps.runtimes.iter().find(|runtime| runtime.info().takes(&format)).cloned();
        let completions = self.completions.clone();
        let equipment = request.revision.card.as_ref().map(|_| {
            let slot = self.slots.get_mut(&id);
            slot.and_then(|slot| slot.prepared.take().zip(slot.fetched.take()))
        });
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.cancel = Some(request.cancel.clone());
            slot.runtime = runtime.as_ref().map(|runtime| runtime.info().name).unwrap_or_default();
        }
        let mut request = request;
        if equipment.is_none() {
            let fetched = self.slots.get_mut(&id).and_then(|slot| slot.fetched.take());
            request.pin = fetched.map(|fetched| Arc::new(fetched) as Arc<dyn Any + Send + Sync>);
        }
        let Some(runtime) = runtime else {
            let fault = Fault::new(
                FailureCategory::Runtime,
                format!("this worker has no runtime for {format}: see its log for what is missing"),
            );
            let loaded = Event::Loaded { revision: id, ticket, result: Err(fault) };
            self.tasks.spawn(async move { complete(&completions, loaded, DriverUpdate::Nothing).await });
            return;
        };
        let validation = self.begin_validation(&id, &request.serving);
        let (load_dirs, load_threads) = (Arc::clone(&self.deps.load_dirs), self.deps.load_threads.clone());
        let times = Arc::clone(&self.deps.load_times);
        self.tasks.spawn(async move {
            let (kind, size) = ((runtime.info().name, format.to_string()), request.size);
            let job = load_job(&*runtime, &times, &kind, &request);
            let load = move || {
                let request = equipped(request, equipment, &load_dirs)?;
                runtime.load(&request).map_err(Fault::from)
            };
            let began = Instant::now();
            let loaded = load_then_validate(&load_threads, job, load, validation).await;
            let (update, result) = match loaded {
                Ok(loaded) => {
                    times.took(kind, size, began.elapsed());
                    let facts = facts(&loaded);
                    (DriverUpdate::Model(id.clone(), loaded.model), Ok(facts))
                }
                Err(fault) => (DriverUpdate::Nothing, Err(fault)),
            };
            complete(&completions, Event::Loaded { revision: id, ticket, result }, update).await;
        });
    }

    /// Prepares the validation inference of a model that is about to be loaded: the thread that loads it goes on with that. The agent
    /// asks for it once it has heard of the load, which costs two switches of threads less this way.
    fn begin_validation(&mut self, id: &RevisionId, serving: &Arc<Serving>) -> Option<Validating> {
        let slot = self.slots.get_mut(id)?;
        let (task, pending) = self.deps.load_threads.begin(validation_job(slot.runtime.clone())).ok()?;
        slot.validation = Some(BegunValidation { serving: Arc::clone(serving), pending });
        Some((task, Arc::clone(serving)))
    }

    /// Shares the model of another replica. Its memory is counted once.
    pub(super) fn share(&mut self, revision: &Revision, ticket: u64, source: &RevisionId) {
        let id = revision.id.clone();
        let completions = self.completions.clone();
        let (model, runtime) =
            self.slots.get(source).map(|slot| (slot.model.clone(), slot.runtime.clone())).unwrap_or_default();
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.runtime = runtime;
            // At once: the other may be unloaded before the agent hears of this.
            slot.model.clone_from(&model);
        }
        self.tasks.spawn(async move {
            let (update, result) = match model {
                Some(model) => {
                    let memory = ByteSize(model.statistics().memory);
                    let signature = model.known_signature();
                    let facts = Facts { memory, measured: true, signature, note: None, unvalidated: None };
                    (DriverUpdate::Model(id.clone(), model), Ok(facts))
                }
                None => (DriverUpdate::Nothing, Err(Fault::internal("the model to share is gone"))),
            };
            complete(&completions, Event::Loaded { revision: id, ticket, result }, update).await;
        });
    }

    pub(super) fn validate(&mut self, id: RevisionId, ticket: u64, serving: Arc<Serving>) {
        let correlation_id = self.commands.of(&id);
        tracing::debug!(event = "model_validation_started", deployment_id = %id.deployment(), revision = %id, correlation_id);
        let slot = self.slots.get_mut(&id);
        let model = slot.and_then(|slot| {
            slot.validating = Some(Instant::now());
            Some((slot.model.clone()?, slot.runtime.clone()))
        });
        // One that was begun with other settings proves nothing about these.
        let begun = self.slots.get_mut(&id).and_then(|slot| slot.validation.take());
        let begun = begun.filter(|begun| begun.serving.warmup == serving.warmup);
        let (completions, load_threads) = (self.completions.clone(), self.deps.load_threads.clone());
        self.tasks.spawn(async move {
            let outcome = match begun {
                Some(begun) => begun.pending.outcome().await,
                None => None,
            };
            let result = match (outcome, model) {
                (Some(outcome), _) => outcome,
                (None, Some((model, runtime))) => {
                    load_threads.run(validation_job(runtime), move || validated(model, &serving)).await
                }
                (None, None) => Err(Fault::internal("the model to validate is gone")),
            };
            complete(&completions, Event::Validated { revision: id, ticket, result }, DriverUpdate::Nothing).await;
        });
    }

    pub(super) fn announce(&mut self, id: &RevisionId, serving: &Serving) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Some(model) = slot.model.clone() else { return };
        model.set_serving(serving);
        let changes = model.changes();
        slot.callable = Some(self.deps.local.insert(id.clone(), model as Arc<dyn Model>));
        let health_watch = changes.map(|changes| self.watch_health(id.clone(), changes));
        let Some(slot) = self.slots.get_mut(id) else { return };
        slot.health_watch = health_watch;
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

    /// Has the agent hear how a model is whenever its process goes or is up again, until the guard is dropped.
    fn watch_health(&self, revision: RevisionId, mut changes: watch::Receiver<Health>) -> DropGuard {
        let (over, completions) = (CancellationToken::new(), self.completions.clone());
        let ends = over.clone();
        self.tasks.spawn(async move {
            // It may have died since it proved itself.
            changes.mark_changed();
            let watch_health = async {
                while changes.changed().await.is_ok() {
                    let health = changes.borrow_and_update().clone();
                    if let Some(error) = health.lost {
                        let lost = Event::Lost { revision: revision.clone(), fault: error.into() };
                        return complete(&completions, lost, DriverUpdate::Nothing).await;
                    }
                    complete(&completions, Event::Health { revision: revision.clone(), health }, DriverUpdate::Nothing)
                        .await;
                }
            };
            ends.run_until_cancelled(watch_health).await
        });
        over.drop_guard()
    }
}

/// The thread's end of a validation inference, and the settings that it is run with.
type Validating = (Task<Validated>, Arc<Serving>);

/// A validation inference that follows a load on its thread.
pub(super) struct BegunValidation {
    serving: Arc<Serving>,
    pub(super) pending: Pending<Validated>,
}

/// Loads a model on a thread that may block, which goes on with the validation inference. Gives the model as soon as it is loaded.
async fn load_then_validate(
    load_threads: &LoadThreads,
    job: Job,
    load: impl FnOnce() -> Result<Loaded, Fault> + Send + 'static,
    validation: Option<Validating>,
) -> Result<Loaded, Fault> {
    let given_up = job.cancel.clone();
    let (task, pending) = load_threads.begin(job)?;
    let validation = Arc::new(Mutex::new(validation));
    let next = Arc::clone(&validation);
    tokio::task::spawn_blocking(move || {
        let mut model = None;
        let in_time = task.run(|| {
            let loaded = load()?;
            model = Some(Arc::clone(&loaded.model));
            Ok(loaded)
        });
        let next = next.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (true, Some(model), Some((task, serving))) = (in_time && !given_up.is_cancelled(), model, next) {
            task.run(move || validated(model, &serving));
        }
    });
    let loaded =
        pending.outcome().await.unwrap_or_else(|| Err(Fault::internal("no thread loaded it: the worker ends")));
    if loaded.is_err() {
        // A thread that still loads would keep it, and whoever unloads would wait for what never begins.
        drop(validation.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
    loaded
}

/// Runs the validation inference. Lets go of the model before its result is told: the agent may have it unloaded then.
fn validated(model: Arc<dyn LoadedModel>, serving: &Serving) -> Result<Validated, Fault> {
    let outcome = model.validate(&serving.warmup)?;
    Ok(Validated { memory: model.health().memory, outcome })
}

fn load_job(runtime: &dyn Runtime, times: &LoadTimes, kind: &(String, String), request: &LoadRequest) -> Job {
    let limit = match runtime.bounds_loads() {
        true => LOAD_TIMEOUT,
        false => times.limit(kind, request.size, LOAD_TIMEOUT),
    };
    Job {
        runtime: kind.0.clone(),
        what: "loading",
        limit,
        cancel: request.cancel.clone(),
        interruptible: runtime.is_interruptible(),
        too_long: load_too_long(limit),
    }
}

fn validation_job(runtime: String) -> Job {
    Job {
        runtime,
        what: "a validation inference",
        limit: VALIDATION_TIMEOUT,
        cancel: CancellationToken::new(),
        interruptible: false,
        too_long: validation_too_long(),
    }
}

fn facts(loaded: &Loaded) -> Facts {
    let signature = loaded.model.known_signature();
    Facts { memory: loaded.memory, measured: loaded.measured, signature, note: loaded.note.clone(), unvalidated: None }
}

/// A card's request, with its code and environment; any other as it is.
fn equipped(
    request: LoadRequest,
    equipment: Option<Option<(PreparedModel, Fetched)>>,
    load_dirs: &LoadDirs,
) -> Result<LoadRequest, Fault> {
    let Some(equipment) = equipment else { return Ok(request) };
    let (prepared, fetched) = equipment.ok_or_else(|| Fault::internal("a card is loaded that was not prepared"))?;
    let (artifact, prepared) = load_dirs.equip(prepared, &request.revision, &request.artifact, fetched)?;
    Ok(LoadRequest { artifact, prepared: Some(Arc::new(prepared)), ..request })
}

fn load_too_long(limit: Duration) -> Fault {
    let (seconds, why) =
        (limit.as_secs(), if limit < LOAD_TIMEOUT { ", many times as long as others of its format" } else { "" });
    Fault::new(
        FailureCategory::Timeout,
        format!("loading took longer than {seconds} s{why}: check the machine's disk and memory"),
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use berth_spec::{
        DeploymentName,
        deployment::{Batching, Concurrency, Warmup},
    };

    use super::*;

    #[tokio::test]
    async fn nobody_waits_for_the_validation_of_a_load_that_was_given_up() {
        let threads = LoadThreads::default();
        let (task, pending) = threads.begin(validation_job("engine".to_owned())).expect("none is abandoned");
        let limit = Duration::from_millis(1);
        let job = Job { what: "loading", limit, too_long: load_too_long(limit), ..validation_job("engine".to_owned()) };
        let (go_on, stuck) = mpsc::channel::<()>();
        let load = move || {
            // It ends with the test.
            let _ = stuck.recv();
            Err(Fault::internal("it was stuck"))
        };
        let serving = Serving {
            deployment: DeploymentName::new("iris").expect("a name"),
            warmup: Warmup::Off,
            concurrency: Concurrency { max: None, queue: 0 },
            batching: Batching { max_rows: 1, max_delay: Duration::ZERO },
            drain_timeout: Duration::ZERO,
        };
        let loaded = load_then_validate(&threads, job, load, Some((task, Arc::new(serving)))).await;
        assert!(loaded.is_err());
        assert!(pending.outcome().await.is_none(), "its thread still loads, and never validates");
        drop(go_on);
    }
}
