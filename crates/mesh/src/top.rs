//! A cheap look at what the gateway does now: what `berth top` shows. Counters and histograms are since the start;
//! whoever looks twice subtracts.

use std::sync::atomic::Ordering::Relaxed;

use berth_spec::DeploymentName;

pub use crate::latency::Snapshot as LatencySnapshot;
use crate::{deployment::DeploymentState, metrics::Outcome, routes::Routes};

/// One deployment that had a request.
#[derive(Debug, Clone)]
pub struct Row {
    /// Name of the deployment, whatever alias the requests named.
    pub deployment: DeploymentName,
    /// A replica answers here now.
    pub ready: bool,
    /// Requests that hold a replica now.
    pub in_flight: u32,
    /// Requests that wait for one now.
    pub parked: u32,
    /// Requests that ended, well or not.
    pub requests: u64,
    /// Requests that ended with an error of any kind.
    pub errors: u64,
    /// Requests that found nothing ready.
    pub misses: u64,
    /// Durations of the ended requests, from arrival to answer, over both protocols.
    pub latency: LatencySnapshot,
}

impl Row {
    fn of(entry: &DeploymentState) -> Option<Self> {
        let hot = entry.used()?;
        let requests = Outcome::ALL.map(|outcome| hot.stats.ended(outcome)).iter().sum();
        Some(Self {
            deployment: entry.name.clone(),
            ready: entry.route().any_ready(),
            in_flight: hot.usage.in_flight.load(Relaxed),
            parked: hot.queue.waiting(),
            requests,
            errors: requests - hot.stats.ended(Outcome::Ok).min(requests),
            misses: hot.stats.misses(),
            latency: hot.stats.latency(),
        })
    }
}

/// Calls `each` for every deployment that had a request, in no order.
pub(crate) fn each(routes: &Routes, mut each: impl FnMut(Row)) {
    routes.each_live(|entry| {
        if let Some(row) = Row::of(entry) {
            each(row);
        }
    });
}
