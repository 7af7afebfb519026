//! Credentials from HashiCorp Vault, or from what speaks its HTTP API (OpenBao).
//!
//! ```text
//! declarations of workers ─▶ Vault (brain) ── Effect::Call ─▶ Task (driver) ─▶ HTTP
//!        (whole)               ▲    │                               │
//!                              │    └─ Effect::VaultSecrets ▶ watch │
//!                              └────── Event::Answered ◀────────────┘
//! ```
//!
//! One token for all, by AppRole. What is read again when is in [`timing`]; the lease's own TTL always counts, never what was
//! asked for. When a token ends, what was leased with it ends, too: a new login reads leased credentials anew before that.

mod answer;
mod brain;
mod call;
mod declared;
mod http;
mod secret;
mod settings;
mod task;
mod timing;

use std::collections::BTreeMap;

use berth_spec::{Time, WorkerId, credential::Granted};

pub(crate) use self::declared::is_declared;
pub use self::{
    brain::{Effect, Event, UnrevokedLease, Vault},
    call::{Call, Reply, VaultRequest},
    declared::{Declared, Engine, SecretRequest},
    http::Http,
    settings::{SecretId, Settings},
    task::{Handle, Task, build},
};
use crate::status::SecretStatus;

/// All secrets read from Vault. A newer value replaces an older one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VaultSecrets {
    /// Values, by worker and by the name of the secret.
    pub secrets: BTreeMap<WorkerId, BTreeMap<String, Granted>>,
    /// Status of the secrets, without values.
    pub status: Vec<SecretStatus>,
    /// Current outage of Vault, if calls are paused.
    pub outage: Option<Outage>,
}

/// Vault is away, sealed or overloaded: until then one call at a time looks whether it is back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// Vault's error, or the lack of an answer.
    pub reason: String,
    /// Failures since the last answer.
    pub failures: u32,
    /// Time of the next attempt.
    pub until: Time,
}
