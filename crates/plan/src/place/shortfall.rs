//! Shortfall of a worker for a replica, and the resources that evictions give back.

use std::collections::BTreeMap;

use berth_spec::{ByteSize, Gpu, RevisionId, Time, WorkerId, deployment::GpuNeed};

use super::Rejection;
use crate::{
    claim::{self, Cores, RuntimeClaim, RuntimeTotal, gpus},
    draft::{Draft, RuntimeLimit, RuntimeUse, WorkerDraft},
    world::TrackedDeployment,
};

/// Resources that a worker lacks for one replica; nothing, if it has room.
#[derive(Debug)]
pub(super) struct Shortfall<'a> {
    pub(super) worker: &'a WorkerId,
    need: Need<'a>,
    memory: ByteSize,
    cores: Cores,
    models: u32,
    /// The devices, and who claims of them; `None`: enough of them are left, or none is needed.
    gpus: Option<Gpus<'a>>,
    /// The runtime, where it has limits of its own and not enough is left of them.
    runtime: Option<InRuntime<'a>>,
}

/// Resources of one replica.
#[derive(Debug, Clone, Copy)]
struct Need<'a> {
    memory: ByteSize,
    cores: Cores,
    gpu: Option<&'a GpuNeed>,
}

#[derive(Debug)]
struct Gpus<'a> {
    need: &'a GpuNeed,
    devices: &'a [Gpu],
    held: BTreeMap<&'a RevisionId, &'a GpuNeed>,
}

impl Gpus<'_> {
    /// Devices that will do once some have left.
    fn spare(&self, left: &[RevisionId]) -> u32 {
        let held = self.held.iter().filter(|(revision, _)| !left.contains(revision)).map(|(_, need)| *need);
        gpus::spare(self.devices, held, self.need)
    }
}

/// One more replica in a runtime with limits.
#[derive(Debug)]
struct InRuntime<'a> {
    held: RuntimeUse<'a>,
    need: RuntimeClaim,
}

impl InRuntime<'_> {
    /// The limit that it would exceed once some have left.
    fn exceeded(&self, left: RuntimeTotal) -> Option<RuntimeLimit> {
        self.held.exceeded(self.need, 1, left)
    }

    /// The reason why there is no room for it, where `now` may leave, and `both` from `again` on.
    fn rejection(&self, now: &Freed, both: &Freed, again: Time) -> Rejection {
        let runtime = self.held.runtime;
        let limit = self.exceeded(both.in_runtime).or_else(|| self.exceeded(now.in_runtime));
        let used = [RuntimeTotal::default(), now.in_runtime, both.in_runtime].map(|left| self.held.used(left));
        let sizes = |of: fn(&RuntimeClaim) -> ByteSize, total: Option<ByteSize>| {
            let [all, after, last] = used.map(|total| of(&total.claims));
            let total = total.unwrap_or_default();
            (of(&self.need), total - all, all - after, after - last, total)
        };
        let short = match limit {
            Some(RuntimeLimit::Models) => {
                let [_, after, last] = used.map(|total| total.models);
                Rejection::Models { max: runtime.max_models.unwrap_or_default(), busy: after - last, again }
            }
            Some(RuntimeLimit::DeviceMemory) => {
                let (need, free, evictable, busy, total) = sizes(|claim| claim.device_memory, runtime.device_memory);
                Rejection::DeviceMemory { need, free, evictable, busy, again, total }
            }
            Some(RuntimeLimit::Memory) | None => {
                let (need, free, evictable, busy, total) = sizes(|claim| claim.memory, runtime.memory);
                Rejection::Memory { need, free, evictable, busy, again, total }
            }
        };
        Rejection::InRuntime { runtime: runtime.name.clone(), short: Box::new(short) }
    }
}

/// Resources that one replica gives back when it leaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) revision: &'a RevisionId,
    pub(super) memory: ByteSize,
    pub(super) cores: Cores,
    /// Of the runtime that is short, if it is in that.
    in_runtime: Option<RuntimeClaim>,
}

/// Resources that replicas give back when they leave.
#[derive(Debug, Clone, Default)]
pub(super) struct Freed {
    pub(super) memory: ByteSize,
    cores: Cores,
    in_runtime: RuntimeTotal,
    pub(super) revisions: Vec<RevisionId>,
}

impl Freed {
    pub(super) fn add(&mut self, given: &Given<'_>) {
        self.memory += given.memory;
        self.cores = self.cores + given.cores;
        if let Some(claim) = given.in_runtime {
            self.in_runtime.add(claim);
        }
        self.revisions.push(given.revision.clone());
    }

    pub(super) fn remove(&mut self, given: &Given<'_>) {
        let Some(place) = self.revisions.iter().rposition(|revision| revision == given.revision) else { return };
        self.revisions.remove(place);
        self.memory = self.memory.saturating_sub(given.memory);
        self.cores = self.cores - given.cores;
        if let Some(claim) = given.in_runtime {
            self.in_runtime.remove(claim);
        }
    }

    fn models(&self) -> u32 {
        u32::try_from(self.revisions.len()).unwrap_or(u32::MAX)
    }
}

/// The resources that a worker may be short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Memory,
    Cores,
    Gpus,
    Models,
    Runtime,
}

