//! The heads of frames. `berth/host.py` and `runtime/onnx/isolated/host.rs` write and read the same names.

use std::collections::BTreeMap;

use berth_spec::{Datatype, Signature, card::Function};
use serde::{Deserialize, Serialize};

use crate::runtime::named::NamedDimensions;

/// The head of [`Kind::Load`](super::frame::Kind::Load) for a model in Python: its code, its files, and the limits of the process.
#[derive(Debug, Serialize)]
pub(in crate::runtime) struct Load<'a> {
    pub(in crate::runtime) limits: Limits<'a>,
    /// The checkout's root.
    pub(in crate::runtime) code: &'a str,
    /// The card's folder in it.
    pub(in crate::runtime) path: &'a str,
    pub(in crate::runtime) framework: &'a str,
    pub(in crate::runtime) entrypoint: Option<&'a str>,
    pub(in crate::runtime) model_path: &'a str,
    pub(in crate::runtime) config_path: Option<&'a str>,
    pub(in crate::runtime) preprocessing: &'a Function,
    pub(in crate::runtime) postprocessing: &'a Function,
    pub(in crate::runtime) batch_size: u32,
    /// The properties of a request that are arrays of numbers.
    pub(in crate::runtime) arrays: Vec<&'a str>,
}

/// The limits that the process sets itself before it loads, where no launcher has set them.
#[derive(Debug, Default, Serialize)]
pub(in crate::runtime) struct Limits<'a> {
    /// The process that it must not outlive.
    pub(in crate::runtime) parent: Option<u32>,
    /// Control groups to join.
    pub(in crate::runtime) cgroups: Vec<&'a str>,
    /// Memory for data, where no control group limits it.
    pub(in crate::runtime) data: Option<u64>,
}

/// Requests. Positions are in the body, where arrays begin at multiples of 8 bytes.
#[derive(Debug, Serialize)]
pub(in crate::runtime) struct Run<'a> {
    pub(in crate::runtime) run: u64,
    /// Start and end of each document, and what is beside it.
    pub(in crate::runtime) requests: Vec<(usize, usize, Vec<Beside<'a>>)>,
}

/// An array of numbers beside a document: name, datatype, shape, start, end.
pub(in crate::runtime) type Beside<'a> = (&'a str, Datatype, &'a [i64], usize, usize);

/// A run whose answers are being written.
#[derive(Debug, Deserialize)]
pub(in crate::runtime) struct Computed {
    pub(in crate::runtime) run: u64,
}

/// The name of the step of the load that begins, for the log.
#[derive(Debug, Deserialize)]
pub(in crate::runtime) struct Step {
    pub(in crate::runtime) step: String,
}

/// The model can be called.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::runtime) struct Loaded {
    pub(in crate::runtime) notes: Vec<String>,
    /// Steps that take lists.
    pub(in crate::runtime) batched: BTreeMap<String, bool>,
    pub(in crate::runtime) python: String,
    pub(in crate::runtime) graph: Option<Graph>,
}

/// The findings of the engine's process about a graph that it loaded.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::runtime) struct Graph {
    pub(in crate::runtime) signature: Signature,
    pub(in crate::runtime) named: NamedDimensions,
    /// The reason why its rows may not be joined; `None`: they may.
    pub(in crate::runtime) unbatched: Option<String>,
}

/// An error of the model's code, or of its engine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::runtime) struct Raised {
    #[serde(rename = "type")]
    pub(in crate::runtime) kind: String,
    pub(in crate::runtime) message: String,
    pub(in crate::runtime) trace: String,
    /// True if the process reports that memory ran out.
    pub(in crate::runtime) memory: bool,
    /// Of a load: the kind of failure.
    pub(in crate::runtime) category: String,
    /// Of a load: the message says it all; the type is ours and says nothing to an author.
    pub(in crate::runtime) expected: bool,
    /// Of a request: the step that failed.
    pub(in crate::runtime) stage: String,
}

/// A run that nobody waits for any more.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::runtime) struct StopRun {
    pub(in crate::runtime) run: u64,
}

/// The answers of one run, in the order of its requests.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::runtime) struct Answers {
    pub(in crate::runtime) run: u64,
    pub(in crate::runtime) answers: Vec<Answer>,
}

/// The result of one request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(in crate::runtime) enum Answer {
    /// The length of its document in the body, which holds them one after the other.
    Well(usize),
    /// The model's code says that the request is at fault.
    Refused {
        request: Refusal,
    },
    Raised(Raised),
}

/// The reason why the model's code does not take a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::runtime) struct Refusal {
    pub(in crate::runtime) message: String,
    #[serde(default)]
    pub(in crate::runtime) path: String,
}

/// A line that the model's code logs, with its level.
#[derive(Debug, Deserialize)]
pub(in crate::runtime) struct Log {
    pub(in crate::runtime) level: String,
    pub(in crate::runtime) text: String,
}
