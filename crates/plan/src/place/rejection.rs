//! The reason why a worker cannot take a replica, with numbers.

use std::fmt;

use berth_spec::{
    ByteSize, Isolation, IsolationOffer, ModelFormat, Time, deployment::GpuNeed, format::ONNX_ENGINE_REMEDY,
};

use crate::claim::Cores;

/// The reason why a worker cannot take a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// No runtime of the worker takes the format.
    NoRuntime {
        /// The format of the model.
        format: ModelFormat,
        /// Formats that its runtimes take.
        offers: Vec<String>,
    },
    /// Does not read the version of the model card, by its own word or the registry's.
    Schema {
        /// The card's version.
        version: String,
        /// The versions that it may be given.
        reads: Vec<String>,
    },
    /// Its runtime for the format gives less isolation than the deployment asks for.
    Isolation {
        /// The least level that the deployment asks for.
        asked: Isolation,
        /// Name of the runtime for its format.
        runtime: String,
        /// The level that it gives.
        offer: IsolationOffer,
    },
    /// Lacks a label that the selector requires.
    Label {
        /// The label's key.
        key: String,
        /// The value that the label must have.
        value: String,
        /// The model type that requires it; `None`: the deployment itself does.
        of_type: Option<String>,
    },
    /// There is too little memory, even after evicting what may be evicted.
    Memory {
        /// Memory of one replica.
        need: ByteSize,
        /// Memory that is not claimed.
        free: ByteSize,
        /// Memory that may be evicted for it.
        evictable: ByteSize,
        /// Memory that may be evicted later, at least, once the requests that wait for it have been let in.
        busy: ByteSize,
        /// When the first of that may leave, as far as that is a matter of time.
        again: Time,
        /// All that models may take there.
        total: ByteSize,
    },
    /// There are too few processor cores, even after evicting what may be evicted.
    Cpu {
        /// Cores that one replica claims.
        need: Cores,
        /// Cores that are not claimed.
        free: Cores,
        /// Cores that may be evicted for it.
        evictable: Cores,
        /// Cores that may be evicted later, at least.
        busy: Cores,
        /// When the first of that may leave, as far as that is a matter of time.
        again: Time,
        /// All cores that models may take there.
        total: Cores,
    },
    /// There are too few GPUs that will do, even after evicting what may be evicted.
    Gpu {
        /// GPUs that one replica claims, with their kind and memory.
        need: GpuNeed,
        /// Suitable devices that are not claimed.
        free: u32,
        /// Replicas that may be evicted for it, in addition.
        evictable: u32,
        /// Replicas that may be evicted for it later.
        busy: u32,
        /// When the first of those may leave, as far as that is a matter of time.
        again: Time,
        /// Suitable devices, those in use included.
        total: u32,
    },
    /// There is too little device memory for its runtime's models, even after evicting what may be evicted.
    DeviceMemory {
        /// Device memory of one replica, as declared.
        need: ByteSize,
        /// Device memory that is not claimed.
        free: ByteSize,
        /// Device memory that may be evicted for it.
        evictable: ByteSize,
        /// Device memory that may be evicted later.
        busy: ByteSize,
        /// When the first of that may leave, as far as that is a matter of time.
        again: Time,
        /// All that its models may take.
        total: ByteSize,
    },
    /// The runtime for its format has limits of its own, and is short of something.
    InRuntime {
        /// Name of the runtime, as the worker reports it.
        runtime: String,
        /// Resource that the runtime is short of.
        short: Box<Rejection>,
    },
    /// Holds as many models as it may.
    Models {
        /// Models that it may hold.
        max: u32,
        /// Models that may be evicted later; none may be now.
        busy: u32,
        /// When the first of those may leave, as far as that is a matter of time.
        again: Time,
    },
    /// In another region than the one that the replica belongs in.
    Region {
        /// The place that it belongs to.
        wanted: String,
        /// The worker's region, if it has one.
        has: Option<String>,
    },
    /// Its region has as many replicas as it should have at most.
    RegionFull {
        /// The worker's region, which is full.
        region: String,
        /// Replicas that the region may have.
        max: u32,
    },
    /// There is no room, and nothing is evicted there to make some, as the registry says.
    KeepsAll {
        /// Resource that is short, with its numbers.
        short: Box<Rejection>,
    },
    /// The registry does not name it, and lets no such worker hold anything.
    Unlisted,
    /// Cannot be reached.
    Lost,
    /// Not seen since the controller started.
    Unseen,
    /// The controller cannot reach it, though the other nodes can.
    Detached,
    /// Nothing new is put there.
    Cordoned,
    /// Drained by an operator: its replicas move elsewhere.
    Draining,
    /// About to stop.
    Leaving,
    /// Has just come back, and has as many loads under way as it gets at once.
    Recovering {
        /// Loads under way.
        loads: u32,
    },
    /// Holds another replica of the same revision.
    Holds,
    /// Loading failed there, or failed elsewhere for a reason that is the same everywhere.
    FailedHere {
        /// When it may be tried again.
        until: Time,
        /// The worker's error message.
        message: String,
    },
}

