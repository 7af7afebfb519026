//! Counts requests that go to other nodes, and those that come from them.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::{latency::Latency, metrics::counter, not_run::NotRun};

/// The result of sending a request to another node once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HopResult {
    /// With an answer, good or bad.
    Answered,
    /// The endpoint ran nothing.
    NotRun,
    /// Nothing arrived there.
    NotSent,
    /// The connection broke after the request was sent: it may have been run.
    Broken,
    /// The deadline passed, or the time that one endpoint gets.
    Late,
    /// The client's body failed.
    Client,
}

impl HopResult {
    pub(crate) const ALL: [(Self, &'static str); 6] = [
        (Self::Answered, "answered"),
        (Self::NotRun, "not_run"),
        (Self::NotSent, "not_sent"),
        (Self::Broken, "broken"),
        (Self::Late, "late"),
        (Self::Client, "client"),
    ];
}

/// The reason why a request was sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryReason {
    NotSent,
    Broken,
    Late,
    Draining,
    Absent,
    Full,
    Stopping,
}

impl RetryReason {
    pub(crate) const ALL: [(Self, &'static str); 7] = [
        (Self::NotSent, "not_sent"),
        (Self::Broken, "broken"),
        (Self::Late, "late"),
        (Self::Draining, NotRun::Draining.as_str()),
        (Self::Absent, NotRun::Absent.as_str()),
        (Self::Full, NotRun::Full.as_str()),
        (Self::Stopping, NotRun::Stopping.as_str()),
    ];

    pub(crate) const fn of(why: NotRun) -> Self {
        match why {
            NotRun::Draining => Self::Draining,
            NotRun::Absent => Self::Absent,
            NotRun::Full => Self::Full,
            NotRun::Stopping => Self::Stopping,
        }
    }
}

/// Near and far: in the gateway's own region, and in another.
pub(crate) const REGIONS: [&str; 2] = ["other", "own"];

/// Counts requests that were sent to other nodes.
#[derive(Default)]
pub(crate) struct Hops {
    /// Attempts by region, as in [`REGIONS`], and by [`HopResult`].
    pub(crate) results: [[AtomicU64; HopResult::ALL.len()]; 2],
    pub(crate) retries: [AtomicU64; RetryReason::ALL.len()],
    /// From sending to the end of the answer, or of its part that is held back.
    pub(crate) took: Latency,
}

impl Hops {
    /// Counts an attempt at its end; `near`: in the gateway's own region.
    pub(crate) fn sent(&self, result: HopResult, near: bool, took: Duration) {
        self.results[usize::from(near)][result as usize].fetch_add(1, Relaxed);
        if result == HopResult::Answered {
            self.took.record(took);
        }
    }

    /// A request goes elsewhere.
    pub(crate) fn retried(&self, why: RetryReason) {
        self.retries[why as usize].fetch_add(1, Relaxed);
    }
}

/// Requests that other nodes sent here.
#[derive(Default)]
pub(crate) struct ServedHops {
    run: AtomicU64,
    not_run: [AtomicU64; NotRun::ALL.len()],
}

impl ServedHops {
    /// One was run, well or not.
    pub(crate) fn run(&self) {
        self.run.fetch_add(1, Relaxed);
    }

    /// One was sent back.
    pub(crate) fn not_run(&self, why: NotRun) {
        self.not_run[why as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests that came from other nodes, by what was done with them";
        let mut family = encoder.encode_descriptor("berth_gateway_hops", help, None, MetricType::Counter)?;
        counter(&mut family.encode_family(&[("result", "run")])?, self.run.load(Relaxed))?;
        for (why, count) in NotRun::ALL.iter().zip(&self.not_run) {
            counter(&mut family.encode_family(&[("result", why.as_str())])?, count.load(Relaxed))?;
        }
        Ok(())
    }
}
