//! Claims on the runtimes of a worker that have limits of their own: memory, device memory, models.

use std::collections::HashMap;

use berth_spec::{ByteSize, RevisionId, RuntimeInfo, Spec, WorkerId, WorkerInfo, deployment::GpuNeed};

use super::Draft;
use crate::{Replica, world::TrackedDeployment};

/// The claim of one replica on its runtime.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RuntimeClaim {
    pub(crate) memory: ByteSize,
    /// By the author's word: nobody else knows it before the model runs.
    pub(crate) device_memory: ByteSize,
}

impl RuntimeClaim {
    pub(crate) fn of(memory: ByteSize, spec: &Spec) -> Self {
        Self { memory, device_memory: device_memory(spec.gpu.as_ref()) }
    }

    fn with(self, other: Self) -> Self {
        Self { memory: self.memory + other.memory, device_memory: self.device_memory + other.device_memory }
    }

    fn without(self, other: Self) -> Self {
        Self { memory: self.memory - other.memory, device_memory: self.device_memory - other.device_memory }
    }
}

fn device_memory(need: Option<&GpuNeed>) -> ByteSize {
    let of = |need: &GpuNeed| ByteSize(need.memory.unwrap_or_default().0.saturating_mul(need.count.into()));
    need.map(of).unwrap_or_default()
}

/// A replica that comes, or whose claim changes.
#[derive(Debug, Clone)]
pub(super) struct RuntimeChange {
    /// Its runtime, by its place among the worker's.
    runtime: Option<usize>,
    claim: RuntimeClaim,
}

/// A limit of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuntimeLimit {
    Memory,
    DeviceMemory,
    Models,
}

/// A runtime with limits, and the replicas in it.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeUse<'a> {
    pub(crate) runtime: &'a RuntimeInfo,
    held: HashMap<&'a RevisionId, RuntimeClaim>,
    /// The claims of all of them.
    total: RuntimeClaim,
}

impl<'a> RuntimeUse<'a> {
    fn new(runtime: &'a RuntimeInfo, held: HashMap<&'a RevisionId, RuntimeClaim>) -> Self {
        let total = held.values().fold(RuntimeClaim::default(), |sum, claim| sum.with(*claim));
        Self { runtime, held, total }
    }

    /// Tests for a replica.
    pub(crate) fn holds(&self, revision: &RevisionId) -> bool {
        self.held.contains_key(revision)
    }

    /// Claims of all replicas once some have left, and their number. `left` names each once. Thousands may be held, and this is asked
    /// for each of those that may leave: only these are looked at.
    pub(crate) fn used(&self, left: &[RevisionId]) -> (RuntimeClaim, u32) {
        let left = left.iter().filter_map(|revision| self.held.get(revision));
        let (gone, count) =
            left.fold((RuntimeClaim::default(), 0), |(sum, count), claim| (sum.with(*claim), count + 1));
        (self.total.without(gone), u32::try_from(self.held.len()).unwrap_or(u32::MAX).saturating_sub(count))
    }

    /// The first limit that is exceeded by `more` replicas with these claims together, once some have left.
    pub(crate) fn exceeded(&self, need: RuntimeClaim, more: u32, left: &[RevisionId]) -> Option<RuntimeLimit> {
        let (used, models) = self.used(left);
        let above = |used: ByteSize, limit: Option<ByteSize>| limit.is_some_and(|limit| used > limit);
        if above(used.memory + need.memory, self.runtime.memory) {
            Some(RuntimeLimit::Memory)
        } else if above(used.device_memory + need.device_memory, self.runtime.device_memory) {
            Some(RuntimeLimit::DeviceMemory)
        } else {
            self.runtime.max_models.is_some_and(|most| models + more > most).then_some(RuntimeLimit::Models)
        }
    }
}

/// The place of the runtime for a deployment's models.
fn place_of(info: &WorkerInfo, spec: &Spec) -> Option<usize> {
    info.runtimes.iter().position(|runtime| runtime.takes(&spec.model.format))
}

impl<'w> Draft<'w> {
    /// The runtime for a deployment's models, if it has limits of its own.
    pub(crate) fn limited_runtime<'a>(&'a self, worker: &'a WorkerId, spec: &Spec) -> Option<RuntimeUse<'a>> {
        let info = self.world.workers.get(worker)?.info.as_ref()?;
        let place = place_of(info, spec)?;
        info.runtimes[place].is_limited().then(|| self.runtime_use(worker, info, place))
    }

    /// Every runtime of a worker that has limits of its own.
    pub(crate) fn limited_runtimes<'a>(&'a self, worker: &'a WorkerId) -> impl Iterator<Item = RuntimeUse<'a>> {
        let info = self.world.workers.get(worker).and_then(|tracked| tracked.info.as_ref());
        info.into_iter().flat_map(move |info| {
            let limited = info.runtimes.iter().enumerate().filter(|(_, runtime)| runtime.is_limited());
            limited.map(move |(place, _)| self.runtime_use(worker, info, place))
        })
    }

    fn runtime_use<'a>(&'a self, worker: &'a WorkerId, info: &'a WorkerInfo, place: usize) -> RuntimeUse<'a> {
        let runtime = &info.runtimes[place];
        let mut held = HashMap::new();
        let Some(index) = self.world.workers.index(worker) else { return RuntimeUse::new(runtime, held) };
        let (_, tracked) = self.world.workers.at(index);
        for (revision, placed) in &tracked.assigned {
            let takes = |runtime: &RuntimeInfo| runtime.takes(&placed.revision.format);
            if info.runtimes.iter().position(takes) == Some(place) {
                let device_memory = device_memory(placed.gpu.as_ref());
                held.insert(revision, RuntimeClaim { memory: placed.claim, device_memory });
            }
        }
        let changes = self.changes.get(&index).into_iter().flat_map(|changes| &changes.in_runtimes);
        for (revision, change) in changes {
            match change {
                Some(change) if change.runtime == Some(place) => held.insert(revision, change.claim),
                _ => held.remove(revision),
            };
        }
        RuntimeUse::new(runtime, held)
    }

    /// Notes a replica that comes, leaves (`None`), or whose claim changes, where a runtime of its worker has limits.
    pub(super) fn note_in_runtime(&mut self, entry: &TrackedDeployment, replica: &Replica, claim: Option<ByteSize>) {
        let Some((draft, changes)) = self.change(&replica.worker) else { return };
        let Some(info) = &draft.tracked.info else { return };
        if !info.runtimes.iter().any(RuntimeInfo::is_limited) {
            return;
        }
        let spec = &entry.deployment.spec;
        let change =
            claim.map(|claim| RuntimeChange { runtime: place_of(info, spec), claim: RuntimeClaim::of(claim, spec) });
        changes.in_runtimes.insert(replica.revision.clone(), change);
    }
}
