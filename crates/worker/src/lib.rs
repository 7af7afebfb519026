//! The worker: gets to the assignment it is given, and says truthfully how far it is.
//!
//! ```text
//!                    AssignmentChange                         InventoryChange
//!  controller ───────────────┐                        ┌──────────────────────▶ controller
//!                            ▼                        │
//!                 agent (brain) ── Effect ──▶ driver ─┤
//!                            ▲                        ├─▶ artifacts   fetch, check, cache
//!                            └────── Event ───────────┼─▶ prepare     a card's code and environment
//!                                                     ├─▶ runtime     load, validate, unload
//!                                                     └─▶ mesh::local announce, drain
//! ```
//! What is not here: deciding which replicas a worker should hold (`plan`), and answering requests (`mesh`).
//!
//! Reading order: [`agent`] diffs the assignment; [`replica`] is the life of one replica; [`order`] says which piece of
//! work is next; [`breaker`] keeps failing hosts alone; [`driver`] carries it out with [`prepare`], [`artifacts`] and
//! [`runtime`]. [`scripted`] is a model server for tests of whatever calls one.

pub mod agent;
pub mod breaker;
pub mod cgroup;
pub mod egress;
pub mod fault;
pub mod gpu;
mod load_times;
pub mod order;
pub mod replica;

pub mod artifacts;
pub mod prepare;
pub mod runtime;
pub mod scripted;

pub mod capacity;
pub mod config;
pub mod driver;
pub mod metrics;
pub mod time_slice;

pub use agent::{Agent, Effect, Event};
pub use config::Config;
pub use driver::{Stopped, Worker, WorkerLink, build, build_with, build_with_servers};
pub use fault::Fault;

pub use berth_spec::FromController;
