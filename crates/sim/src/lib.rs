//! The real brains of controller and workers under a virtual clock: no network, no disk, no threads, and the same
//! result every time from the same seed.
//!
//! ```text
//! script | chaos ──▶ Cluster { controller, agents, gateway, store, artifacts } ──▶ check (lint after each step)
//!                       ▲                                   │
//!                       └── post (one queue, by time) ◀─────┘
//! ```
//! [`cluster`] delivers messages and performs effects; [`node`] is a worker's machine, [`gate`] a gateway with its
//! parked requests, [`state`] what survives a restart of the controller. [`script`] reads stories like a conversation;
//! [`chaos`] makes random ones and breaks things.

pub mod chance;
pub mod gate;
pub mod node;
pub mod state;

pub mod cluster;

pub mod chaos;
pub mod script;
