//! Forwarding: a request whose model is held by another node goes there as it came, and its answer comes back untouched.
//!
//! ```text
//!  ingress ── RequestContext ──▶ RetryState ── choose an endpoint ──▶ send ── answered ──▶ buffered ──▶ client
//!                  ▲                │  ▲                               │
//!                  │                │  └── not sent, not run ──────────┤  at once, each endpoint once a round
//!                  │                │  └── connection broke, too slow ─┘  within the budget, if idempotent and replayable
//!                  └──── parked ────┘ no endpoint is left: a miss, until a route, a hint or a member changes
//! ```
//!
//! * [`endpoint`](crate::endpoint) holds the nodes and their records, and chooses among them.
//! * [`retry_state`] decides whether a request goes elsewhere, [`patience`] when.
//! * [`buffered`] is an answer that can still be thrown away.
//!
//! A node that serves a forwarded request never forwards it again: there is one hop at most.

pub(crate) mod admitted;
pub(crate) mod buffered;
pub(crate) mod context;
pub(crate) mod describe;
pub(crate) mod head;
pub(crate) mod patience;
pub(crate) mod retry_state;
pub(crate) mod run;
pub(crate) mod runner;
pub(crate) mod send;
