//! Objects of KServe and ModelMesh, of files and of clusters: `InferenceService`, `Predictor`, `TrainedModel`. They are read, never
//! written. Their `ServingRuntime`s are a dialect of their own ([`serving_runtime`]).
//!
//! A field that Berth has no place for is kept by name in the annotation [`IGNORED`]; one that changes what a client gets is
//! refused. Field names: KServe 0.15 `pkg/apis/serving/v1beta1`, modelmesh-serving 0.12 `apis/serving/v1alpha1`.

mod convert;
pub mod serving_runtime;
mod table;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

pub use convert::convert;
pub use table::DIALECT;

use super::ConversionError;

/// Beginning of `apiVersion` of all these objects.
pub const GROUP: &str = "serving.kserve.io/";

/// Kinds that become deployments. Runtimes are files of workers ([`serving_runtime::KINDS`]).
pub const KINDS: [&str; 3] = ["InferenceService", "Predictor", "TrainedModel"];

/// Annotation with the fields of an object that have no effect.
pub const IGNORED: &str = "kserve.berth.dev/ignored";

/// Annotation with the kind of the object.
pub const KIND: &str = "kserve.berth.dev/kind";

/// Annotation with the runtime that the object names.
pub const RUNTIME: &str = "kserve.berth.dev/runtime";

/// The way out where a field has another form.
pub(crate) const REMEDY: &str = "docs/dialects.md lists the fields";

/// Fields that are not in the types; a map as it was written.
type UnknownFields = BTreeMap<String, Value>;

/// An object of any of these kinds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind")]
pub enum Object {
    /// `serving.kserve.io/v1beta1`.
    InferenceService(Document<ServiceSpec>),
    /// `serving.kserve.io/v1alpha1`, of ModelMesh.
    Predictor(Document<PredictorSpec>),
    /// `serving.kserve.io/v1alpha1`, of KServe.
    TrainedModel(Document<TrainedSpec>),
}

impl Object {
    /// Reads an object of a cluster. Its metadata are given apart: API servers keep more in them than manifests do.
    ///
    /// # Errors
    /// A kind that is not read, or the first field that has another form.
    pub fn read(kind: &str, metadata: Metadata, spec: &Value) -> Result<Self, ConversionError> {
        let read = match kind {
            "InferenceService" => Document::read(metadata, spec).map(Self::InferenceService),
            "Predictor" => Document::read(metadata, spec).map(Self::Predictor),
            "TrainedModel" => Document::read(metadata, spec).map(Self::TrainedModel),
            other => {
                let message = format!("{other:?} is not a kind of KServe that Berth reads");
                return Err(ConversionError::new("kind", message, format!("it reads {}", KINDS.join(", "))));
            }
        };
        read.map_err(|error| ConversionError::new("spec", error.to_string(), REMEDY))
    }
}

/// Name and spec; `status` is the server's.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct Document<S> {
    /// Name, namespace, labels and annotations.
    pub metadata: Metadata,
    /// State that people declare.
    pub spec: S,
}

impl<'v, S: Deserialize<'v>> Document<S> {
    fn read(metadata: Metadata, spec: &'v Value) -> Result<Self, serde_json::Error> {
        Ok(Self { metadata, spec: S::deserialize(spec)? })
    }
}

/// Name, namespace, labels and annotations. The rest is the server's.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct Metadata {
    /// Name of the object, which becomes the deployment's.
    pub name: String,
    /// Namespace of the object; `None`: that of the request.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Labels, which the deployment gets.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Annotations, which the deployment gets without those of `kubectl`.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// Spec of an InferenceService: its predictor. A transformer or an explainer is refused.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct ServiceSpec {
    /// The model and its scaling.
    pub predictor: ServicePredictor,
    /// `transformer`, `explainer`.
    #[serde(flatten)]
    #[schemars(skip)]
    pub others: UnknownFields,
}

/// The model of an InferenceService and its scaling.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServicePredictor {
    /// The model; `None`: it stands below the name of its framework, in `others`.
    #[serde(default)]
    pub model: Option<ServiceModel>,
    /// Fewest replicas; 0: loaded by the first request.
    #[serde(default)]
    pub min_replicas: Option<u32>,
    /// Most replicas; 0: as many as it takes.
    #[serde(default)]
    pub max_replicas: Option<u32>,
    /// Unit of `scale_target`: `concurrency`, the default, or `rps`. Others are ignored.
    #[serde(default)]
    pub scale_metric: Option<String>,
    /// Requests per replica from which there are more replicas.
    #[serde(default)]
    pub scale_target: Option<f32>,
    /// Requests at once in a replica; 0: any number.
    #[serde(default)]
    pub container_concurrency: Option<u32>,
    /// Seconds for a request.
    #[serde(default)]
    pub timeout: Option<u64>,
    /// Joining of requests into batches.
    #[serde(default)]
    pub batcher: Option<Batcher>,
    /// Share of requests that the newest revision gets, in percent.
    #[serde(default)]
    pub canary_traffic_percent: Option<u32>,
    /// Labels of the nodes, which workers must have.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    /// A framework as a key, as before `model`; settings of pods.
    #[serde(flatten)]
    #[schemars(skip)]
    pub others: UnknownFields,
}

