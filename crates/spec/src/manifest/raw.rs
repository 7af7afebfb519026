//! The hub version of a manifest, field by field: the single definition. The JSON schema, the checker and
//! `docs/manifest.md` are made from these structs; their doc comments are its text. Dialects convert to and from them.

mod alias;
mod card;
mod copies;
mod environment;
mod function;
mod limits;
mod place;
mod runtime;
mod written;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    alias::{AliasKind, RawAlias, RawAliasSpec, RawSticky, RawTarget, StickyBy, StickyWord},
    card::RawCard,
    copies::{RawRegion, RawReplicas, RawScaling, RawSecondCopy, RegionRange, ReplicaRange},
    environment::RawEnvironment,
    function::{
        FunctionAuthLevel, FunctionBundler, FunctionKind, FunctionModel, FunctionPlatform, FunctionType, RawFunction,
        RawFunctionBuild, RawFunctionLimits, RawFunctionRuntime, RawFunctionSpec, RawFunctionTarget,
    },
    limits::RawLimits,
    place::{RawGpu, RawPlacement, RawResources, RawSelector, RawSpread},
    runtime::{RawIsolation, RawNetwork, RawRuntime},
};
pub use super::scalar::{
    Decimal, Format, FormatVersion, HostPort, InNamespace, Label, Location, Name, Problem, Sha256, Size, Span, Whole,
    Word,
};
use crate::{ModelFormat, PinnedCard, TensorSpec};

/// Declares one model and how it is to be served.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawDeployment {
    /// The version of this format.
    pub api_version: ApiVersion,
    /// The kind of object.
    pub kind: Kind,
    /// Name, namespace, labels and annotations.
    pub metadata: Metadata,
    /// The model and its settings.
    pub spec: RawSpec,
    /// Set by the server and ignored here, so that what `berth get` printed can be applied again.
    #[serde(default, skip_serializing)]
    pub status: Option<serde_json::Value>,
}

/// The version of the format.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
pub enum ApiVersion {
    /// The current one.
    #[serde(rename = "berth.dev/v1")]
    V1,
}

/// The kind of a manifest that declares a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
pub enum Kind {
    /// A model and how it is served.
    ModelDeployment,
}

/// Name, namespace, labels and annotations.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// The name that clients call the model by: 1 to 253 characters, see [names](names.md).
    pub name: Name,
    /// The namespace that the name is unique in: 1 to 63 lower-case letters, digits and `-`. Not given: the namespace of
    /// the request, else `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<InNamespace>,
    /// Free labels, for `berth get -l`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Label>,
    /// Free texts for people and tools.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The folder that a relative `file:` location starts from, as a `file:` URI. Not given: the folder of the manifest's own
    /// file. `berth get -o yaml` prints it, so that its output can be applied from any folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_uri: Option<String>,
    /// If given, the change is made only if the server still has this version of the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// Set by the server and ignored here.
    #[serde(default, skip_serializing)]
    pub generation: Option<u64>,
    /// Set by the server and ignored here.
    #[serde(default, skip_serializing)]
    pub creation_timestamp: Option<String>,
    /// Set by the server and ignored here.
    #[serde(default, skip_serializing)]
    pub origin: Option<serde_json::Value>,
    /// Set by the server and ignored here.
    #[serde(default, skip_serializing)]
    pub deleting: Option<bool>,
}

