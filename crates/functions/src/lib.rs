//! Functions from etcd: people put JSON under `/models/deployments/NAME`; a controller builds what it names, deploys it as
//! a function, and reports in the same object.
//!
//! ```text
//!  etcd ──list, watch──▶ follow ──Event──▶ controller (brain) ──Effect──▶ driver
//!   ▲                                                                      ├── build: fetch ▶ unpack ▶ packages, bundle ▶ ZIP (cache)
//!   │                                                                      ├── target: processes behind the gateway
//!   └──────────── status, by compare-and-swap ◀── writer ◀─────────────────┘
//! ```
//!
//! A function is a target of its own kind, not a replica: it has neither placement nor routes. Not here: leadership (sources
//! run on the leader), the store's client (`berth_control::store::etcd`), the gateway (it hands requests to [`target`]).
//!
//! Reading order: [`deployment`] and [`status`], the nouns; [`controller`], the brain; [`writer`]; `build`; [`target`];
//! `driver`; [`source`], the way in.

pub mod controller;
pub mod deployment;
pub mod status;

mod object;
pub mod writer;

pub mod build;
pub mod target;

mod driver;
mod follow;
pub mod source;
