//! The hub version of a manifest, field by field: the single definition. The JSON schema, the checker and
//! `docs/manifest.md` are made from these structs; their doc comments are its text.

mod copies;
mod place;

use std::{collections::BTreeMap, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use self::{
    copies::{RawRegion, RawReplicas, RawScaling, RawSecondCopy, ReplicaRange},
    place::{RawGpu, RawPlacement, RawResources, RawSelector, RawSpread},
};
use super::scalar::{InNamespace, Label, Location, Name, Sha256, Span, Word};
use crate::TensorSpec;

/// Declares one model and how it is to be served.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Document {
    /// The version of this format.
    pub(crate) api_version: ApiVersion,
    /// What is declared.
    pub(crate) kind: Kind,
    /// Who it is.
    pub(crate) metadata: Metadata,
    /// What is wanted.
    pub(crate) spec: RawSpec,
    /// Set by the server and ignored here, so that what `berth get` printed can be applied again.
    #[serde(default, skip_serializing)]
    pub(crate) status: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
pub(crate) enum ApiVersion {
    #[serde(rename = "berth.dev/v1")]
    V1,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
pub(crate) enum Kind {
    ModelDeployment,
}

/// Who a deployment is.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Metadata {
    /// The name that clients call the model by: 1 to 253 characters, see [names](names.md).
    pub(crate) name: Name,
    /// The namespace that the name is unique in: 1 to 63 lower-case letters, digits and `-`. Not given: the namespace of
    /// the request, else `default`.
    #[serde(default)]
    pub(crate) namespace: Option<InNamespace>,
    /// Free labels, for `berth get -l`.
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, Label>,
    /// Free texts for people and tools.
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
    /// If given, the change is made only if the server still has this version of the deployment.
    #[serde(default)]
    pub(crate) resource_version: Option<String>,
    /// Set by the server and ignored here.
    #[serde(default, skip_serializing)]
    pub(crate) generation: Option<u64>,
    /// Set by the server and ignored here.
    #[serde(default, skip_serializing)]
    pub(crate) creation_timestamp: Option<String>,
    /// Set by the server and ignored here.
    #[serde(default, skip_serializing)]
    pub(crate) origin: Option<serde_json::Value>,
    /// Set by the server and ignored here.
    #[serde(default, skip_serializing)]
    pub(crate) deleting: Option<bool>,
}

/// What is wanted of a deployment.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawSpec {
    /// Which model.
    pub(crate) model: RawModel,
    /// How many replicas: a number, or a range. `{min: 0}` is on demand: loaded by the first request, paged out when
    /// its space is needed. `0` keeps the deployment but loads nothing.
    #[serde(default)]
    pub(crate) replicas: RawReplicas,
    /// An on-demand deployment without requests for this long is paged out even where there is room. Not given: only
    /// when space is needed.
    #[serde(default)]
    pub(crate) idle_after: Option<Span>,
    /// When memory is short, models of lower priority give way to models of higher priority.
    #[serde(default = "default_priority")]
    #[schemars(range(min = 1, max = 100))]
    pub(crate) priority: u8,
    /// What a replica needs. What is not given is predicted from the artifact, then measured and remembered.
    #[serde(default)]
    pub(crate) resources: RawResources,
    /// Which workers may hold it.
    #[serde(default)]
    pub(crate) selector: RawSelector,
    /// How its replicas lie to each other.
    #[serde(default)]
    pub(crate) placement: RawPlacement,
    /// Once loaded, its replicas never leave to make room for other models.
    #[serde(default)]
    pub(crate) pinned: bool,
    /// When there are more replicas than `replicas.min`.
    #[serde(default)]
    pub(crate) scaling: RawScaling,
    /// A request may be run twice: it is sent to another replica when the first one broke under it.
    #[serde(default = "default_idempotent")]
    pub(crate) idempotent: bool,
    /// How a new revision replaces the old one.
    #[serde(default)]
    pub(crate) rollout: RawRollout,
    /// The validation inference that a new replica must pass before it is ready: `generated` from the signature, `off`,
    /// or given.
    #[serde(default)]
    pub(crate) warmup: RawWarmup,
    /// The longest a request may take, waiting for the model included, when the client sets no deadline of its own.
    #[serde(default = "default_timeout")]
    pub(crate) timeout: Span,
    /// How many requests at once.
    #[serde(default)]
    pub(crate) concurrency: RawConcurrency,
    /// How requests are joined into batches.
    #[serde(default)]
    pub(crate) batching: RawBatching,
    /// Settings of the engine. Changing them makes a new revision.
    #[serde(default)]
    pub(crate) runtime: RawRuntime,
    /// For a model card: where the gateway answers in the model's own JSON beside the Open Inference Protocol. A path, or
    /// a URL whose path is meant: `https://api.acme.com/v1/sentiment` is served at `/v1/sentiment`.
    #[serde(default)]
    pub(crate) endpoint: Option<String>,
}

