//! Functions: people put JSON under `/models/deployments/NAME` of their etcd, or declare `kind: Function` through the API and
//! sources; a controller builds what that names, deploys it as a function, and reports in the same object.
//!
//! A function is known by its *key*: the written form of its name, [`deployment::FunctionName`]. What people put under a key that is no
//! name is told in its status, and never deployed; so keys are texts, and names are what passed the rule.
//!
//! ```text
//! store ──list, watch──▶ follow ──Event──▶ controller (brain) ──Effect──▶ driver
//!   ▲                                                                      ├── build: fetch ▶ unpack ▶ packages, bundle ▶ ZIP (cache)
//!   │                                                                      ├── target: processes behind the gateway
//!   └──────────── status, by compare-and-swap ◀── writer ◀─────────────────┘
//! ```
//!
//! A function is a target of its own kind, not a replica: it has neither placement nor routes. Not here: leadership (sources
//! run on the leader), the store's client (`berth_control::store::etcd`), the gateway (it hands requests to [`target`]).
//!
//! Reading order: [`deployment`] and [`status`], the nouns; [`controller`], the brain; [`writer`]; `objects`, where they are;
//! `declare`, how the API changes them; `build`; [`target`]; `driver`; [`source`], the way in.

pub mod controller;
pub mod deployment;
pub mod status;

mod declare;
mod object;
mod objects;
pub mod writer;

pub mod build;
pub mod target;

mod dependencies;
mod driver;
mod follow;
mod running_tasks;
pub mod source;
mod spans;

#[cfg(test)]
#[path = "../../../fuzz/mutator.rs"]
mod mutator;
