//! What the gateway counts of requests that go to other nodes, and of those that come from them.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::counter;
use crate::{
    hop::{held::NotRun, journey::Forwarding},
    latency::Latency,
};

/// How one sending ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Result {
    /// With an answer, good or bad.
    Answered,
    /// The place ran nothing.
    NotRun,
    /// Nothing arrived there.
    NotSent,
    /// The line broke.
    Broken,
    /// The deadline passed, or the time that one place gets.
    Late,
    /// The client's body failed.
    Client,
}

impl Result {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Answered, "answered"),
        (Self::NotRun, "not_run"),
        (Self::NotSent, "not_sent"),
        (Self::Broken, "broken"),
        (Self::Late, "late"),
        (Self::Client, "client"),
    ];
}

/// Why a request was sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    NotSent,
    Broken,
    Late,
    Draining,
    Absent,
    Full,
    Stopping,
}

impl Again {
    const ALL: [(Self, &'static str); 7] = [
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
const REGIONS: [&str; 2] = ["other", "own"];

/// What was sent to other nodes.
#[derive(Default)]
pub(crate) struct Hops {
    /// By region and result.
    results: [[AtomicU64; Result::ALL.len()]; 2],
    again: [AtomicU64; Again::ALL.len()],
    /// From sending to the end of the answer, or of its part that is held back.
    took: Latency,
}

impl Hops {
    /// One sending ended.
    pub(crate) fn sent(&self, result: Result, near: bool, took: Duration) {
        self.results[usize::from(near)][result as usize].fetch_add(1, Relaxed);
        if result == Result::Answered {
            self.took.record(took);
        }
    }

    /// A request goes elsewhere.
    pub(crate) fn again(&self, why: Again) {
        self.again[why as usize].fetch_add(1, Relaxed);
    }
}

/// Tells what was sent.
pub(super) fn encode(forwarding: &Forwarding, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let hops = &forwarding.hops;
    let help = "Requests sent to other nodes, by result and by whether that is in the gateway's own region";
    let mut family = encoder.encode_descriptor("berth_gateway_forwards", help, None, MetricType::Counter)?;
    for (region, results) in REGIONS.iter().zip(&hops.results) {
        for ((_, result), count) in Result::ALL.iter().zip(results) {
            let labels = [("result", *result), ("region", *region)];
            counter(&mut family.encode_family(&labels)?, count.load(Relaxed))?;
        }
    }
    let help = "Requests that went to another place after one did not answer, by what it did";
    let mut family = encoder.encode_descriptor("berth_gateway_retries", help, None, MetricType::Counter)?;
    for ((_, why), count) in Again::ALL.iter().zip(&hops.again) {
        counter(&mut family.encode_family(&[("reason", *why)])?, count.load(Relaxed))?;
    }
    let (mut ejected, mut known) = (0_u32, 0_u32);
    forwarding.remotes.each(|remote| {
        known += 1;
        ejected += u32::from(remote.is_ejected());
    });
    gauge(encoder, ("berth_gateway_remotes", "Nodes that routes lead to"), u64::from(known))?;
    gauge(encoder, ("berth_gateway_ejected", "Nodes that requests avoid just now"), u64::from(ejected))?;
    let help = ("berth_gateway_replay_bytes", "Bytes of request bodies that are kept to be sent again");
    gauge(encoder, help, forwarding.room.used() as u64)?;
    let help = "Seconds from sending a request to another node to its answer";
    let took = hops.took.snapshot();
    let mut histogram =
        encoder.encode_descriptor("berth_gateway_forward_seconds", help, None, MetricType::Histogram)?;
    histogram.encode_histogram::<NoLabelSet>(took.sum_seconds(), took.count(), &took.coarse(), None)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, (name, help): (&str, &str), value: u64) -> fmt::Result {
    let mut gauge: MetricEncoder<'_> = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    gauge.encode_gauge(&value)
}

/// Requests that other nodes sent here.
#[derive(Default)]
pub(crate) struct Served {
    run: AtomicU64,
    not_run: [AtomicU64; NotRun::ALL.len()],
}

impl Served {
    /// One was run, well or not.
    pub(crate) fn run(&self) {
        self.run.fetch_add(1, Relaxed);
    }

    /// One was sent back.
    pub(crate) fn not_run(&self, why: NotRun) {
        self.not_run[why as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests that came from other nodes, by what was done with them";
        let mut family = encoder.encode_descriptor("berth_gateway_hops", help, None, MetricType::Counter)?;
        counter(&mut family.encode_family(&[("result", "run")])?, self.run.load(Relaxed))?;
        for (why, count) in NotRun::ALL.iter().zip(&self.not_run) {
            counter(&mut family.encode_family(&[("result", why.as_str())])?, count.load(Relaxed))?;
        }
        Ok(())
    }
}
