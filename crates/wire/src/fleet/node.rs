//! Conversion of the first message of a stream, in which a node describes itself.

use berth_spec::{ByteSize, FormatSupport, Gpu, IsolationOffer, RuntimeInfo, WorkerId, WorkerInfo};

use super::v1;

/// The first word of a stream does not name its node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid node name {0:?}")]
pub struct Unnamed(String);

impl v1::Hello {
    /// Name of the sender.
    ///
    /// # Errors
    /// [`Unnamed`]: that is no name.
    pub fn name(&self) -> Result<WorkerId, Unnamed> {
        WorkerId::new(&self.node).map_err(|_| Unnamed(self.node.clone()))
    }

    /// The worker's description; `None` on other streams.
    ///
    /// # Errors
    /// [`Unnamed`]: it has no name.
    pub fn worker_info(&self) -> Result<Option<WorkerInfo>, Unnamed> {
        let Some(worker) = self.worker.clone() else { return Ok(None) };
        let gpu = |gpu: v1::Gpu| Gpu { id: gpu.id, kind: gpu.kind, memory: ByteSize(gpu.memory) };
        Ok(Some(WorkerInfo {
            id: self.name()?,
            incarnation: self.incarnation,
            labels: worker.labels.into_iter().collect(),
            memory: ByteSize(worker.memory),
            cpus: worker.cpus,
            gpus: worker.gpus.into_iter().map(gpu).collect(),
            max_models: worker.max_models,
            runtimes: worker.runtimes.into_iter().map(runtime_of).collect(),
            version: worker.version,
            schema_versions: worker.schema_versions,
        }))
    }
}

impl From<&WorkerInfo> for v1::WorkerInfo {
    /// Without name and incarnation, which the first word says anyway.
    fn from(info: &WorkerInfo) -> Self {
        let gpu = |gpu: &Gpu| v1::Gpu { id: gpu.id.clone(), kind: gpu.kind.clone(), memory: gpu.memory.0 };
        Self {
            labels: info.labels.clone().into_iter().collect(),
            memory: info.memory.0,
            cpus: info.cpus,
            gpus: info.gpus.iter().map(gpu).collect(),
            max_models: info.max_models,
            runtimes: info.runtimes.iter().map(runtime_to).collect(),
            version: info.version.clone(),
            schema_versions: info.schema_versions.clone(),
        }
    }
}

fn runtime_to(runtime: &RuntimeInfo) -> v1::Runtime {
    let RuntimeInfo { name, formats, labels, memory, max_models, device_memory, default_size, isolation } = runtime;
    let format =
        |format: &FormatSupport| v1::FormatSupport { name: format.name.clone(), versions: format.versions.clone() };
    v1::Runtime {
        name: name.clone(),
        formats: formats.iter().map(format).collect(),
        labels: labels.clone().into_iter().collect(),
        memory: memory.map(|memory| memory.0),
        max_models: *max_models,
        device_memory: device_memory.map(|memory| memory.0),
        default_size: default_size.map(|size| size.0),
        isolation: isolation
            .as_ref()
            .map(|offer| v1::IsolationOffer { most: offer.most.to_string(), lacks: offer.lacks.clone() }),
    }
}

fn runtime_of(runtime: v1::Runtime) -> RuntimeInfo {
    let v1::Runtime { name, formats, memory, max_models, device_memory, default_size, isolation, labels } = runtime;
    let format = |format: v1::FormatSupport| FormatSupport { name: format.name, versions: format.versions };
    RuntimeInfo {
        name,
        formats: formats.into_iter().map(format).collect(),
        labels: labels.into_iter().collect(),
        memory: memory.map(ByteSize),
        max_models,
        device_memory: device_memory.map(ByteSize),
        default_size: default_size.map(ByteSize),
        // A level that only a later version knows is stronger than all that this one asks for.
        isolation: isolation
            .and_then(|offer| Some(IsolationOffer { most: offer.most.parse().ok()?, lacks: offer.lacks })),
    }
}
