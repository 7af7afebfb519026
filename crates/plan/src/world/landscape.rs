//! Watches the workers of each region for deployments that count by region: where a region has no worker for them any
//! more, their replicas belong elsewhere, and back when it has one again.

use berth_spec::{Gpu, WorkerId, WorkerInfo, WorkerState};

use super::{TrackedWorker, World};

impl TrackedWorker {
    /// Returns true if operators and the worker itself allow new replicas there.
    #[must_use]
    pub fn takes_more(&self) -> bool {
        self.cordon.is_open() && self.state == WorkerState::Serving && !self.unlisted
    }
}

/// Compares devices by kind and memory: their ids differ on every machine.
fn of_same_kinds(a: &[Gpu], b: &[Gpu]) -> bool {
    a.iter().map(|gpu| (&gpu.kind, gpu.memory)).eq(b.iter().map(|gpu| (&gpu.kind, gpu.memory)))
}

impl World {
    /// A worker came, went, or was closed. While another one like it is open in its place, nothing follows.
    pub(super) fn landscape_changed(&mut self, worker: &WorkerId) {
        let Some(info) = self.workers.get(worker).and_then(|tracked| tracked.info.as_ref()) else { return };
        let stands_in = |other: &WorkerInfo| {
            (&other.labels, &other.runtimes, other.memory) == (&info.labels, &info.runtimes, info.memory)
                && of_same_kinds(&other.gpus, &info.gpus)
                && other.schema_versions == info.schema_versions
        };
        let mut others =
            self.workers.iter().filter(|(id, tracked)| *id != worker && tracked.alive() && tracked.takes_more());
        let stood_in_for = others.any(|(_, tracked)| tracked.info.as_ref().is_some_and(stands_in));
        drop(others);
        if !stood_in_for {
            self.touch_regional();
        }
    }

    /// All deployments that count by region are looked at again.
    pub(super) fn touch_regional(&mut self) {
        let names = self.regional.clone();
        self.touch_each(&names);
    }
}
