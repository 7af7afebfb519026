//! The hop: a request whose model is held by another node goes there as it came, and its answer comes back untouched.
//!
//! ```text
//!  stack ── Errand ──▶ Journey ── choose a place ──▶ send ── answered ──▶ held ──▶ client
//!              ▲          │  ▲                         │
//!              │          │  └── not sent, not run ────┤  at once, each place once a round
//!              │          │  └── line broke, far too slow ─┘  within the budget, if idempotent and replayable
//!              └── park ──┘ no place is left: a miss, until a route, a hint or a member changes
//! ```
//!
//! * [`fleet`] says which node is behind a name now; [`place`] is one revision on one of them.
//! * [`choose`] (power of two choices), [`outlier`] (ejecting), [`patience`] (leaving) and [`budget`] (retrying) decide; they
//!   do no I/O.
//! * [`upload`] is a request's body that can be sent again; [`held`] an answer that can still be thrown away.
//!
//! A place that serves a forwarded request never forwards it again: there is one hop at most.

pub(crate) mod tick;

pub(crate) mod budget;
pub(crate) mod choose;
pub(crate) mod outlier;
pub(crate) mod patience;
pub(crate) mod score;

pub(crate) mod fleet;
pub(crate) mod place;

pub(crate) mod head;
pub(crate) mod held;
pub(crate) mod upload;

pub(crate) mod journey;
pub(crate) mod send;
