//! Conversion of the first message of a stream, in which a node describes itself.

use berth_spec::{ByteSize, Gpu, WorkerId, WorkerInfo, deployment::ModelFormat};

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

    /// Description of the node as a worker, if it has that role. Unknown formats are left out.
    ///
    /// # Errors
    /// [`Unnamed`]: it has no name.
    pub fn worker_info(&self) -> Result<Option<WorkerInfo>, Unnamed> {
        let Some(worker) = self.worker.clone() else { return Ok(None) };
        let gpu = |gpu: v1::Gpu| Gpu { kind: gpu.kind, memory: ByteSize(gpu.memory) };
        Ok(Some(WorkerInfo {
            id: self.name()?,
            incarnation: self.incarnation,
            labels: worker.labels.into_iter().collect(),
            memory: ByteSize(worker.memory),
            cpus: worker.cpus,
            gpus: worker.gpus.into_iter().map(gpu).collect(),
            max_models: worker.max_models,
            formats: worker.formats.into_iter().filter_map(format_of).collect(),
            version: worker.version,
            schema_versions: worker.schema_versions,
        }))
    }
}

impl From<&WorkerInfo> for v1::WorkerInfo {
    /// Without name and incarnation, which the first word says anyway.
    fn from(info: &WorkerInfo) -> Self {
        let gpu = |gpu: &Gpu| v1::Gpu { kind: gpu.kind.clone(), memory: gpu.memory.0 };
        Self {
            labels: info.labels.clone().into_iter().collect(),
            memory: info.memory.0,
            cpus: info.cpus,
            gpus: info.gpus.iter().map(gpu).collect(),
            max_models: info.max_models,
            formats: info.formats.iter().map(|format| format_to(*format).into()).collect(),
            version: info.version.clone(),
            schema_versions: info.schema_versions.clone(),
        }
    }
}

pub(super) const fn format_to(format: ModelFormat) -> v1::ModelFormat {
    match format {
        ModelFormat::Onnx => v1::ModelFormat::Onnx,
        ModelFormat::Python => v1::ModelFormat::Python,
    }
}

pub(super) fn format_of(format: i32) -> Option<ModelFormat> {
    match v1::ModelFormat::try_from(format) {
        Ok(v1::ModelFormat::Onnx) => Some(ModelFormat::Onnx),
        Ok(v1::ModelFormat::Python) => Some(ModelFormat::Python),
        Ok(v1::ModelFormat::Unspecified) | Err(_) => None,
    }
}
