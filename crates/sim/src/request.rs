//! A client's requests: each ends exactly once.
//!
//! ```text
//! infer ──▶ Parked ◀──────────── nowhere to go ─────────┐
//!              │ a route leads somewhere                │
//!              ▼                                        │
//!          Forwarded ── not run, broken ──▶ elsewhere? ─┘
//!              │
//!              ▼ answered | refused, with a reason | the client's patience ends
//! ```

use std::collections::BTreeMap;

use berth_spec::{DeploymentName, RevisionId, Time, WorkerId};

/// Names a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Number of an attempt at a request: answers to earlier ones come too late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u32);

/// The answer of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Run by this revision.
    By(RevisionId),
    /// Not run: sending it elsewhere is safe.
    NotRun,
    /// The connection broke: it may have been run.
    Broken,
}

/// A request (or a few that came together) on its way.
#[derive(Debug, Clone)]
pub struct Request {
    /// The deployment that it asks for.
    pub name: DeploymentName,
    /// The number of requests that came together.
    pub count: u32,
    /// The gateway that it came to.
    pub gateway_id: WorkerId,
    /// The time at which it came to the gateway.
    pub since: Time,
    /// Parked, or forwarded to one worker.
    pub state: RequestState,
    /// Workers that did not answer it.
    pub tried: Vec<WorkerId>,
    /// The number of connections that broke under it.
    pub broken: u32,
    /// The attempt that counts.
    pub attempt: Attempt,
    /// The number of times that a worker ran it: more than one where a connection broke.
    pub runs: u32,
}

/// The state of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestState {
    /// Waits at its gateway.
    Parked,
    /// Forwarded.
    At {
        /// To this worker.
        worker: WorkerId,
        /// For this revision, by the name of this version.
        version: String,
    },
}

/// Counts of requests by outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Answered.
    pub answered: u64,
    /// Sent to a second place and further.
    pub retried: u64,
    /// Refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Their clients gave up.
    pub gave_up: u64,
}

/// All requests that are on their way, and what became of the others.
#[derive(Debug, Default)]
pub struct Requests {
    /// On their way.
    pub open: BTreeMap<RequestId, Request>,
    /// The outcomes of the other requests.
    pub tally: RequestCounts,
    last: u64,
}

impl Requests {
    /// A request arrives at a gateway.
    pub(crate) fn arrive(&mut self, gateway_id: &WorkerId, name: &DeploymentName, count: u32, now: Time) -> RequestId {
        self.last += 1;
        let id = RequestId(self.last);
        let request = Request {
            name: name.clone(),
            count,
            gateway_id: gateway_id.clone(),
            since: now,
            state: RequestState::Parked,
            tried: Vec::new(),
            broken: 0,
            attempt: Attempt(0),
            runs: 0,
        };
        self.open.insert(id, request);
        id
    }
}
