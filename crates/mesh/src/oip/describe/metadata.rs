//! Server and model metadata.

use berth_spec::{Datatype, Signature, TensorSpec};
use berth_wire::oip::{self, ServerMetadataResponse, model_metadata_response};
use serde::Serialize;

/// The body of `GET /v2`.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ServerMetadata<'a> {
    /// The server's name: `berth`.
    pub name: &'a str,
    /// The version of Berth: `1.2.3`.
    pub version: &'a str,
    /// Only those that work.
    pub extensions: &'a [&'a str],
}

impl ServerMetadata<'_> {
    /// The same as the message of `ModelMetadata` or `ServerMetadata` over gRPC.
    #[must_use]
    pub fn to_proto(&self) -> ServerMetadataResponse {
        ServerMetadataResponse {
            name: self.name.to_owned(),
            version: self.version.to_owned(),
            extensions: self.extensions.iter().map(|&name| name.to_owned()).collect(),
        }
    }
}

/// The body of `GET /v2/models/{m}[/versions/{v}]/ready`.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ModelReady<'a> {
    /// Name of the model, as the client asked for it.
    pub name: &'a str,
    /// True if it answers.
    pub ready: bool,
}

/// The body of `GET /v2/models/{m}[/versions/{v}]`.
#[derive(Debug, Clone, Serialize)]
pub struct ModelMetadata<'a> {
    /// The name that clients use.
    pub name: &'a str,
    /// The names of the versions that clients can ask for.
    pub versions: Vec<&'a str>,
    /// The runtime, e.g. `onnx_onnxv1`.
    pub platform: &'a str,
    /// The inputs, also those that may be left out.
    pub inputs: Vec<TensorMetadata<'a>>,
    /// The outputs, in the order of the signature.
    pub outputs: Vec<TensorMetadata<'a>>,
}

/// One tensor in a model's metadata.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TensorMetadata<'a> {
    /// Name of the input or output.
    pub name: &'a str,
    /// Element type in the protocol's words: `FP32`.
    pub datatype: Datatype,
    /// Its dimensions; -1 is any.
    pub shape: &'a [i64],
}

impl<'a> ModelMetadata<'a> {
    /// The metadata of a model with this signature.
    #[must_use]
    pub fn new(name: &'a str, versions: Vec<&'a str>, platform: &'a str, signature: &'a Signature) -> Self {
        let inputs = signature.inputs.iter().chain(&signature.optional);
        Self { name, versions, platform, inputs: tensors(inputs), outputs: tensors(signature.outputs.iter()) }
    }

    /// The same as the message of `ModelMetadata` or `ServerMetadata` over gRPC.
    #[must_use]
    pub fn to_proto(&self) -> oip::ModelMetadataResponse {
        let tensors = |tensors: &[TensorMetadata<'_>]| {
            tensors
                .iter()
                .map(|tensor| model_metadata_response::TensorMetadata {
                    name: tensor.name.to_owned(),
                    datatype: tensor.datatype.as_str().to_owned(),
                    shape: tensor.shape.to_vec(),
                })
                .collect()
        };
        oip::ModelMetadataResponse {
            name: self.name.to_owned(),
            versions: self.versions.iter().map(|&version| version.to_owned()).collect(),
            platform: self.platform.to_owned(),
            inputs: tensors(&self.inputs),
            outputs: tensors(&self.outputs),
            properties: Default::default(),
        }
    }
}

fn tensors<'a>(specs: impl Iterator<Item = &'a TensorSpec>) -> Vec<TensorMetadata<'a>> {
    specs.map(|spec| TensorMetadata { name: &spec.name, datatype: spec.datatype, shape: &spec.shape }).collect()
}
