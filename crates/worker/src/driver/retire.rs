//! Takes a replica away: no new request, a while for those in flight, then the model goes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use berth_mesh::local::Replica as Callable;
use berth_spec::RevisionId;
use tokio::sync::mpsc;

use super::{
    effects::{Completion, DriverUpdate, EffectRunner, complete},
    telemetry::millis,
};
use crate::{
    agent::{Event, of_deployment},
    runtime::LoadedModel,
};

/// The interval at which a draining replica reports the requests that it still has: people who watch see it move.
const DRAIN_WORD: Duration = Duration::from_secs(1);

/// The longest wait for the gateway to take in that a replica is gone. It hears of that together with the worker; where no controller
/// has said so, because the worker stops or has lost the model, it hears later.
const ROUTE_WAIT: Duration = Duration::from_millis(100);

impl EffectRunner {
    /// Lets a replica finish its requests. Gives the event of its end at once where there are none: an unload then begins while the
    /// replica that takes its place is being fetched.
    pub(super) fn drain(&mut self, id: RevisionId, timeout: Duration) -> Option<Event> {
        let correlation_id = self.commands.of(&id);
        tracing::info!(event = "model_unload_started", deployment_id = %id.deployment(), revision = %id, correlation_id);
        let callable = self.slots.get(&id).and_then(|slot| slot.callable.clone());
        if let Some(callable) = &callable {
            callable.begin_drain();
        }
        let Some(callable) = callable.filter(|callable| callable.in_flight() > 0) else {
            return Some(Event::Drained { revision: id });
        };
        let completions = self.completions.clone();
        self.tasks.spawn(async move {
            // The agent may have the model freed as soon as it hears: nothing of it is held here by then.
            let cut = drained(callable, &id, timeout, &completions).await;
            if cut > 0 {
                tracing::warn!(event = "drain_timed_out", deployment_id = %id.deployment(), revision = %id, in_flight = cut);
            }
            complete(&completions, Event::Drained { revision: id }, DriverUpdate::Cut(cut)).await;
        });
        None
    }

    /// Ends the model, unless another replica shares it, and lets go of it. Requests that outlived their time to drain end with it, or
    /// keep it until they end where their engine cannot be stopped.
    pub(super) fn unload(&mut self, id: RevisionId) {
        let begun = Instant::now();
        let slot = self.slots.remove(&id).unwrap_or_default();
        let correlation_id = self.commands.of(&id);
        self.commands.unloaded(&id);
        if slot.callable.is_some() {
            self.deps.local.remove(&id);
            self.stopped.drained += 1;
        }
        // Only replicas of one deployment share.
        let shares = |model: &Arc<dyn LoadedModel>| {
            let mut others = of_deployment(&self.slots, id.deployment()).filter_map(|(_, slot)| slot.model.as_ref());
            others.any(|other| Arc::ptr_eq(model, other))
        };
        let ends = slot.model.clone().filter(|model| !shares(model));
        let (completions, histogram) = (self.completions.clone(), self.metrics().unload.clone());
        let local = Arc::clone(&self.deps.local);
        self.tasks.spawn(async move {
            // Else the thread that changes the route frees it, and waits for a load under way to do that.
            if let Some(callable) = &slot.callable {
                let _ = tokio::time::timeout(ROUTE_WAIT, local.released(callable)).await;
            }
            // Freeing gigabytes takes a while. A panic in it leaves nothing to be done.
            let free = move || {
                if let Some(model) = &ends {
                    model.end();
                }
                drop((ends, slot.callable, slot.model, slot.fetched, slot.prepared));
            };
            let _ = tokio::task::spawn_blocking(free).await;
            // A validation inference that nobody asked for holds the model until it ends.
            if let Some(validation) = slot.validation {
                validation.pending.outcome().await;
            }
            let took = begun.elapsed();
            histogram.observe(took.as_secs_f64());
            tracing::info!(
                event = "model_unload_success",
                deployment_id = %id.deployment(),
                revision = %id,
                correlation_id,
                duration_ms = millis(took),
            );
            complete(&completions, Event::Unloaded { revision: id }, DriverUpdate::Nothing).await;
        });
    }
}

/// Waits for the last request; returns how many are left when the time is up.
async fn drained(
    callable: Arc<Callable>,
    id: &RevisionId,
    timeout: Duration,
    completions: &mpsc::Sender<Completion>,
) -> u32 {
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        let in_flight = callable.in_flight();
        if in_flight > 0 {
            complete(completions, Event::Draining { revision: id.clone(), in_flight }, DriverUpdate::Nothing).await;
        }
        let word = tokio::time::Instant::now() + DRAIN_WORD;
        tokio::select! {
            () = callable.drained() => return 0,
            () = tokio::time::sleep_until(deadline) => return callable.in_flight(),
            () = tokio::time::sleep_until(word) => {}
        }
    }
}
