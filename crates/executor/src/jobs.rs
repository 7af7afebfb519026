//! Asynchronous serving: a request is accepted at once, waits in a queue, and its answer is fetched, sent or followed later.
//!
//! ```text
//! client ──▶ api ──▶ queue ◀── runner ──▶ model server
//!   ▲         │        │          └─────▶ callback's receiver
//!   └─────────┴────────┘ status, result, events
//! ```

mod api;
mod asked;
mod attempt;
mod callback;
#[cfg(test)]
mod conformance;
mod follower;
mod followers;
mod incoming;
mod jetstream;
mod job;
mod job_table;
mod memory;
mod metrics;
mod queue;
mod redis;
mod runner;
mod service;
mod settings;
mod signature;
mod view;

pub(crate) use self::{
    attempt::RetryPolicy,
    job::{Answer, JobId},
    metrics::JobFamilies,
    queue::{Bounds, LEASE},
    service::{JobQueue, Jobs},
    settings::{CallbackSettings, JobSettings, QueueSettings},
};
