//! Claims on a worker beside memory: cores and GPUs, by the present settings of the deployments.

use berth_spec::{DeploymentName, RevisionId, Spec, WorkerId, deployment::GpuNeed};

use super::{TrackedWorker, World};
use crate::claim::{Cores, Hardware};

impl TrackedWorker {
    /// Processor cores that replicas claim.
    #[must_use]
    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// The GPUs that each replica claims, of those that claim any.
    pub fn gpus_held(&self) -> impl Iterator<Item = (&RevisionId, &GpuNeed)> {
        self.hardware.iter().filter_map(|(revision, hardware)| Some((revision, hardware.gpu.as_ref()?)))
    }

    /// A replica sits down.
    pub(super) fn equip(&mut self, spec: &Spec, revision: &RevisionId) {
        let hardware = Hardware::of(spec);
        if !hardware.is_none() {
            self.cores = self.cores + hardware.cores;
            self.hardware.insert(revision.clone(), hardware);
        }
    }

    /// A replica gets up.
    pub(super) fn strip(&mut self, revision: &RevisionId) {
        if let Some(hardware) = self.hardware.remove(revision) {
            self.cores = self.cores - hardware.cores;
        }
    }
}

impl World {
    /// Counts the replicas of a deployment by what it says now.
    pub(super) fn re_equip(&mut self, name: &DeploymentName) {
        let Some(entry) = self.entries.get(name) else { return };
        let tracked: Vec<(WorkerId, RevisionId)> = entry
            .record()
            .iter()
            .flat_map(|record| &record.replicas)
            .map(|replica| (replica.worker.clone(), replica.revision.clone()))
            .collect();
        for (worker, revision) in tracked {
            if let Some(tracked) =
                self.workers.get_mut(&worker).filter(|tracked| tracked.assigned.contains_key(&revision))
            {
                tracked.strip(&revision);
                tracked.equip(&entry.deployment.spec, &revision);
            }
        }
    }
}
