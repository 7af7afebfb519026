//! The data plane of Berth: the entrance for every client of the Open Inference Protocol.
//!
//! The only decision here is the way of one request: which replica answers it, whether it waits, or why it is refused. What
//! is loaded where is the controller's business (`berth-plan`); it arrives here as routes.
//!
//! ```text
//!            listener ── HTTP/1.1 and h2c on one port
//!                │
//!            ingress ── rest │ grpc          oip: bytes ⇄ requests, pure
//!                │
//!  routes ──▶  stack ── find · admit · park · lease · infer · account
//!     ▲          │  │
//!  RouteChange   │  └─ miss ─▶ parking ─▶ demand ─▶ GatewayEvent
//!                ├────▶ forward ── another node's replica, over its peer port
//!                ▼            (there: `Handle::forwarded`)
//!              local ── the replicas of this process
//! ```
//!
//! Read in this order: [`local`] is the seam to the worker, [`config`] the bounds, then the way of a request downwards.

pub mod calls;
pub mod config;
pub mod data_plane;
pub mod exchange;
pub mod local;
pub mod oip;
pub mod payload;

mod follow;
mod gateway;
mod hints;
mod listener;
mod route_cache;

mod ingress;
mod repository;
mod statistics;

mod forward;
mod stack;
mod sticky;

mod account;
mod accounts;
mod fair;
mod overload;
mod quota;

mod demand;
mod deployment;
mod parking;
mod resolved;
mod routes;

mod endpoint;

mod admission;
mod body;
pub mod controls;
mod disclosure;
mod not_run;
pub mod offload;
mod rendezvous;
mod shared_memory;
mod swept_map;
mod trail;
mod wait_queue;
mod watch;
mod wire_field;

mod exporter;
mod latency;
mod metrics;
mod outcomes;
pub mod top;

#[cfg(test)]
#[path = "../../../fuzz/mutator.rs"]
mod mutator;

pub use config::{BesideHook, BesideService, Config, Limits, PropagateHook, SpanHook};
pub use endpoint::fleet::Fleet;
pub use gateway::{DrainReport, Gateway, GatewayLink, Handle, build};
pub use ingress::peer::PeerService;
