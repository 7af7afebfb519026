//! The declaration of a model: a deployment, checked, with defaults applied in memory. Illegal ones cannot be built
//! (see [`manifest`](crate::manifest) for the file format and its errors).

mod labels;
mod sharing;

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

pub use labels::Labels;
pub use sharing::Sharing;

pub use crate::format::ModelFormat;
use crate::network::Network;
use crate::{
    ByteSize, DeploymentName, Digest, Generation, Isolation, Origin, PinnedCard, Revision, RevisionId, Signature, Time,
    UseLimits,
};

/// A deployment as the system holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Deployment {
    /// Its name: what clients call the model.
    pub name: DeploymentName,
    /// Counts changes of the spec.
    pub generation: Generation,
    /// Free labels, for `berth get -l`; they are not part of the revision.
    pub labels: Labels,
    /// The source that declared it.
    pub origin: Origin,
    /// When it was declared first.
    pub created: Time,
    /// Deletion was asked for: replicas drain, then it is forgotten.
    pub deleting: bool,
    /// The store's number of its last change; 0 where the store does not have it (yet, or any more).
    pub resource_version: u64,
    /// The declared settings.
    pub spec: Spec,
    /// The digest of the artifact where it is known before any worker fetched it: given in the manifest, or computed
    /// by the source for a local file.
    pub digest: Option<Digest>,
    /// The size of a local artifact: what its memory is predicted from until it was measured.
    pub artifact: Option<ByteSize>,
}

/// The declared settings of a deployment: a model and its [`Settings`], whose fields are read and written as if they
/// were here.
///
/// Clones share the settings, and so do deployments that went through one [`Sharing`]: most of 100,000 leave nearly
/// everything at its default. Writing to shared ones copies them.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The artifact's location and its details.
    pub model: ModelSource,
    settings: Arc<Settings>,
}

/// The declared settings of a deployment that do not depend on its model.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Bounds of the number of replicas, in all regions together.
    pub replicas: Replicas,
    /// An on-demand deployment without requests for this long is paged out even where there is room. `None`: only when space is needed.
    pub idle_after: Option<Duration>,
    /// 1 (evicted first) to 100.
    pub priority: u8,
    /// The memory of a replica by the author's word; otherwise predicted, then measured.
    pub memory: Option<ByteSize>,
    /// CPU cores, if the author says so. Counted against the worker's cores, not enforced for in-process runtimes.
    pub cpu: Option<f32>,
    /// Workers that may hold it.
    pub selector: Selector,
    /// The way in which a new revision replaces the old one.
    pub rollout: Rollout,
    /// The validation of a new replica.
    pub warmup: Warmup,
    /// The longest a request may take, parked time included, when the caller sets no deadline.
    pub timeout: Duration,
    /// The limits of requests at once.
    pub concurrency: Concurrency,
    /// The limits on its use by all callers together, for each gateway.
    pub limits: UseLimits,
    /// The joining of requests into batches.
    pub batching: Batching,
    /// Settings of the engine.
    pub runtime: RuntimeOptions,
    /// GPUs that a replica needs.
    pub gpu: Option<GpuNeed>,
    /// The model's type, for what is said of all models of a type; its format unless the author says otherwise.
    pub model_type: Option<Box<str>>,
    /// The number of replicas per region. Empty: `replicas` counts all regions together.
    pub regions: BTreeMap<String, Replicas>,
    /// The distance between copies.
    pub spread: Spread,
    /// Once loaded, its replicas are never evicted for others.
    pub pinned: bool,
    /// When there are more copies than `replicas.min`.
    pub scaling: Scaling,
    /// A request may be run twice: it is sent to another replica when the first one broke under it.
    pub idempotent: bool,
    /// Text that is part of the revision and changes nothing else: another one makes fresh replicas.
    pub restart: Option<Box<str>>,
    /// The path at which the gateway answers in the model's own JSON beside the Open Inference Protocol, e.g.
    /// `/v1/sentiment`.
    pub endpoint: Option<Box<str>>,
}

impl Spec {
    /// A spec whose settings are not shared yet.
    #[must_use]
    pub fn new(model: ModelSource, settings: Settings) -> Self {
        Self { model, settings: Arc::new(settings) }
    }
}

impl Deref for Spec {
    type Target = Settings;
    fn deref(&self) -> &Settings {
        &self.settings
    }
}

impl DerefMut for Spec {
    fn deref_mut(&mut self) -> &mut Settings {
        Arc::make_mut(&mut self.settings)
    }
}

/// A model's source: a location and the [`ModelDetails`], whose fields are read and written as if they were here.
///
/// Clones share the details, and so do deployments that went through one [`Sharing`]. Writing to shared ones copies them.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSource {
    /// Absolute: `file:///…`, `http(s)://`, `s3://`, `gs://`, `az://`.
    pub uri: Box<str>,
    details: Arc<ModelDetails>,
}

/// Details of a model beside its location. Most models of a fleet share them.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelDetails {
    /// The kind of artifact, which decides the runtime.
    pub format: ModelFormat,
    /// The digest that the artifact must have.
    pub sha256: Option<Digest>,
    /// The version name that clients see; the revision's hash when absent.
    pub version: Option<String>,
    /// The signature, where the author gives it: it must agree with the artifact's own.
    pub signature: Option<Box<Signature>>,
    /// The model card, which says how its code is run: for [`ModelFormat::PYTHON`], and only there.
    pub card: Option<Arc<PinnedCard>>,
}

