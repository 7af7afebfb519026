//! The real brains of controllers and workers under a virtual clock: no network, no disk, no threads, and the same
//! result every time from the same seed.
//!
//! ```text
//! script | chaos | fleet ──▶ Cluster { controllers, workers, gateways, store, artifacts, requests } ──▶ checks
//!                               ▲                                   │
//!                               └── one queue, by time ◀── effects ─┘
//! ```
//! Real are the controller's brain with the planner, and the worker's agent. Modelled, with the rules of the real ones:
//! the [`store`] with its leases and fences, [`election`], membership, the [`net`]work with its [`stream`]s,
//! gateways ([`gateway`]) with their clients' [`request`]s, and each worker's machine ([`node`]).
//!
//! Checked at each step: the laws of what was decided, as far as the step touched it (`audit`), that no machine really
//! holds more than it has, that no request is answered wrongly or refused in vain (`oracle`); every so many steps all of
//! it by the planner's own linter; once everything is calm, that it settles and stays where it is.
//!
//! [`script`] reads stories like a conversation; [`chaos`] makes random ones on three workers, [`fleet`] on a hundred,
//! with every kind of [`fault`].

pub mod net;
pub mod rng;

mod event_queue;
mod members;
mod stream;
mod wakes;

mod election;
pub mod store;

pub mod controller_node;
pub mod fault;
pub mod gateway;
pub mod node;
pub mod process;
pub mod request;

mod audit;
mod oracle;

pub mod cluster;

pub mod chaos;
pub mod fleet;
pub mod script;
