//! The protocol's methods: their paths, as clients and other nodes call them, and the right that a call needs.

use berth_wire::access::Action;

/// The service, with the slashes around it.
pub(crate) const SERVICE: &str = "/inference.GRPCInferenceService/";
/// One inference.
pub(crate) const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
/// Many inferences on one stream, which may rest as long as its client likes.
pub(crate) const STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
/// The inputs and outputs of a model.
pub(crate) const METADATA: &str = "/inference.GRPCInferenceService/ModelMetadata";
/// The way a model is served.
pub(crate) const CONFIG: &str = "/inference.GRPCInferenceService/ModelConfig";
/// The counts and times of a model.
pub(crate) const STATISTICS: &str = "/inference.GRPCInferenceService/ModelStatistics";

/// Every method of the service, and the action that a call of it is.
pub(crate) const METHODS: [(&str, Action); 20] = [
    ("ModelInfer", Action::Infer),
    ("ModelStreamInfer", Action::Infer),
    ("ServerLive", Action::Probe),
    ("ServerReady", Action::Probe),
    ("ServerMetadata", Action::ReadServer),
    ("ModelReady", Action::ReadModels),
    ("ModelMetadata", Action::ReadModels),
    ("ModelConfig", Action::ReadModels),
    ("ModelStatistics", Action::ReadModels),
    ("RepositoryIndex", Action::ReadModels),
    ("RepositoryModelLoad", Action::LoadModels),
    ("RepositoryModelUnload", Action::LoadModels),
    ("SystemSharedMemoryStatus", Action::OperateFleet),
    ("SystemSharedMemoryRegister", Action::OperateFleet),
    ("SystemSharedMemoryUnregister", Action::OperateFleet),
    // An extension that is not served.
    ("CudaSharedMemoryStatus", Action::ReadServer),
    ("CudaSharedMemoryRegister", Action::ReadServer),
    ("CudaSharedMemoryUnregister", Action::ReadServer),
    // To read them; a change asks for more where it is known.
    ("TraceSetting", Action::ReadServer),
    ("LogSettings", Action::ReadServer),
];
