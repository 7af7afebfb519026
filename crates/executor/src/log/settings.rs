//! Settings of a port's log.

use std::{collections::BTreeSet, path::PathBuf};

use url::Url;

use crate::{
    broker::{Broker, Login},
    template::PathTemplate,
    tls::TlsFiles,
};

/// The log of one port.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogSettings {
    /// Part of the requests that is logged, from 0 to 1.
    pub(crate) sample: f64,
    /// Paths whose requests are logged; empty: all.
    pub(crate) paths: Vec<PathTemplate>,
    /// Bytes of a request's body that are logged, and of an answer's.
    pub(crate) bodies: usize,
    pub(crate) redaction: Redaction,
    /// Bytes of exchanges that are in flight or wait to be written.
    pub(crate) memory: usize,
    pub(crate) sink: SinkSettings,
}

/// Parts that are not logged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Redaction {
    /// Names of headers, in lower case.
    pub(crate) headers: BTreeSet<String>,
    /// Names of fields in JSON, at any depth.
    pub(crate) fields: BTreeSet<String>,
}

/// Where lines go.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SinkSettings {
    File { path: PathBuf, size: u64, keep: u32 },
    Http { url: Url, token_file: Option<PathBuf>, tls: Option<TlsFiles> },
    Nats { broker: Broker, subject: String },
    Kafka(KafkaSettings),
}

/// A topic of a broker that speaks Kafka's protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KafkaSettings {
    /// Some of its servers, as `HOST:PORT`.
    pub(crate) servers: Vec<String>,
    pub(crate) topic: String,
    pub(crate) login: Login,
    pub(crate) mechanism: Mechanism,
    pub(crate) tls: Option<TlsFiles>,
}

/// The way to prove a password to Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}
