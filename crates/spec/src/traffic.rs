//! Demand: reports of gateways to the controller about use.

use std::time::Duration;

use crate::{DeploymentName, RevisionId, Time};

/// One deployment's use as one gateway saw it since it last spoke of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// The deployment that requests asked for.
    pub deployment: DeploymentName,
    /// Requests parked now.
    pub waiting: u32,
    /// Requests in flight now.
    pub in_flight: u32,
    /// When the last request came. Absolute: a registration in the past never looks recent.
    pub last_used: Time,
    /// Requests since the last word.
    pub requests: u64,
}

/// Upper bounds of the latency buckets, fine enough to compare two revisions. One more bucket holds what took longer.
pub const LATENCY_BOUNDS: [Duration; 12] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// The number of latency buckets, the one beyond the last bound included.
pub const LATENCY_BUCKETS: usize = LATENCY_BOUNDS.len() + 1;

/// The results of one revision's requests over some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionOutcomes {
    /// The revision that the requests were sent to.
    pub revision: RevisionId,
    /// Requests that succeeded.
    pub ok: u64,
    /// Requests that were at fault themselves, or whose clients left.
    pub client_errors: u64,
    /// Requests that the model or its node failed on, or did not answer in time.
    pub server_errors: u64,
    /// Requests by how long they took.
    pub latency: [u64; LATENCY_BUCKETS],
}

impl RevisionOutcomes {
    /// No requests.
    #[must_use]
    pub fn none(revision: RevisionId) -> Self {
        Self { revision, ok: 0, client_errors: 0, server_errors: 0, latency: [0; LATENCY_BUCKETS] }
    }

    /// All requests: those that succeeded and both kinds of errors.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.ok.saturating_add(self.client_errors).saturating_add(self.server_errors)
    }

    /// Adds what another gateway saw, or the same one later. The revisions must be the same.
    pub fn add(&mut self, other: &Self) {
        self.ok = self.ok.saturating_add(other.ok);
        self.client_errors = self.client_errors.saturating_add(other.client_errors);
        self.server_errors = self.server_errors.saturating_add(other.server_errors);
        for (sum, count) in self.latency.iter_mut().zip(&other.latency) {
            *sum = sum.saturating_add(*count);
        }
    }
}

/// A message of a gateway to the controller.
#[derive(Debug, Clone, PartialEq)]
pub enum GatewayEvent {
    /// Use, coalesced per deployment. A deployment with `waiting > 0` is a miss and is planned for at once.
    Demand(Vec<Demand>),
    /// Results since the last report, of revisions that had requests.
    Outcomes(Vec<RevisionOutcomes>),
    /// A client asked over the model repository protocol that an on-demand deployment be paged out now.
    PageOut(DeploymentName),
    /// Route changes up to this [`seq`](crate::RouteChange::seq) are in force: the next request is routed by them.
    Applied(u64),
    /// A route change builds on a state that this gateway does not have: it wants everything.
    Resync,
}