impl Rejection {
    /// The word for programs.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoRuntime { .. } => "NoRuntime",
            Self::Label { .. } => "Label",
            Self::Memory { .. } => "Memory",
            Self::Cpu { .. } => "Cpu",
            Self::Gpu { .. } => "Gpu",
            Self::Models { .. } => "Models",
            Self::DeviceMemory { .. } => "DeviceMemory",
            Self::InRuntime { .. } => "Runtime",
            Self::Region { .. } => "Region",
            Self::RegionFull { .. } => "RegionFull",
            Self::Lost => "Lost",
            Self::Unseen => "Unseen",
            Self::Detached => "Detached",
            Self::Cordoned => "Cordoned",
            Self::Draining => "Draining",
            Self::Leaving => "Leaving",
            Self::Recovering { .. } => "Recovering",
            Self::Holds => "Holds",
            Self::FailedHere { .. } => "FailedHere",
            Self::Schema { .. } => "Schema",
            Self::Isolation { .. } => "Isolation",
            Self::KeepsAll { .. } => "KeepsAll",
            Self::Unlisted => "Unlisted",
        }
    }

    /// When there may be room once what is busy there is no longer, as far as that is a matter of time; `None`: even
    /// then there is none.
    pub(crate) fn room_from(&self) -> Option<Time> {
        match self {
            Self::InRuntime { short, .. } => short.room_from(),
            Self::Memory { need, free, evictable, busy, again, .. }
            | Self::DeviceMemory { need, free, evictable, busy, again, .. } => {
                (*free + *evictable + *busy >= *need).then_some(*again)
            }
            Self::Cpu { need, free, evictable, busy, again, .. } => {
                (*free + *evictable + *busy >= *need).then_some(*again)
            }
            Self::Gpu { need, free, evictable, busy, again, .. } => {
                (free + evictable + busy >= need.count).then_some(*again)
            }
            Self::Models { busy, again, .. } => (*busy > 0).then_some(*again),
            _ => None,
        }
    }

    /// Returns true if one replica needs more than there is, whoever leaves.
    pub(crate) fn needs_more_than_all(&self) -> bool {
        match self {
            Self::InRuntime { short, .. } => short.needs_more_than_all(),
            Self::Memory { need, total, .. } | Self::DeviceMemory { need, total, .. } => need > total,
            Self::Cpu { need, total, .. } => need > total,
            Self::Gpu { need, total, .. } => need.count > *total,
            _ => false,
        }
    }

    /// Short resource and the amount one replica needs, for people: `1.5GiB of memory`.
    pub(crate) fn short_of(&self) -> Option<String> {
        match self {
            Self::Memory { need, .. } => Some(format!("{need} of memory")),
            Self::Cpu { need, .. } => Some(format!("{need} cores")),
            Self::Gpu { need, .. } => Some(gpus(need)),
            Self::Models { .. } => Some("a place among the models of a worker".to_owned()),
            Self::KeepsAll { short } => short.short_of(),
            Self::DeviceMemory { need, .. } => Some(format!("{need} of device memory")),
            Self::InRuntime { runtime, short } => {
                short.short_of().map(|short| format!("{short} in the runtime {runtime}"))
            }
            _ => None,
        }
    }
}

/// For people: `2 GPUs of kind nvidia-h200 with 80GiB`.
fn gpus(need: &GpuNeed) -> String {
    let mut text = if need.count == 1 { "1 GPU".to_owned() } else { format!("{} GPUs", need.count) };
    if let Some(kind) = &need.kind {
        text.push_str(&format!(" of kind {kind}"));
    }
    if let Some(memory) = need.memory {
        text.push_str(&format!(" with {memory}"));
    }
    text
}

/// For people: which level a runtime gives, and why it gives no more.
fn weaker(asked: Isolation, runtime: &str, IsolationOffer { most, lacks }: &IsolationOffer) -> String {
    let lacks = if lacks.is_empty() { String::new() } else { format!(": {lacks}") };
    format!(
        "gives models of its runtime {runtime} at most the isolation {most}, and runtime.isolation asks for {asked}{lacks}"
    )
}

