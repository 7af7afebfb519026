//! The control API: REST with JSON, described by an OpenAPI document.
//!
//! ```text
//! listener ──▶ router ──▶ rest ──▶ service ──▶ Handle
//!                                     └──▶ view: the controller's types → berth_wire::api shapes
//! ```
//! Where another node leads, the router relays what it is asked to that one. Reading order: [`serve`], the listener;
//! `router`, who answers; `relay`, the way to the leader; `peer_queries`, what the leader asks the other nodes; `service`, what it
//! does; `rest`, how it is asked for; `view`, what it answers. Small parts: `error`, `guard`, `query`, `selector`,
//! `body`, `watch`, `node`, [`top`]. `named`, the id of each request. Who may do what: `needs`, the action of each route; `admit`, which lets requests in; `tokens`, the
//! way of tokens to each node. Who did what: `trail`, which records it, and `audit`, which tells it.

pub mod error;
pub mod log;
pub mod top;
pub mod trial;

pub use node::{Leader, LeaderSource, MembersSource};

mod admit;
mod audit;
mod body;
mod certify;
mod connection;
mod dashboard;
mod guard;
mod history;
mod named;
mod needs;
mod node;
mod peer_queries;
mod query;
mod recorder;
mod relay;
mod rest;
mod revocations;
mod router;
mod selector;
mod serve;
mod service;
mod tokens;
mod trail;
mod view;
mod watch;
mod watched;

use std::{path::PathBuf, sync::Arc};

use berth_audit::AuditLog;
use berth_wire::access::Access;

use crate::Handle;
pub use certify::{Attestation, AttestedNode, Issuing, NotAttested};
pub use peer_queries::OWN;
pub(crate) use peer_queries::differing;
pub use relay::{NoAnswer, RELAY};
pub use router::{ApiRouter, Relay};
pub use serve::serve;
pub use trail::Notes;

/// Encodes every metric of the process as OpenMetrics text. Called off the runtime: it may take milliseconds.
pub type MetricsSource = Arc<dyn Fn() -> String + Send + Sync>;

/// Makes the routes of a service that stands beside the control API and works on the same handle.
pub type Beside = Arc<dyn Fn(Handle) -> axum::Router + Send + Sync>;

/// Information that the API shows and the controller does not have.
#[derive(Clone)]
pub struct ApiDependencies {
    /// Every metric of the process, for `/metrics`.
    pub metrics: MetricsSource,
    /// The counters of this node's gateway, for `/v1/top`.
    pub top: top::TopSource,
    /// This node's gateway, for models that are tried from the dashboard; `None` without one.
    pub trial: Option<trial::TrialSource>,
    /// The version of the binary, for `/version`: `1.2.3`.
    pub version: String,
    /// Members of the cluster, for `/v1/nodes`; empty for a single node.
    pub members: MembersSource,
    /// Current leader as this node knows it, for `/v1/nodes`.
    pub leader: LeaderSource,
    /// The routes of a service beside the API, over the handle of each term of leadership.
    pub beside: Option<Beside>,
    /// Settings that all controllers must share, as comparable text; `None` without the controller role.
    pub rules: Option<String>,
    /// Recent logs of the models on this node; `None` without a worker.
    pub logs: Option<log::LogSource>,
    /// Tokens, and if one is needed at all; shared with the gateway.
    pub access: Arc<Access>,
    /// The audit log, shared with the gateway.
    pub audit: AuditLog,
    /// File for the first token, of an admin, which the leader makes where tokens are needed and no admin has one; `None`: none
    /// is made.
    pub admin_token: Option<PathBuf>,
    /// The CA, on a node that issues certificates to nodes.
    pub issuing: Option<Arc<Issuing>>,
}