/// A model's source.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawModel {
    /// What kind of file it is, which says what runs it.
    pub(crate) format: Format,
    /// Where the artifact is: `file:` (absolute, or relative to the manifest), `http:`, `https:`, `s3:`, `gs:` or `az:`.
    /// Credentials come from the environment of the worker or from the registry's secrets, never from here. A model
    /// card names it already.
    #[serde(default)]
    pub(crate) uri: Option<Location>,
    /// The SHA-256 digest that the artifact must have.
    #[serde(default)]
    pub(crate) sha256: Option<Sha256>,
    /// The version name that clients see. Not given: a hash of the content.
    #[serde(default)]
    pub(crate) version: Option<Word>,
    /// Its type, for what operators say of all models of a type. Not given: its format.
    #[serde(default, rename = "type")]
    pub(crate) kind: Option<Word>,
    /// The inputs, where the format does not say or to make sure; they must agree with the artifact's own.
    #[serde(default)]
    pub(crate) inputs: Vec<TensorSpec>,
    /// The outputs, likewise.
    #[serde(default)]
    pub(crate) outputs: Vec<TensorSpec>,
    /// For format `python`: the model card as the registry pinned it, with the commits of the card and of its code.
    #[serde(default)]
    pub(crate) card: Option<serde_json::Value>,
}

/// The formats that a runtime exists for.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// An ONNX graph, run by the built-in engine.
    Onnx,
    /// A model card: Python code with an environment and weights, run in a process of its own.
    Python,
}

/// How a new revision replaces the old one.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RawRollout {
    /// The way traffic moves.
    pub(crate) strategy: RawStrategy,
    /// What to do when old and new do not fit beside each other.
    pub(crate) when_full: RawWhenFull,
    /// How long requests in flight have, once a replica drains.
    pub(crate) drain_timeout: Span,
    /// How long the new revision has to become ready before it is given up. The old one serves on.
    pub(crate) deadline: Span,
}

impl Default for RawRollout {
    fn default() -> Self {
        Self {
            strategy: RawStrategy::BlueGreen,
            when_full: RawWhenFull::Wait,
            // Halved, long generations are cut at every update; doubled, a stuck request holds memory that long.
            drain_timeout: Span(Duration::from_secs(30)),
            // Halved, large artifacts over slow links are given up; doubled, a bad version is reported that much later.
            deadline: Span(Duration::from_secs(600)),
        }
    }
}

/// The way traffic moves to a new revision.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
pub(crate) enum RawStrategy {
    /// All at once, when enough replicas of the new revision are ready. Also written `blue-green`.
    #[serde(alias = "blue-green")]
    #[schemars(extend("x-aliases" = ["blue-green"]))]
    BlueGreen,
}

/// What to do when a surge does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RawWhenFull {
    /// Keep the old one and say so until there is room.
    Wait,
    /// Unload the old one first; requests wait meanwhile.
    Recreate,
}

/// How a new replica proves itself.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawWarmup {
    /// By a word.
    Word(WarmupWord),
    /// By a request.
    Given(WarmupRequest),
}

/// A way to warm up.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WarmupWord {
    /// One inference on zeros, shaped by the signature with variable dimensions set to 1.
    Generated,
    /// Ready as soon as it is loaded.
    Off,
}

/// A request that a replica must answer without an error.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct WarmupRequest {
    /// Input tensors in the JSON form of the Open Inference Protocol.
    #[schemars(length(min = 1))]
    pub(crate) inputs: Vec<WarmupTensor>,
}

/// A tensor in the JSON form of the Open Inference Protocol.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct WarmupTensor {
    /// The input's name.
    pub(crate) name: String,
    /// The element type.
    pub(crate) datatype: crate::Datatype,
    /// Row-major dimensions.
    pub(crate) shape: Vec<u32>,
    /// The elements, nested or flat.
    pub(crate) data: Vec<serde_json::Value>,
}

impl Default for RawWarmup {
    fn default() -> Self {
        Self::Word(WarmupWord::Generated)
    }
}

/// How many requests at once.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RawConcurrency {
    /// Requests in one replica at once, its queue included; more are refused. Not given: the worker's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub(crate) max: Option<u32>,
    /// Requests that may wait while the model is loaded; more are refused.
    #[schemars(range(max = 100_000))]
    pub(crate) queue: u32,
}

impl Default for RawConcurrency {
    fn default() -> Self {
        // Halved, a burst on a cold model is refused early; doubled, more bodies wait in memory.
        Self { max: None, queue: 256 }
    }
}

/// How requests are joined into batches.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RawBatching {
    /// The most rows in one run of the engine; a card's `interface.batch_size` where this is left out and there is a card,
    /// else 64. `1` turns batching off.
    #[schemars(range(min = 1, max = 65_536))]
    pub(crate) max_rows: Option<u32>,
    /// How long the first request of a batch may wait for others. `0s`: only requests that are there already are joined.
    pub(crate) max_delay: Span,
}

impl Default for RawBatching {
    fn default() -> Self {
        Self { max_rows: None, max_delay: Span(Duration::ZERO) }
    }
}

/// Settings of the engine.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RawRuntime {
    /// What the engine computes on.
    pub(crate) execution_provider: Word,
    /// Threads inside one run. `0`: the worker decides.
    #[schemars(range(max = 1024))]
    pub(crate) threads: u16,
}

impl Default for RawRuntime {
    fn default() -> Self {
        Self { execution_provider: Word("cpu".to_owned()), threads: 0 }
    }
}

/// The middle of the scale.
fn default_priority() -> u8 {
    50
}

/// Inference changes nothing, unless the author says otherwise.
fn default_idempotent() -> bool {
    true
}

/// Halved, cold starts of large models time out for clients without a deadline; doubled, stuck requests linger.
fn default_timeout() -> Span {
    Span(Duration::from_secs(30))
}