/// A model and its settings.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawSpec {
    /// The model: format, location and version.
    pub model: RawModel,
    /// Number of replicas, or a range. `{min: 0}` is on demand: loaded by the first request, paged out when
    /// its space is needed. `0` keeps the deployment but loads nothing.
    #[serde(default)]
    pub replicas: RawReplicas,
    /// An on-demand deployment without requests for this long is paged out, even if there is room. Not given: only when its
    /// space is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_after: Option<Span>,
    /// When memory is short, models of lower priority give way to models of higher priority.
    #[serde(default = "default_priority")]
    pub priority: Whole<1, 100>,
    /// Resources of one replica. Memory that is not given is predicted from the artifact, then measured and remembered.
    #[serde(default)]
    pub resources: RawResources,
    /// The workers that may hold it.
    #[serde(default)]
    pub selector: RawSelector,
    /// Spread of the replicas.
    #[serde(default)]
    pub placement: RawPlacement,
    /// Once loaded, its replicas never leave to make room for other models.
    #[serde(default)]
    pub pinned: bool,
    /// Conditions for more replicas than `replicas.min`.
    #[serde(default)]
    pub scaling: RawScaling,
    /// A request may run twice: if the connection to a replica breaks, the request is sent to another one.
    #[serde(default = "default_idempotent")]
    pub idempotent: bool,
    /// Replacement of the old revision by a new one.
    #[serde(default)]
    pub rollout: RawRollout,
    /// The validation inference that a new replica must pass before it is ready: `generated` from the signature, `off`,
    /// or given.
    #[serde(default)]
    pub warmup: RawWarmup,
    /// The longest a request may take, waiting for the model included, when the client sets no deadline of its own.
    #[serde(default = "default_timeout")]
    pub timeout: Span,
    /// Limits on requests at once.
    #[serde(default)]
    pub concurrency: RawConcurrency,
    /// Limits on the use by all callers together. Each gateway counts for itself; beyond a limit requests get 429.
    #[serde(default, skip_serializing_if = "RawLimits::is_empty")]
    pub limits: RawLimits,
    /// Joining of requests into batches.
    #[serde(default)]
    pub batching: RawBatching,
    /// Settings of the engine. Changing them makes a new revision.
    #[serde(default)]
    pub runtime: RawRuntime,
    /// Any text. Changing it replaces all replicas by fresh ones of the same model, each before the old one goes.
    /// `berth rollout restart` writes the time here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Word>,
    /// For a model card: where the gateway answers in the model's own JSON beside the Open Inference Protocol. A path, or
    /// a URL whose path is meant: `https://api.acme.com/v1/sentiment` is served at `/v1/sentiment`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// A model's source.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawModel {
    /// The kind of artifact, which decides the runtime: a word such as `onnx`, or `{name: sklearn, version: "1"}`. Any
    /// format can be declared; a replica needs a worker with a runtime that takes it. `onnx` is run by the built-in engine.
    /// `python` is a model card: code, an environment and weights, run in a process of its own.
    pub format: RawFormat,
    /// The location of the artifact: `file:` (absolute, or relative to the manifest), `http:`, `https:`, `s3:`, `gs:` or
    /// `az:`; or `runtime:` for a model that a model server finds by itself. Credentials come from the environment of the
    /// worker or from the registry's secrets, never from here. Left out for a model card, which names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<Location>,
    /// The SHA-256 digest that the artifact must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256>,
    /// The version name that clients see. Not given: a hash of the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Word>,
    /// Its type, for the rules that `--model-type` sets for all models of a type. Not given: its format.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<Word>,
    /// The inputs, if the artifact does not name them, or as a check: they must agree with the artifact's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<TensorSpec>,
    /// The outputs, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<TensorSpec>,
    /// For `sklearn`, `xgboost`, `lightgbm`, `mlflow`, `pytorch` and `tensorflow`: Berth runs the model by itself, in a Python
    /// process with these packages, and answers rows of numbers. Not given: a worker needs a model server for the format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<RawEnvironment>,
    /// For format `python`: the model card as the registry pinned it, with the commits of the card and of its code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub card: Option<RawCard>,
}

/// The kind of a model's artifact.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum RawFormat {
    /// `onnx`, or `sklearn:1`.
    Text(Format),
    /// In fields.
    Fields(RawFormatFields),
}

/// A format as a mapping, with its version apart.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawFormatFields {
    /// The format's name, such as `sklearn`.
    pub name: Format,
    /// Its version. Not given: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<FormatVersion>,
}

impl RawFormat {
    /// The format that is meant. A version in the name and in its own field is one too many.
    pub fn format(&self) -> Result<ModelFormat, Problem> {
        match self {
            Self::Text(format) => Ok(format.0.clone()),
            Self::Fields(RawFormatFields { name, version: None }) => Ok(name.0.clone()),
            Self::Fields(RawFormatFields { name, version: Some(version) }) => {
                ModelFormat::new(name.0.as_str(), Some(&version.0)).map_err(|_| {
                    let message = format!("the name {:?} has a version already", name.0.as_str());
                    Problem::new(message, "write the version once, in version")
                })
            }
        }
    }
}

/// Replacement of the old revision by a new one.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawRollout {
    /// The way traffic moves.
    pub strategy: RawStrategy,
    /// The procedure if there is no room for the old and the new revision together.
    pub when_full: RawWhenFull,
    /// The longest time that requests in flight have, once a replica drains.
    pub drain_timeout: Span,
    /// The longest time for the new revision to become ready. After that it is given up, and the old one keeps serving.
    pub deadline: Span,
    /// The share of requests that the new revision gets, in percent, once it is ready; both revisions stay loaded until it is
    /// promoted. A changed number takes effect at once. Not given, or 100: the new revision gets all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<Whole<0, 100>>,
}

impl Default for RawRollout {
    fn default() -> Self {
        Self {
            strategy: RawStrategy::BlueGreen,
            when_full: RawWhenFull::Wait,
            // Long enough for long generations; a stuck request holds memory for no longer.
            drain_timeout: Span(Duration::from_secs(30)),
            // Large artifacts come over slow links in this time.
            deadline: Span(Duration::from_secs(600)),
            canary: None,
        }
    }
}

