//! The paths of the protocol's methods, as clients and other nodes call them.

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
