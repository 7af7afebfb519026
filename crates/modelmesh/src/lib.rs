//! ModelMesh's management API, `mmesh.ModelMesh`, over deployments and aliases.
//!
//! ```text
//! client ──gRPC──▶ service ──▶ models:  a model is an on-demand deployment of an opaque artifact
//!                     └──────▶ vmodels: a virtual model is an alias; active is its target with a weight,
//!                                 │     the one that it changes to stands beside it with none
//!                                 └──▶ transition: has the new target loaded as often as the active one, then switches
//! registrations: the list of an instance's configuration, by the same calls
//! ```
//! Everything is in the store of [`berth_control`]: `berth get deployments` and `berth get aliases` show it, and a new leader
//! goes on with transitions. Not here: inference, which the gateway answers, and the runtimes that load such models.

mod code;
mod failover;
mod gateway;
mod ids;
mod load;
mod local;
mod models;
mod registrations;
mod service;
mod status;
mod transition;
mod vmodels;
mod whole;

#[cfg(test)]
#[path = "../../../fuzz/mutator.rs"]
mod mutator;

pub use gateway::{Answering, PATHS, answer};
pub use ids::type_name;
pub use registrations::{Registration, register};
pub use service::{Options, router};
