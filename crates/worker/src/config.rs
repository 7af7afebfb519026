//! The settings of a worker.

use std::{collections::BTreeMap, fmt, path::PathBuf, str::FromStr};

use berth_spec::{ByteSize, Gpu, Isolation, RuntimeInfo, WorkerId};

use crate::{artifacts::StorageSettings, prepare, replica::Retries, runtime::spi};

/// The disk that fetched artifacts may take unless told otherwise.
pub const DEFAULT_CACHE: ByteSize = ByteSize::gib(20);
/// The fetches at once. Each has up to [`PARALLEL_RANGES`](crate::artifacts::PARALLEL_RANGES) connections: with four, a
/// slow host does not hold up the fast ones, and models do not all come late together.
pub const DEFAULT_PARALLEL_FETCHES: usize = 4;

/// The settings of a worker.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the worker, which is unique in the cluster.
    pub id: WorkerId,
    /// Free labels that selectors match.
    pub labels: BTreeMap<String, String>,
    /// The folder that is its own; the artifact cache is `cache` in it.
    pub data: PathBuf,
    /// Memory that models may take; `None`: a share of what the machine or the control group allows
    /// (see [`capacity`](crate::capacity)).
    pub memory: Option<ByteSize>,
    /// Memory beyond [`memory`](Self::memory) that models may have while they are being unloaded; `None`: a 64th of it.
    pub unload_reserve: Option<ByteSize>,
    /// GPUs that models may use, declared by the operator; empty: those that NVML finds.
    pub gpus: Vec<Gpu>,
    /// The NVIDIA driver's library (NVML); `None`: where the dynamic linker finds it, and none is fine.
    pub nvml_library: Option<PathBuf>,
    /// The most models at once; `None`: as many as fit.
    pub max_models: Option<u32>,
    /// Disk that fetched artifacts may take; checkouts and environments of model cards may each take as much again.
    pub cache: ByteSize,
    /// Limits of single runtimes.
    pub runtime_limits: RuntimeLimits,
    /// Loads at once; `None`: half the cores, at least 1 and at most 4.
    pub parallel_loads: Option<usize>,
    /// Fetches at once. [`DEFAULT_PARALLEL_FETCHES`] unless somebody says.
    pub parallel_fetches: usize,
    /// Delays before retries of loads that failed.
    pub retries: Retries,
    /// Model servers beside the built-in runtimes. They come before those.
    pub runtimes: Vec<spi::Settings>,
    /// The ONNX Runtime library; `None`: the usual places are searched.
    pub onnx_library: Option<PathBuf>,
    /// The `AWS_*`, `GOOGLE_*` and `AZURE_*` variables of the environment: credentials and endpoints of the object
    /// stores, by the names that their own tools use.
    pub credentials: BTreeMap<String, String>,
    /// Storages that models name: `storage-config` of ModelMesh and KServe, and volumes.
    pub storages: StorageSettings,
    /// The preparation of code and environments of model cards.
    pub cards: prepare::Settings,
    /// The isolation of processes that run models' code.
    pub isolation: IsolationSettings,
}

/// The isolation of processes that run models' code.
#[derive(Debug, Clone, Default)]
pub struct IsolationSettings {
    /// The least for models in Python; `None`: a sandbox, as far as this machine allows one. What is said here is kept to: a model
    /// is not loaded where the machine lacks something.
    pub level: Option<Isolation>,
    /// The least for ONNX graphs; `None`: they run in the worker's process.
    pub onnx: Option<Isolation>,
    /// The program that makes sandboxes: one that calls [`berth_sandbox::entered`] first. `None`: there are none.
    pub launcher: Option<PathBuf>,
    /// Files and folders that every model may read, beside its own and the system's.
    pub readable: Vec<PathBuf>,
    /// The most of the network that models in a sandbox reach.
    pub network: SandboxNetwork,
    /// Ports of this node, where models do not get also if they declare them.
    pub own_ports: Vec<u16>,
}

/// The most of the network that models in a sandbox reach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SandboxNetwork {
    /// A loopback of their own.
    None,
    /// Also the hosts that are declared for them.
    #[default]
    Declared,
    /// All that the machine reaches: models share its network.
    Machine,
}

impl SandboxNetwork {
    const WORDS: [(&'static str, Self); 3] =
        [("none", Self::None), ("declared", Self::Declared), ("machine", Self::Machine)];
}

impl fmt::Display for SandboxNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::WORDS.iter().find(|(_, value)| value == self).map_or("none", |(word, _)| word))
    }
}

impl FromStr for SandboxNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| "write none, declared or machine".to_owned())
    }
}

/// Limits of runtimes, by their names, beside those of the worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeLimits(pub BTreeMap<String, RuntimeLimit>);

/// Limits that an operator sets for one runtime.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuntimeLimit {
    /// Memory that its models may take; `None`: the runtime's own limit, if it has one.
    pub memory: Option<ByteSize>,
    /// The most models that it holds at once; `None`: the runtime's own limit, if it has one.
    pub max_models: Option<u32>,
    /// Device memory that its models may take; `None`: the runtime's own limit, if it has one.
    pub device_memory: Option<ByteSize>,
}

impl RuntimeLimits {
    /// A runtime under these limits: the tighter of them and its own.
    #[must_use]
    pub fn under(&self, info: RuntimeInfo) -> RuntimeInfo {
        let Some(limit) = self.0.get(&info.name) else { return info };
        fn tighter<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
            [a, b].into_iter().flatten().min()
        }
        RuntimeInfo {
            memory: tighter(info.memory, limit.memory),
            max_models: tighter(info.max_models, limit.max_models),
            device_memory: tighter(info.device_memory, limit.device_memory),
            ..info
        }
    }
}

impl Config {
    /// Default settings for the worker `id` with the folder `data`.
    #[must_use]
    pub fn new(id: WorkerId, data: impl Into<PathBuf>) -> Self {
        Self {
            id,
            labels: BTreeMap::new(),
            data: data.into(),
            memory: None,
            unload_reserve: None,
            gpus: Vec::new(),
            nvml_library: None,
            max_models: None,
            runtime_limits: RuntimeLimits::default(),
            cache: DEFAULT_CACHE,
            parallel_loads: None,
            parallel_fetches: DEFAULT_PARALLEL_FETCHES,
            retries: Retries::default(),
            runtimes: Vec::new(),
            onnx_library: None,
            credentials: BTreeMap::new(),
            storages: StorageSettings::default(),
            cards: prepare::Settings::default(),
            isolation: IsolationSettings::default(),
        }
    }

    /// True if a variable of the environment belongs into [`credentials`](Self::credentials).
    #[must_use]
    pub fn is_credential(name: &str) -> bool {
        ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|prefix| name.starts_with(prefix))
    }
}
