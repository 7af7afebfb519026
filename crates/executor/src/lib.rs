//! The executor: a proxy that stands before one model server, in the same pod or on the same machine.
//!
//! ```text
//!               ┌───────────────────────────── executor ──────────────────────────────┐
//!  client ─────▶│ port (TLS) ─ access ─ measure, limit ─ breaker ─ time-outs, retries │─────▶ model server
//!               └───────▲──────────────────┬──────────────────────────────────────────┘       ▲
//!   configuration file ─┘ followed         └▶ log                  jobs, from a queue ──────────┘
//!                                                       admin port: /live, /ready, /metrics
//! ```
//! The server's code stays as it is: the executor measures its requests, bounds them, waits for it while it restarts, and ends in
//! the order in which Kubernetes ends pods.

mod access;
mod admin;
mod body;
mod broker;
mod config;
mod driver;
mod files;
mod health;
mod jobs;
mod log;
mod metrics;
mod nats;
mod port;
mod proxy;
mod refusal;
mod template;
mod tls;
mod upgrade;
mod upstream;
mod window;

#[cfg(test)]
#[path = "../../../fuzz/mutator.rs"]
mod mutator;

pub use self::{
    config::{Config, ConfigError, JOBS_PREFIX},
    driver::{Executor, StartError},
    files::Limits,
};

/// Any error, where the kind does not matter.
type BoxError = Box<dyn std::error::Error + Send + Sync>;
