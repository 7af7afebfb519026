//! Credentials from HashiCorp Vault, or from what speaks its HTTP API (OpenBao).
//!
//! ```text
//! declarations of workers ─▶ Vault (brain) ── Effect::Call ─▶ Task (driver) ─▶ HTTP
//!        (whole)               ▲    │                              │
//!                              │    └─ Effect::Found ─▶ watch      │
//!                              └────── Event::Answered ◀───────────┘
//! ```
//!
//! One token for all, by AppRole. What is read again when is in [`timing`]; the lease's own TTL always counts, never what was
//! asked for. When a token ends, what was leased with it ends, too: a new login reads leased credentials anew before that.

mod answer;
mod brain;
mod call;
mod declared;
mod http;
mod settings;
mod slot;
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

/// What Vault gave, whole: a newer one replaces an older one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VaultSecrets {
    /// By worker and name.
    pub secrets: BTreeMap<WorkerId, BTreeMap<String, Granted>>,
    /// What people may see.
    pub status: Vec<SecretStatus>,
    /// Why Vault is not asked at present.
    pub outage: Option<Outage>,
}

/// Vault is away, sealed or overloaded: until then one call at a time looks whether it is back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// What it says, or that it says nothing.
    pub reason: String,
    /// Failures in a row.
    pub failures: u32,
    /// When it is asked again.
    pub until: Time,
}