impl<'a> Shortfall<'a> {
    /// Shortfall of a worker for one more replica of a revision that takes so much memory.
    pub(super) fn of(
        draft: &'a Draft<'_>,
        entry: &'a TrackedDeployment,
        revision: &RevisionId,
        candidate: &WorkerDraft<'a>,
        memory: ByteSize,
    ) -> Self {
        let spec = &entry.deployment.spec;
        let need = Need { memory, cores: claim::cores(spec), gpu: spec.gpu.as_ref() };
        let gpus = need.gpu.and_then(|need| {
            let (devices, held) = draft.gpus(candidate.id);
            let gpus = Gpus { need, devices, held };
            (gpus.spare(&[]) < need.count).then_some(gpus)
        });
        let runtime = draft.limited_runtime(candidate, entry.format(revision));
        let runtime = runtime.map(|held| InRuntime { held, need: RuntimeClaim::of(memory, spec) });
        let runtime = runtime.filter(|runtime| runtime.exceeded(RuntimeTotal::default()).is_some());
        Self {
            runtime,
            worker: candidate.id,
            need,
            memory: memory.saturating_sub(candidate.free_for(memory)),
            cores: need.cores - candidate.free_cores(),
            models: u32::from(candidate.free_models() == Some(0)),
            gpus,
        }
    }

    /// Memory alone that has to be given back on a worker.
    pub(super) fn of_memory(worker: &'a WorkerId, memory: ByteSize) -> Self {
        let need = Need { memory, cores: Cores::ZERO, gpu: None };
        Self { worker, need, memory, cores: Cores::ZERO, models: 0, gpus: None, runtime: None }
    }

    pub(super) fn is_none(&self) -> bool {
        self.memory == ByteSize::ZERO
            && self.cores == Cores::ZERO
            && self.models == 0
            && self.gpus.is_none()
            && self.runtime.is_none()
    }

    /// First resource that is still lacking once some have left, in this order.
    fn first(&self, freed: &Freed) -> Option<Resource> {
        [Resource::Memory, Resource::Cores, Resource::Gpus, Resource::Models, Resource::Runtime]
            .into_iter()
            .find(|resource| self.lacks(*resource, freed))
    }

    fn lacks(&self, resource: Resource, freed: &Freed) -> bool {
        match resource {
            Resource::Memory => self.memory > freed.memory,
            Resource::Cores => self.cores > freed.cores,
            Resource::Gpus => self.gpus.as_ref().is_some_and(|gpus| gpus.spare(&freed.revisions) < gpus.need.count),
            Resource::Models => self.models > freed.models(),
            Resource::Runtime => {
                self.runtime.as_ref().is_some_and(|runtime| runtime.exceeded(freed.in_runtime).is_some())
            }
        }
    }

    /// Returns true if enough has been given back.
    pub(super) fn is_met_by(&self, freed: &Freed) -> bool {
        self.first(freed).is_none()
    }

    /// Resources that a replica of these claims gives back.
    pub(super) fn given<'r>(&self, revision: &'r RevisionId, memory: ByteSize, cores: Cores) -> Given<'r> {
        let in_runtime = self.runtime.as_ref().and_then(|runtime| runtime.held.claim(revision));
        Given { revision, memory, cores, in_runtime }
    }

    /// Returns true if evicting one more would give back anything that is still lacking.
    pub(super) fn is_helped_by(&self, freed: &Freed, given: &Given<'_>) -> bool {
        (self.lacks(Resource::Memory, freed) && given.memory > ByteSize::ZERO)
            || (self.lacks(Resource::Cores, freed) && given.cores > Cores::ZERO)
            || self.lacks(Resource::Models, freed)
            || (self.gpus.as_ref().is_some_and(|gpus| gpus.held.contains_key(given.revision))
                && self.lacks(Resource::Gpus, freed))
            || (given.in_runtime.is_some() && self.lacks(Resource::Runtime, freed))
    }

    /// The reason why there is no room, where `now` may leave, and `both` those and others from `again` on: what is short even then, or
    /// else now.
    pub(super) fn rejection(&self, draft: &Draft<'_>, now: &Freed, both: &Freed, again: Time) -> Rejection {
        let candidate = draft.worker(self.worker);
        let info = candidate.and_then(|candidate| candidate.tracked.info.as_ref());
        match self.first(both).or_else(|| self.first(now)) {
            Some(Resource::Cores) => Rejection::Cpu {
                need: self.need.cores,
                free: candidate.map(|candidate| candidate.free_cores()).unwrap_or_default(),
                evictable: now.cores,
                busy: both.cores - now.cores,
                again,
                total: info.map(Cores::in_all).unwrap_or_default(),
            },
            Some(Resource::Models) => Rejection::Models {
                max: info.and_then(|info| info.max_models).unwrap_or_default(),
                busy: both.models() - now.models(),
                again,
            },
            Some(Resource::Runtime) if let Some(runtime) = &self.runtime => runtime.rejection(now, both, again),
            Some(Resource::Gpus) if let Some(gpus) = &self.gpus => {
                let free = gpus.spare(&[]);
                let evictable = gpus.spare(&now.revisions) - free;
                Rejection::Gpu {
                    need: gpus.need.clone(),
                    free,
                    evictable,
                    busy: gpus.spare(&both.revisions) - free - evictable,
                    again,
                    total: gpus::suiting(gpus.devices, gpus.need),
                }
            }
            _ => Rejection::Memory {
                need: self.need.memory,
                free: candidate.map_or(ByteSize::ZERO, |candidate| candidate.free_for(self.need.memory)),
                evictable: now.memory,
                busy: both.memory - now.memory,
                again,
                total: info.map_or(ByteSize::ZERO, |info| info.memory),
            },
        }
    }
}
