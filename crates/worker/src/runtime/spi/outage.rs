//! The outage of a runtime that calls or loads did not reach.
//!
//! ```text
//! reached ──a call or a load fails──▶ watched ──for 20 s──▶ gone: its models are lost
//!    ▲                                   │                    │
//!    └───────── it takes a connection ◀──┴────────────────────┘
//! ```
//! One that is started again before that keeps its models: calls that find them missing have them loaded again.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicBool, Ordering},
};

use berth_spec::FailureCategory;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    Process,
    reach::{AGAIN, BACK_WITHIN},
};
use crate::runtime::{Health, LoadError};

/// The state of the watch, and the models that are lost with the runtime.
pub(super) struct Outage {
    watched: AtomicBool,
    gone: watch::Sender<bool>,
    models: Mutex<Vec<Weak<watch::Sender<Health>>>>,
}

impl Outage {
    pub(super) fn new() -> Self {
        Self { watched: AtomicBool::new(false), gone: watch::Sender::new(false), models: Mutex::default() }
    }

    /// Adds a model, as long as its health is kept.
    pub(super) fn concerns(&self, health: &Arc<watch::Sender<Health>>) {
        let mut models = self.models();
        models.retain(|model| model.strong_count() > 0);
        models.push(Arc::downgrade(health));
    }

    /// Returns once the runtime is gone.
    pub(super) async fn gone(&self) {
        let mut gone = self.gone.subscribe();
        drop(gone.wait_for(|gone| *gone).await);
    }

    /// Notes that the runtime is gone. Returns true for the first time.
    fn goes_on(&self, why: &LoadError) -> bool {
        for health in self.models().iter().filter_map(Weak::upgrade) {
            health.send_if_modified(|health| {
                let is_new = health.lost.is_none();
                if is_new {
                    health.lost = Some(why.clone());
                }
                is_new
            });
        }
        !self.gone.send_replace(true)
    }

    fn ends(&self) {
        self.gone.send_replace(false);
        self.watched.store(false, Ordering::Release);
    }

    fn models(&self) -> MutexGuard<'_, Vec<Weak<watch::Sender<Health>>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Watches a runtime that a call or a load did not reach, until it can be reached.
    pub(super) fn missed(self: &Arc<Self>) {
        if !self.outage.watched.swap(true, Ordering::AcqRel) {
            self.handle().spawn(watch_outage(Arc::downgrade(self)));
        }
    }

    /// The error of a load in a runtime that is gone.
    pub(super) fn unreached(&self) -> LoadError {
        LoadError::new(FailureCategory::Network, format!("the runtime {} cannot be reached", self.name))
    }
}

async fn watch_outage(of: Weak<Process>) {
    let since = Instant::now();
    while let Some(process) = of.upgrade() {
        let Err(error) = process.lines.reach().await else {
            return process.outage.ends();
        };
        // Loads need not wait as well.
        process.absence.goes_on();
        let after = since.elapsed();
        if after >= BACK_WITHIN {
            let why = process.unreached();
            if process.outage.goes_on(&why) {
                let (runtime, after_s) = (process.name.as_str(), after.as_secs());
                tracing::warn!(event = "runtime_lost", runtime, after_s, %error, "{why}: its models are lost");
            }
        }
        drop(process);
        sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn models_are_lost_once_and_loads_fail_until_the_runtime_is_back() {
        let (outage, health) = (Outage::new(), Arc::new(watch::Sender::new(Health::default())));
        let mut changes = health.subscribe();
        outage.concerns(&health);
        assert!(outage.gone().now_or_never().is_none());
        let why = LoadError::new(FailureCategory::Network, "it cannot be reached");
        assert!(outage.goes_on(&why) && !outage.goes_on(&why));
        assert!(changes.has_changed().expect("it is there"));
        assert_eq!(changes.borrow_and_update().lost, Some(why.clone()));
        assert!(!outage.goes_on(&why) && !changes.has_changed().expect("it is there"), "told once");
        assert!(outage.gone().now_or_never().is_some());
        outage.ends();
        assert!(outage.gone().now_or_never().is_none());
        drop((health, changes));
        outage.concerns(&Arc::new(watch::Sender::new(Health::default())));
        assert_eq!(outage.models().len(), 1, "the first one has ended");
    }
}