/// The way traffic moves to a new revision.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
pub enum RawStrategy {
    /// All at once, when enough replicas of the new revision are ready. Also written `blue-green`.
    #[serde(alias = "blue-green")]
    #[schemars(extend("x-aliases" = ["blue-green"]))]
    BlueGreen,
}

/// The procedure when a surge does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RawWhenFull {
    /// Keep the old one, and report it, until there is room.
    Wait,
    /// Unload the old one first; requests wait meanwhile.
    Recreate,
}

/// The validation inference of a new replica.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum RawWarmup {
    /// By a word.
    Word(WarmupWord),
    /// By a request.
    Given(WarmupRequest),
}

/// A way to warm up.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WarmupWord {
    /// One inference on zeros, shaped by the signature with variable dimensions set to 1. A model that refuses it still
    /// serves, with the condition `Validated: False`; an update of a model that answers it must answer it too.
    Generated,
    /// As `generated`, and a model that refuses it does not serve.
    Required,
    /// Ready as soon as it is loaded.
    Off,
}

/// A request that a replica must answer without an error.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WarmupRequest {
    /// Input tensors in the JSON form of the Open Inference Protocol.
    #[schemars(length(min = 1))]
    pub inputs: Vec<WarmupTensor>,
}

/// A tensor in the JSON form of the Open Inference Protocol.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WarmupTensor {
    /// The input's name.
    pub name: String,
    /// The element type.
    pub datatype: crate::Datatype,
    /// Row-major dimensions.
    pub shape: Vec<u32>,
    /// The elements, nested or flat.
    pub data: Vec<serde_json::Value>,
}

impl Default for RawWarmup {
    fn default() -> Self {
        Self::Word(WarmupWord::Generated)
    }
}

/// Limits on requests at once.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawConcurrency {
    /// Requests in one replica at once, its queue included; more are refused. Not given: the worker's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Whole<1, { u32::MAX }>>,
    /// Requests that may wait while the model is loaded; more are refused.
    pub queue: Whole<0, 100_000>,
}

impl Default for RawConcurrency {
    fn default() -> Self {
        // A burst on a cold model waits, at a few hundred bytes a request.
        Self { max: None, queue: Whole::constant(256) }
    }
}

/// Joining of requests into batches.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawBatching {
    /// The most rows in one run of the engine. Not given: the card's `interface.batch_size`, or 64 without a card. `1` turns
    /// batching off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<Whole<1, 65_536>>,
    /// The longest time that the first request of a batch waits for others. `0s`: only requests that are there already are joined.
    pub max_delay: Span,
}

impl Default for RawBatching {
    fn default() -> Self {
        Self { max_rows: None, max_delay: Span(Duration::ZERO) }
    }
}

/// The middle of the scale.
fn default_priority() -> Whole<1, 100> {
    Whole::constant(50)
}

/// Inference changes nothing, unless the author says otherwise.
fn default_idempotent() -> bool {
    true
}

/// Large models load within this time.
fn default_timeout() -> Span {
    Span(Duration::from_secs(30))
}

impl RawDeployment {
    /// A deployment of this name, without labels and annotations.
    #[must_use]
    pub const fn of(name: Name, spec: RawSpec) -> Self {
        let metadata = Metadata {
            name,
            namespace: None,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            base_uri: None,
            resource_version: None,
            generation: None,
            creation_timestamp: None,
            origin: None,
            deleting: None,
        };
        Self { api_version: ApiVersion::V1, kind: Kind::ModelDeployment, metadata, spec, status: None }
    }
}

impl RawSpec {
    /// A model with everything else at its default.
    #[must_use]
    pub fn of(model: RawModel) -> Self {
        Self {
            model,
            replicas: RawReplicas::default(),
            idle_after: None,
            priority: default_priority(),
            resources: RawResources::default(),
            selector: RawSelector::default(),
            placement: RawPlacement::default(),
            pinned: false,
            scaling: RawScaling::default(),
            idempotent: default_idempotent(),
            rollout: RawRollout::default(),
            warmup: RawWarmup::default(),
            timeout: default_timeout(),
            concurrency: RawConcurrency::default(),
            limits: RawLimits::default(),
            batching: RawBatching::default(),
            runtime: RawRuntime::default(),
            restart: None,
            endpoint: None,
        }
    }
}

impl RawModel {
    /// A model of this format at a location; everything else is left out.
    #[must_use]
    pub const fn at(format: RawFormat, uri: Location) -> Self {
        Self {
            format,
            uri: Some(uri),
            sha256: None,
            version: None,
            kind: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            environment: None,
            card: None,
        }
    }

    /// The model of a card, which names its own location.
    #[must_use]
    pub const fn of_card(card: Arc<PinnedCard>) -> Self {
        Self {
            format: RawFormat::Text(Format(ModelFormat::PYTHON)),
            uri: None,
            sha256: None,
            version: None,
            kind: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            environment: None,
            card: Some(RawCard::Pinned(card)),
        }
    }
}
