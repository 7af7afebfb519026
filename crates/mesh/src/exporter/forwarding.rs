//! The metrics of requests that were sent to other nodes.

use std::{fmt, sync::atomic::Ordering::Relaxed};

use prometheus_client::{
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

use crate::{
    endpoint::forwarding::Forwarding,
    metrics::{
        counter,
        forward::{HopResult, REGIONS, RetryReason},
    },
};

/// Tells what was sent.
pub(super) fn encode(forwarding: &Forwarding, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let hops = &forwarding.hops;
    let help = "Requests sent to other nodes, by result and by whether that is in the gateway's own region";
    let mut family = encoder.encode_descriptor("berth_gateway_forwards", help, None, MetricType::Counter)?;
    for (region, results) in REGIONS.iter().zip(&hops.results) {
        for ((_, result), count) in HopResult::ALL.iter().zip(results) {
            let labels = [("result", *result), ("region", *region)];
            counter(&mut family.encode_family(&labels)?, count.load(Relaxed))?;
        }
    }
    let help = "Requests that went to another endpoint after one did not answer, by what it did";
    let mut family = encoder.encode_descriptor("berth_gateway_retries", help, None, MetricType::Counter)?;
    for ((_, why), count) in RetryReason::ALL.iter().zip(&hops.retries) {
        counter(&mut family.encode_family(&[("reason", *why)])?, count.load(Relaxed))?;
    }
    let (mut ejected, mut known) = (0_u32, 0_u32);
    forwarding.remotes.each(|remote| {
        known += 1;
        ejected += u32::from(remote.is_ejected());
    });
    gauge(encoder, "berth_gateway_remotes", "Nodes that routes lead to", u64::from(known))?;
    gauge(encoder, "berth_gateway_ejected", "Nodes that requests avoid just now", u64::from(ejected))?;
    let help = "Bytes of request bodies that are kept to be sent again";
    gauge(encoder, "berth_gateway_replay_bytes", help, forwarding.room.used() as u64)?;
    let help = "Seconds from sending a request to another node to its answer";
    let took = hops.took.snapshot();
    let mut histogram =
        encoder.encode_descriptor("berth_gateway_forward_seconds", help, None, MetricType::Histogram)?;
    histogram.encode_histogram::<NoLabelSet>(took.sum_seconds(), took.count(), &took.coarse(), None)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let mut gauge: MetricEncoder<'_> = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    gauge.encode_gauge(&value)
}
