//! Settings of the engine, as they are written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{HostPort, Whole, Word};

/// Settings of the engine.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawRuntime {
    /// The engine's execution provider.
    pub execution_provider: Word,
    /// Threads inside one run. `0`: the worker decides.
    pub threads: Whole<0, 1024>,
    /// Least isolation of the model from its worker; the worker's own setting applies if it is stricter. A worker that cannot
    /// provide it does not load the model. Not given: the worker's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<RawIsolation>,
    /// The network that the model reaches from its sandbox. Not given: the hosts of its card, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<RawNetwork>,
}

impl Default for RawRuntime {
    fn default() -> Self {
        Self { execution_provider: Word("cpu".to_owned()), threads: Whole::constant(0), isolation: None, network: None }
    }
}

/// Strengths of isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RawIsolation {
    /// Inside of the worker's process; not for Python.
    None,
    /// A process of its own, with limits and a filter of system calls.
    Process,
    /// Also files, network, processes and a user of its own.
    Sandbox,
}

/// Hosts that a model or a function reaches.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawNetwork {
    /// Hosts and ports, at most 32, through a proxy in Berth that the process finds in `HTTPS_PROXY`. A private address has to be
    /// given as an address. Empty: none.
    pub hosts: Vec<HostPort>,
}
