//! Runtimes as an operator declares them.

use std::{collections::BTreeMap, time::Duration};

use berth_spec::{ByteSize, FormatSupport};

use super::{address::Address, layout::Repository, per_model::SettingsFactory, program::Program};

/// A model server, as an operator declares it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the runtime on this worker, in messages, logs and metrics.
    pub name: String,
    /// The address at which it is told what to hold.
    pub address: Address,
    /// The address for inferences; `None`: the same.
    pub inference: Option<Address>,
    /// The address at which a server is told to read its list of models, over HTTP: OpenVINO Model Server.
    pub rest: Option<Address>,
    /// The formats that it takes; any unless somebody says.
    pub formats: Vec<FormatSupport>,
    /// Labels that selectors of its models match, over those of the worker.
    pub labels: BTreeMap<String, String>,
    /// Memory that its models may take; `None`: what it says itself.
    pub memory: Option<ByteSize>,
    /// The most models that it holds; `None`: as many as fit.
    pub max_models: Option<u32>,
    /// Device memory that its models may take; `None`: no limit of the runtime's own.
    pub device_memory: Option<ByteSize>,
    /// The time in which it must be ready. [`START`] unless somebody says.
    pub start: Duration,
    /// The times by which its failure is noticed.
    pub health: HealthCheck,
    /// The protocol by which it is told what to hold.
    pub protocol: Protocol,
    /// The program to start and to keep running; `None`: somebody else does.
    pub program: Option<Program>,
    /// Another address where it may be; the first that answers is taken.
    pub alternative: Option<Address>,
    /// Memory that is kept free of models, so that a load need not wait for what is being unloaded.
    pub unload_reserve: Reserve,
    /// UNAVAILABLE of the runtime reaches callers as INTERNAL, as ModelMesh has it.
    pub wraps_unavailable: bool,
    /// Requests that a model of limited concurrency holds at once, running and waiting.
    pub in_flight: InFlight,
    /// Bytes of one request that are kept until its answer begins, so that it can be repeated if the model was lost.
    pub kept: usize,
    /// Makes the settings of the process that each model has to itself; `None`: one process has them all.
    pub per_model: Option<SettingsFactory>,
}

impl Settings {
    /// A runtime at an address, with defaults for the rest.
    #[must_use]
    pub fn new(name: impl Into<String>, address: Address) -> Self {
        Self {
            name: name.into(),
            address,
            inference: None,
            rest: None,
            formats: vec![FormatSupport { name: FormatSupport::ANY.to_owned(), versions: Vec::new() }],
            labels: BTreeMap::new(),
            memory: None,
            max_models: None,
            device_memory: None,
            start: START,
            health: HealthCheck::default(),
            protocol: Protocol::Spi,
            program: None,
            alternative: None,
            unload_reserve: Reserve::None,
            wraps_unavailable: false,
            in_flight: InFlight::Default,
            kept: KEPT_REQUEST_BYTES,
            per_model: None,
        }
    }
}

/// The time that a runtime may take until it is ready, unless somebody says: ModelMesh's figure.
pub const START: Duration = Duration::from_secs(180);

/// The times by which it is noticed that a runtime cannot be reached, or hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    /// The time without an answer after which a runtime with models gets a health check.
    pub interval: Duration,
    /// The time in which it must answer the check.
    pub timeout: Duration,
    /// The time of unanswered health checks after which its models are lost. A load waits as long for a runtime that cannot be reached.
    pub lost_after: Duration,
    /// The same for a silent runtime while calls or loads are under way.
    pub busy_timeout: Duration,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            // A runtime with some traffic is never checked, and one without is not missed for longer.
            interval: Duration::from_secs(10),
            // Such an answer takes no work.
            timeout: Duration::from_secs(10),
            // Most servers that are started again listen by then.
            lost_after: Duration::from_secs(20),
            // One of a single thread answers nothing else as long as it works.
            busy_timeout: Duration::from_secs(300),
        }
    }
}

/// Bytes of one request that are kept, unless somebody says: the longest message that ModelMesh takes.
const KEPT_REQUEST_BYTES: usize = 16 << 20;

/// The protocol by which a runtime is told what to hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The gRPC service `mmesh.ModelRuntime` of ModelMesh.
    #[default]
    Spi,
    /// The Open Inference Protocol, with a model repository that both see.
    V2(Repository),
    /// TensorFlow Serving's own, with a model repository that both see.
    TensorFlow(Repository),
}

/// Memory of a runtime that is kept for models that are being unloaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reserve {
    /// None: a load waits until what leaves is unloaded.
    #[default]
    None,
    /// A fixed size.
    Bytes(ByteSize),
    /// By ModelMesh's rule: a quarter of a model of default size per load at once, between 1 and 10 % of the memory.
    ByLoads,
}

/// The bound on requests at once of a model whose runtime limits concurrency.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InFlight {
    /// Eight times its concurrency, at least 16, beside those that run.
    #[default]
    Default,
    /// A fixed number, running and waiting together.
    Most(usize),
    /// No bound.
    Unlimited,
}
