//! Makes a replica callable: loads its model, or shares one that is loaded, runs the validation inference, and hands it to
//! the gateway. From then on the agent is told when its process ends, and when it is up again.

use std::{
    any::Any,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_mesh::local::Model;
use berth_spec::{ByteSize, FailureCategory, Revision, RevisionId, Serving};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    acquire::{Fetched, LoadDirs},
    effects::{DriverUpdate, EffectRunner, complete},
    load_threads::Job,
    telemetry::millis,
};
use crate::{
    agent::Event,
    fault::Fault,
    prepare::PreparedModel,
    replica::{Facts, Validated},
    runtime::{Health, LoadRequest, Loaded},
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
        let (load_dirs, load_threads) = (Arc::clone(&self.deps.load_dirs), self.deps.load_threads.clone());
        let times = Arc::clone(&self.deps.load_times);
        self.tasks.spawn(async move {
            let loaded = match runtime {
                Some(runtime) => {
                    let (kind, size) = ((runtime.info().name, format.to_string()), request.size);
                    let limit = match runtime.bounds_loads() {
                        true => LOAD_TIMEOUT,
                        false => times.limit(&kind, size, LOAD_TIMEOUT),
                    };
                    let job = Job {
                        runtime: runtime.info().name,
                        what: "loading",
                        limit,
                        cancel: request.cancel.clone(),
                        interruptible: runtime.is_interruptible(),
                        too_long: load_too_long(limit),
                    };
                    let load = move || {
                        let request = equipped(request, equipment, &load_dirs)?;
                        runtime.load(&request).map_err(Fault::from)
                    };
                    let began = Instant::now();
                    let loaded = load_threads.run(job, load).await;
                    if loaded.is_ok() {
                        times.took(kind, size, began.elapsed());
                    }
                    loaded
                }
                None => Err(Fault::new(
                    FailureCategory::Runtime,
                    format!("this worker has no runtime for {format}: see its log for what is missing"),
                )),
            };
            let (update, result) = match loaded {
                Ok(loaded) => {
                    let facts = facts(&loaded);
                    (DriverUpdate::Model(id.clone(), loaded.model), Ok(facts))
                }
                Err(fault) => (DriverUpdate::Nothing, Err(fault)),
            };
            complete(&completions, Event::Loaded { revision: id, ticket, result }, update).await;
        });
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
        let (completions, load_threads) = (self.completions.clone(), self.deps.load_threads.clone());
        self.tasks.spawn(async move {
            let result = match model {
                Some((model, runtime)) => {
                    let job = Job {
                        runtime,
                        what: "a validation inference",
                        limit: VALIDATION_TIMEOUT,
                        cancel: CancellationToken::new(),
                        interruptible: false,
                        too_long: validation_too_long(),
                    };
                    let run = move || {
                        let outcome = model.validate(&serving.warmup)?;
                        Ok(Validated { memory: model.health().memory, outcome })
                    };
                    load_threads.run(job, run).await
                }
                None => Err(Fault::internal("the model to validate is gone")),
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