/// ` (1GiB more soon)`, if there is any: as much as was looked for.
fn soon<T: fmt::Display + PartialEq>(busy: &T, none: &T) -> String {
    if busy == none { String::new() } else { format!(" ({busy} more soon)") }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRuntime { format, .. } if format.name() == "onnx" => write!(
                f,
                "has no runtime for {format}; on its machine, {ONNX_ENGINE_REMEDY}, and start the worker again (`berth doctor` \
                 finds what is missing there)"
            ),
            Self::NoRuntime { format, offers } => {
                let offers = if offers.is_empty() { "none".to_owned() } else { offers.join(", ") };
                write!(
                    f,
                    "has no runtime for {format} (it offers: {offers}): add a worker with a runtime for it, or export the \
                     model to a format that is offered"
                )
            }
            Self::Schema { version, reads } if reads.is_empty() => {
                write!(f, "reads no version of model cards, and this one has version {version}")
            }
            Self::Schema { version, reads } => write!(
                f,
                "reads model cards of the versions {}, and this one has version {version}: upgrade the worker, add the \
                 version to its registry entry, or write the card in one of these",
                reads.join(", ")
            ),
            Self::Isolation { asked, runtime, offer } => f.write_str(&weaker(*asked, runtime, offer)),
            Self::KeepsAll { short } => {
                write!(
                    f,
                    "{short}, and evicts nothing to make room: its registry entry says enable_auto_eviction: false"
                )
            }
            Self::Unlisted => f.write_str(
                "is not named by the registry, which lets such workers hold nothing: add it to the registry's workers",
            ),
            Self::Label { key, value, of_type: None } => write!(f, "lacks the label {key}={value}"),
            Self::Label { key, value, of_type: Some(of_type) } => {
                write!(f, "lacks the label {key}={value}, which models of type {of_type} require")
            }
            Self::Memory { need, free, evictable, busy, total, .. } => {
                let soon = soon(busy, &ByteSize::ZERO);
                let (need, free) = (need.beside(*free), free.beside(*need));
                write!(f, "needs {need}, has {free} free and {evictable} that may be evicted{soon}, of {total}")
            }
            Self::DeviceMemory { need, free, evictable, busy, total, .. } => {
                let soon = soon(busy, &ByteSize::ZERO);
                write!(
                    f,
                    "needs {need} of device memory, has {free} free and {evictable} that may be evicted{soon}, of {total}"
                )
            }
            Self::InRuntime { runtime, short } => write!(f, "{short} in its runtime {runtime}"),
            Self::Cpu { need, free, evictable, busy, total, .. } => {
                let soon = soon(busy, &Cores::ZERO);
                write!(f, "needs {need} cores, has {free} free and {evictable} that may be evicted{soon}, of {total}")
            }
            Self::Gpu { need, total: 0, .. } => write!(f, "needs {}, has none", gpus(need)),
            Self::Gpu { need, free, evictable, busy, total, .. } => {
                let (need, soon) = (gpus(need), soon(busy, &0));
                write!(f, "needs {need}, has {free} free and {evictable} that may be evicted{soon}, of {total}")
            }
            Self::Models { max, busy, .. } => {
                let soon = if *busy == 0 { "may be evicted for it" } else { "may be evicted for it yet" };
                write!(f, "holds {max} models, which is all that it may hold, and none {soon}")
            }
            Self::Region { wanted, has: Some(has) } => write!(f, "is in {has}, and this replica belongs in {wanted}"),
            Self::Region { wanted, has: None } => {
                write!(f, "has no label region, and this replica belongs in {wanted}")
            }
            Self::RegionFull { region, max } => write!(f, "is in {region}, which has its {max} replicas already"),
            Self::Lost => f.write_str("cannot be reached"),
            Self::Unseen => f.write_str("was not seen since the controller started"),
            Self::Detached => f.write_str("cannot be reached by the controller, only by the other nodes"),
            Self::Cordoned => f.write_str("is cordoned"),
            Self::Draining => f.write_str("is being drained"),
            Self::Leaving => f.write_str("is about to stop"),
            Self::Recovering { loads } => {
                write!(f, "is just back, and has {loads} loads under way, as many as it gets at once")
            }
            Self::Holds => f.write_str("holds a replica already"),
            Self::FailedHere { until, message } => write!(f, "failed to load it: {message}; tried again after {until}"),
        }
    }
}
