//! Requests and responses of the data path, and the ways in which inference fails.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{Class, Tensor, UseLimit};

/// A parameter of a request, response, tensor or requested output.
#[derive(Debug, Clone, PartialEq)]
pub enum Parameter {
    /// A boolean.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer beyond `i64`, or sent as one.
    Uint(u64),
    /// A floating-point number.
    Float(f64),
    /// A text.
    Text(String),
}

/// Named parameters; empty costs no allocation.
pub type Parameters = BTreeMap<String, Parameter>;

/// An output that the caller asked for by name.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestedOutput {
    /// The output's name.
    pub name: String,
    /// `classification: n` asks for the top n classes instead of the tensor (Triton's extension).
    pub classification: Option<u32>,
}

/// One inference, decoded from whichever protocol it came by.
#[derive(Debug, Clone, Default)]
pub struct InferRequest {
    /// The caller's id, echoed.
    pub id: Option<String>,
    /// Request parameters that are not the protocol's own.
    pub parameters: Parameters,
    /// The inputs; names are unique.
    pub inputs: Vec<Tensor>,
    /// The outputs that the caller wants; all of them when empty. Names are unique.
    pub outputs: Vec<RequestedOutput>,
}

/// The answer of a model.
#[derive(Debug, Clone)]
pub struct InferResponse {
    /// The name under which the caller asked.
    pub model_name: Arc<str>,
    /// The version that answered: its declared name, or the revision's hash.
    pub model_version: Arc<str>,
    /// The caller's id.
    pub id: Option<String>,
    /// Parameters of the response that are not the protocol's own.
    pub parameters: Parameters,
    /// The outputs in the order asked for, or the model's.
    pub outputs: Vec<Tensor>,
}

/// The reason why a request got no slot: the `reason` that clients and metrics see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shed {
    /// The model is on its way; the caller would not or could not wait for it.
    Loading,
    /// The model's queue or parking space is full.
    QueueFull,
    /// No worker has room, now or by evicting what may be evicted.
    NoCapacity,
    /// The last loads failed; the message says why.
    LoadFailed,
    /// The deployment is paged out or scaled down and may not be woken by a request.
    ScaledDown,
    /// The server is stopping.
    ShuttingDown,
    /// The replica was taken away and no other one is ready.
    Unavailable,
    /// Requests hold all the memory that they may take together.
    NoMemory,
    /// More requests come than can be answered; this one would have waited too long.
    Overloaded,
}

impl Shed {
    /// The word on the wire and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::QueueFull => "queue_full",
            Self::NoCapacity => "no_capacity",
            Self::LoadFailed => "load_failed",
            Self::ScaledDown => "scaled_down",
            Self::ShuttingDown => "shutting_down",
            Self::Unavailable => "unavailable",
            Self::NoMemory => "no_memory",
            Self::Overloaded => "overloaded",
        }
    }
}

/// A place in a JSON document that is not as its schema says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// A JSON pointer into the document, e.g. `/items/3/price`; empty: all of it.
    pub path: String,
    /// The rule that the place breaks.
    pub message: String,
}

impl Violation {
    /// The most that are told of one document: enough to mend it, and few enough to read.
    pub const MAX: usize = 16;
}

/// The reason why an inference failed. Each says whether the request was at fault.
#[derive(Debug, Clone, thiserror::Error)]
pub enum InferError {
    /// The request does not fit the model or the protocol. Nothing was run.
    #[error("{0}")]
    Invalid(String),
    /// The document can be read, but the model's input schema, or its own code, does not take it.
    #[error("{message}")]
    Unprocessable {
        /// For people: what is wrong where.
        message: String,
        /// Where, at most [`Violation::MAX`] places.
        violations: Vec<Violation>,
    },
    /// More than a limit allows. Nothing was run.
    #[error("{0}")]
    TooLarge(String),
    /// No deployment or version of that name.
    #[error("{0}")]
    NotFound(String),
    /// The server has no such feature.
    #[error("{0}")]
    Unsupported(String),
    /// The server did not take the request. Nothing was run; it may be sent again.
    #[error("{message}")]
    Shed {
        /// The typed reason, from which status codes follow.
        reason: Shed,
        /// For people: what, and what to do.
        message: String,
        /// When to try again; `None`: trying again helps only after somebody changed something.
        retry_in: Option<Duration>,
    },
    /// A limit on the use of the model, or of everything by its caller. Nothing was run; it may be sent again.
    #[error("{message}")]
    Limited {
        /// The limit that was met.
        limit: UseLimit,
        /// For people: which limit, of whom, and what to do.
        message: String,
        /// When the limit lets the next one in.
        retry_in: Duration,
    },
    /// The caller's deadline passed.
    #[error("{0}")]
    TimedOut(String),
    /// The caller went away.
    #[error("the request was cancelled")]
    Cancelled,
    /// The model failed on this request. It was run and must not be retried.
    #[error("{0}")]
    Model(String),
    /// The process that ran it is gone. It may have been run: only a request that may be run twice may be sent again.
    #[error("{0}")]
    Lost(String),
    /// A fault of ours.
    #[error("{0}")]
    Internal(String),
}

impl InferError {
    /// Makes a [`Shed`](Self::Shed) that may be sent again after `retry_in`.
    #[must_use]
    pub fn shed(reason: Shed, message: impl Into<String>, retry_in: Duration) -> Self {
        Self::Shed { reason, message: message.into(), retry_in: Some(retry_in) }
    }

    /// The meaning for the caller.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Invalid(_) => Class::Invalid,
            Self::Unprocessable { .. } => Class::Unprocessable,
            Self::TooLarge(_) => Class::TooLarge,
            Self::NotFound(_) => Class::NotFound,
            Self::Unsupported(_) => Class::Unsupported,
            Self::Shed { retry_in: Some(retry_in), .. } => Class::Waiting { retry_in: *retry_in },
            Self::Shed { retry_in: None, .. } => Class::Stalled,
            Self::Limited { retry_in, .. } => Class::Limited { retry_in: *retry_in },
            Self::TimedOut(_) | Self::Cancelled => Class::TimedOut,
            Self::Model(_) | Self::Lost(_) | Self::Internal(_) => Class::Internal,
        }
    }

    /// The word in metrics and error bodies.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::Unprocessable { .. } => "unprocessable",
            Self::TooLarge(_) => "too_large",
            Self::NotFound(_) => "not_found",
            Self::Unsupported(_) => "unsupported",
            Self::Shed { reason, .. } => reason.as_str(),
            Self::Limited { limit, .. } => limit.as_str(),
            Self::TimedOut(_) => "deadline",
            Self::Cancelled => "cancelled",
            Self::Model(_) => "model",
            Self::Lost(_) => "lost",
            Self::Internal(_) => "internal",
        }
    }
}
