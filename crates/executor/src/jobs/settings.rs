//! Settings of asynchronous serving.

use std::{path::PathBuf, time::Duration};

use url::Url;

use super::{attempt::RetryPolicy, queue::Bounds};
use crate::{broker::Broker, template::PathTemplate, tls::TlsFiles};

/// Asynchronous serving of one port.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JobSettings {
    /// Paths whose requests may be queued.
    pub(crate) paths: Vec<PathTemplate>,
    /// True if all their requests are queued, asked for or not.
    pub(crate) always: bool,
    /// First segment of the paths at which jobs are asked for.
    pub(crate) prefix: String,
    pub(crate) queue: QueueSettings,
    pub(crate) bounds: Bounds,
    /// Requests that run at once.
    pub(crate) concurrency: usize,
    /// Largest body of a request and of an answer.
    pub(crate) max_body: usize,
    pub(crate) runs: RetryPolicy,
    pub(crate) callbacks: CallbackSettings,
}

/// The kind and address of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QueueSettings {
    Memory,
    Redis {
        broker: Broker,
        /// Begin of the names of its keys.
        key: String,
    },
    /// JetStream.
    Nats {
        broker: Broker,
        /// Part of the names of its streams.
        key: String,
        /// Servers that keep each message, where the streams are made.
        replicas: usize,
    },
}

/// The delivery of answers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallbackSettings {
    pub(crate) allow: Vec<Url>,
    /// File with the secret of signatures, read for each delivery: it may be renewed.
    pub(crate) secret_file: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) patience: RetryPolicy,
    /// Certificates towards receivers. `None`: the machine's CAs, and none of its own.
    pub(crate) tls: Option<TlsFiles>,
}
