//! The heads of frames. `berth/host.py` writes and reads the same names.

use std::collections::BTreeMap;

use berth_spec::{Datatype, card::Function};
use serde::{Deserialize, Serialize};

/// The model to load.
#[derive(Debug, Serialize)]
pub(super) struct Load<'a> {
    pub(super) limits: Limits<'a>,
    /// The checkout's root.
    pub(super) code: &'a str,
    /// The card's folder in it.
    pub(super) path: &'a str,
    pub(super) framework: &'a str,
    pub(super) entrypoint: Option<&'a str>,
    pub(super) model_path: &'a str,
    pub(super) config_path: Option<&'a str>,
    pub(super) preprocessing: &'a Function,
    pub(super) postprocessing: &'a Function,
    pub(super) batch_size: u32,
    /// The properties of a request that are arrays of numbers.
    pub(super) arrays: Vec<&'a str>,
}

/// The limits that the process sets itself before it loads, where no launcher has set them.
#[derive(Debug, Default, Serialize)]
pub(super) struct Limits<'a> {
    /// The process that it must not outlive.
    pub(super) parent: Option<u32>,
    /// Control groups to join.
    pub(super) cgroups: Vec<&'a str>,
    /// Memory for data, where no control group limits it.
    pub(super) data: Option<u64>,
}

/// Requests. Positions are in the body.
#[derive(Debug, Serialize)]
pub(super) struct Run<'a> {
    pub(super) run: u64,
    /// Start and end of each document, and what is beside it.
    pub(super) requests: Vec<(usize, usize, Vec<Beside<'a>>)>,
}

/// An array of numbers beside a document: name, datatype, shape, start, end.
pub(super) type Beside<'a> = (&'a str, Datatype, &'a [i64], usize, usize);

/// A step of the load.
#[derive(Debug, Deserialize)]
pub(super) struct Step {
    pub(super) step: String,
}

/// The model can be called.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Loaded {
    pub(super) notes: Vec<String>,
    /// Which steps take lists.
    pub(super) batched: BTreeMap<String, bool>,
    pub(super) python: String,
}

/// An error of Python's.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Raised {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) message: String,
    pub(super) trace: String,
    /// True if the process reports that memory ran out.
    pub(super) memory: bool,
    /// Of a load: the kind of failure.
    pub(super) category: String,
    /// Of a load: the message says it all; the type is ours and says nothing to an author.
    pub(super) expected: bool,
    /// Of a request: the step that failed.
    pub(super) stage: String,
}

/// Answers, in the order of the requests.
#[derive(Debug, Deserialize)]
pub(super) struct Answers {
    pub(super) run: u64,
    pub(super) answers: Vec<Answer>,
}

/// The result of one request.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Answer {
    /// The length of its document in the body, which holds them one after the other.
    Well(usize),
    /// The model's code says that the request is at fault.
    Refused {
        request: Refusal,
    },
    Raised(Raised),
}

/// Why the model's code does not take a request.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Refusal {
    pub(super) message: String,
    #[serde(default)]
    pub(super) path: String,
}

/// A line for the log.
#[derive(Debug, Deserialize)]
pub(super) struct Log {
    pub(super) level: String,
    pub(super) text: String,
}