impl ModelSource {
    /// A model at an absolute location. Its details are not shared yet.
    #[must_use]
    pub fn new(uri: impl Into<Box<str>>, details: ModelDetails) -> Self {
        Self { uri: uri.into(), details: Arc::new(details) }
    }
}

impl Deref for ModelSource {
    type Target = ModelDetails;
    fn deref(&self) -> &ModelDetails {
        &self.details
    }
}

impl DerefMut for ModelSource {
    fn deref_mut(&mut self) -> &mut ModelDetails {
        Arc::make_mut(&mut self.details)
    }
}

/// Bounds of the number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicas {
    /// As many are kept whatever happens. 0: on demand.
    pub min: u32,
    /// Never more.
    pub max: u32,
}

impl Replicas {
    /// Loaded by the first request and paged out again, rather than always resident.
    #[must_use]
    pub const fn on_demand(self) -> bool {
        self.min == 0 && self.max > 0
    }
}

/// GPUs that one replica needs, each of them whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuNeed {
    /// The number of devices.
    pub count: u32,
    /// The only kind that will do ([`Gpu::kind`](crate::Gpu::kind)); `None`: any.
    pub kind: Option<String>,
    /// The memory that each of them must have in all.
    pub memory: Option<ByteSize>,
}

/// The distance between copies, as far as there are enough places. Two copies of a revision are never on one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Spread {
    /// Over regions, then zones, then workers.
    #[default]
    Zone,
    /// Over workers only.
    Worker,
}

/// When there are more copies than `replicas.min`, up to `replicas.max`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Scaling {
    /// Requests per minute that one copy should have at most. `None`: the policy's.
    pub target_rate: Option<f32>,
    /// Requests in flight that one copy should have at most, on average. `None`: the policy's.
    pub target_concurrency: Option<f32>,
    /// The rule for a second copy of a model that needs only one for its load.
    pub second_copy: SecondCopy,
}

/// The rule that gives a model in regular use a second copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SecondCopy {
    /// When it was used now and also some while ago, and there is room.
    #[default]
    InRegularUse,
    /// Only under load.
    Never,
}

/// Workers that may hold a deployment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    /// Labels that the worker must have.
    pub required: BTreeMap<String, String>,
    /// Labels that make a worker better.
    pub preferred: BTreeMap<String, String>,
}

/// The way in which a new revision replaces the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rollout {
    /// The way traffic moves.
    pub strategy: Strategy,
    /// The behaviour if old and new do not fit beside each other.
    pub when_full: WhenFull,
    /// The time that requests in flight have once a replica drains.
    pub drain_timeout: Duration,
    /// The time in which the new revision must become ready before it is given up.
    pub deadline: Duration,
    /// The share of requests that the new revision gets until it is promoted; `None`: all, once it is ready.
    pub canary: Option<Percent>,
}

/// A share of requests in percent, from 0 to 99.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Percent(u8);

impl Percent {
    /// A share; `None` for all of it, and for more.
    #[must_use]
    pub fn new(percent: u32) -> Option<Self> {
        u8::try_from(percent).ok().filter(|percent| *percent < 100).map(Self)
    }

    /// The percent as a number, 0 to 99.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0.into()
    }
}

/// The way traffic moves to a new revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// All at once, when enough replicas of the new revision are ready.
    BlueGreen,
}

/// The behaviour if a surge does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// Keep the old one and say so until there is room.
    Wait,
    /// Unload the old one first: requests are parked meanwhile.
    Recreate,
}

/// The validation inference of a replica before it is ready.
#[derive(Debug, Clone, PartialEq)]
pub enum Warmup {
    /// Zeros (and empty strings) of the signature's shapes, variable dimensions set to 1. A model that refuses such a
    /// request may be right to: it serves, and the refusal is shown.
    Generated,
    /// As `Generated`, and a model that refuses the request does not serve.
    Required,
    /// A request in the JSON form of the Open Inference Protocol: `{"inputs": [...]}`.
    Given(Box<str>),
    /// None: ready as soon as it is loaded.
    Off,
}

/// The limits per replica: requests at once, and requests that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concurrency {
    /// Requests in one replica at once, queue included. `None`: the worker's default.
    pub max: Option<u32>,
    /// Requests that may be parked while the model loads.
    pub queue: u32,
}

/// The joining of requests into batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// The most rows in one run of the engine; 1 turns batching off.
    pub max_rows: u32,
    /// The longest wait of a batch's first request for others. 0: only requests that are there already are joined.
    pub max_delay: Duration,
}

/// Settings of the engine that decide what is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeOptions {
    /// The execution provider, `cpu` unless said otherwise.
    pub execution_provider: String,
    /// Threads inside one run. 0: the worker decides.
    pub threads: u16,
    /// The isolation that the model gets at least; `None`: as the worker is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// The network that the model reaches; `None`: what its card says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        Self { execution_provider: "cpu".to_owned(), threads: 0, isolation: None, network: None }
    }
}

impl Deployment {
    /// The revision that this deployment wants now.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision::of(self)
    }

    /// The id of [`revision`](Self::revision), without making the revision.
    #[must_use]
    pub fn revision_id(&self) -> RevisionId {
        Revision::id_of(self)
    }

    /// True if the artifact is a local file that its source looks at again and again: a changed file is a new revision.
    #[must_use]
    pub fn watches_file(&self) -> bool {
        let is_hashed_here = self.spec.model.sha256.is_none() && self.digest.is_some();
        is_hashed_here && self.origin.kind() == Origin::DIRECTORY
    }
}