/// Joining of requests into batches.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Batcher {
    /// Most rows in one batch.
    #[serde(default)]
    pub max_batch_size: Option<u32>,
    /// Milliseconds to wait for others.
    #[serde(default)]
    pub max_latency: Option<u64>,
}

/// A model of an InferenceService: format, location and runtime.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceModel {
    /// Framework and version.
    pub model_format: ModelFormat,
    /// Location of the model.
    #[serde(default)]
    pub storage_uri: Option<String>,
    /// Location of the model in a storage that a Secret describes.
    #[serde(default)]
    pub storage: Option<Storage>,
    /// Name of a ServingRuntime.
    #[serde(default)]
    pub runtime: Option<String>,
    /// Resources of the model's container, which one replica gets.
    #[serde(default)]
    pub resources: Resources,
    /// Settings of the container.
    #[serde(flatten)]
    #[schemars(skip)]
    pub others: UnknownFields,
}

/// A model below the name of its framework (`sklearn:`), as InferenceServices had it before `model`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FrameworkModel {
    #[serde(default)]
    storage_uri: Option<String>,
    #[serde(default)]
    storage: Option<Storage>,
    #[serde(default)]
    runtime: Option<String>,
    #[serde(default)]
    resources: Resources,
    #[serde(flatten)]
    others: UnknownFields,
}

/// A framework and its version.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct ModelFormat {
    /// `sklearn`, `onnx`, …
    pub name: String,
    /// Version of the framework; `None`: any.
    #[serde(default)]
    pub version: Option<String>,
}

/// Location of a model in a storage.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Storage {
    /// Key of the Secret `storage-config`.
    pub key: Option<String>,
    /// Path in the bucket, volume or container.
    pub path: Option<String>,
    /// `type` and `bucket`, among others.
    pub parameters: BTreeMap<String, String>,
    /// ModelMesh: a bucket.
    pub s3: Option<S3>,
    /// ModelMesh: a volume of the cluster.
    pub persistent_volume_claim: Option<VolumeClaim>,
    /// Everything else.
    #[serde(flatten)]
    #[schemars(skip)]
    pub others: UnknownFields,
}

/// A bucket, for ModelMesh.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct S3 {
    /// Key of the Secret `storage-config`.
    pub secret_key: Option<String>,
    /// Name of the bucket; `parameters` go before it.
    pub bucket: Option<String>,
}

/// A persistent volume claim, for ModelMesh.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaim {
    /// Name of the claim in the object's namespace.
    pub claim_name: String,
}

/// Resources of a container, as Kubernetes quantities. Limits go before requests.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Resources {
    /// Upper limits by resource: `cpu`, `memory`, `nvidia.com/gpu`.
    pub limits: BTreeMap<String, Value>,
    /// Resources set aside.
    pub requests: BTreeMap<String, Value>,
}

/// Spec of a Predictor of ModelMesh: one model, on demand.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PredictorSpec {
    /// Framework and version.
    pub model_type: ModelFormat,
    /// Path in the storage; `storage.path` goes before it.
    #[serde(default)]
    pub path: Option<String>,
    /// The storage that a Secret describes.
    #[serde(default)]
    pub storage: Option<Storage>,
    /// Location of the model.
    #[serde(default)]
    pub storage_uri: Option<String>,
    /// The ServingRuntime that runs it; `None`: any that takes the format.
    #[serde(default)]
    pub runtime: Option<RuntimeRef>,
    /// Everything else.
    #[serde(flatten)]
    #[schemars(skip)]
    pub others: UnknownFields,
}

/// A ServingRuntime by name.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct RuntimeRef {
    /// Name of the ServingRuntime.
    pub name: String,
}

/// Spec of a TrainedModel, which adds a model to the servers of an InferenceService.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainedSpec {
    /// The InferenceService whose servers hold it.
    pub inference_service: String,
    /// Framework, location and memory of the model.
    pub model: Trained,
}

/// A model of a TrainedModel.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trained {
    /// Framework, such as `sklearn`; its version cannot be given.
    pub framework: String,
    /// Location of the model.
    pub storage_uri: String,
    /// Memory that the model takes, a quantity.
    #[serde(default)]
    pub memory: Option<Value>,
}

#[cfg(test)]
mod tests;
