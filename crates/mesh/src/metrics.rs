//! What the gateway counts. Plain relaxed atomics on the way of a request (some 20 ns); the collector reads them when
//! somebody scrapes. A deployment's numbers live in its entry and go with it, so labels never outlive deployments.

pub(crate) mod hop;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_spec::{Class, InferError, inference::Shed};
use berth_wire::status::{grpc_code, http_status};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

use http::StatusCode;
use tonic::{Code, Status};

use crate::{
    admit::Door,
    entry::{Entry, Hot},
    hop::journey::Forwarding,
    latency::{Latency, Snapshot},
    routes::Routes,
};

/// How a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Rest,
    Grpc,
}

impl Protocol {
    const ALL: [Self; 2] = [Self::Rest, Self::Grpc];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Grpc => "grpc",
        }
    }
}

/// How a request ended, as far as metrics tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Invalid,
    NotFound,
    TooLarge,
    Unsupported,
    Shed,
    TimedOut,
    /// The client went away.
    Cancelled,
    Internal,
    /// The line to where it ran broke, and it could not be sent again.
    Lost,
}

impl Outcome {
    pub(crate) const ALL: [Self; 10] = [
        Self::Ok,
        Self::Invalid,
        Self::NotFound,
        Self::TooLarge,
        Self::Unsupported,
        Self::Shed,
        Self::TimedOut,
        Self::Cancelled,
        Self::Internal,
        Self::Lost,
    ];

    pub(crate) fn of(error: &InferError) -> Self {
        match error {
            InferError::Invalid(_) | InferError::Unprocessable { .. } => Self::Invalid,
            InferError::TooLarge(_) => Self::TooLarge,
            InferError::NotFound(_) => Self::NotFound,
            InferError::Unsupported(_) => Self::Unsupported,
            InferError::Shed { .. } => Self::Shed,
            InferError::TimedOut(_) => Self::TimedOut,
            InferError::Cancelled => Self::Cancelled,
            InferError::Model(_) | InferError::Lost(_) | InferError::Internal(_) => Self::Internal,
        }
    }

    /// Of an answer that another node gave.
    pub(crate) fn of_http(status: StatusCode) -> Self {
        match status.as_u16() {
            200..400 => Self::Ok,
            404 => Self::NotFound,
            413 => Self::TooLarge,
            501 => Self::Unsupported,
            503 => Self::Shed,
            504 => Self::TimedOut,
            400..=499 => Self::Invalid,
            _ => Self::Internal,
        }
    }

    /// The same of a gRPC status.
    pub(crate) fn of_grpc(status: &Status) -> Self {
        match status.code() {
            Code::Ok => Self::Ok,
            Code::InvalidArgument => Self::Invalid,
            Code::NotFound => Self::NotFound,
            Code::ResourceExhausted => Self::TooLarge,
            Code::Unimplemented => Self::Unsupported,
            Code::Unavailable | Code::FailedPrecondition => Self::Shed,
            Code::DeadlineExceeded => Self::TimedOut,
            Code::Cancelled => Self::Cancelled,
            _ => Self::Internal,
        }
    }

    /// The status code of the protocol: `200`, `503`, `OK`, `Unavailable`. 499 is nginx's word for a client that left.
    fn code(self, protocol: Protocol) -> String {
        let class = match self {
            Self::Ok => return if protocol == Protocol::Rest { "200".to_owned() } else { "OK".to_owned() },
            Self::Cancelled => {
                return if protocol == Protocol::Rest { "499".to_owned() } else { "Cancelled".to_owned() };
            }
            Self::Invalid => Class::Invalid,
            Self::NotFound => Class::NotFound,
            Self::TooLarge => Class::TooLarge,
            Self::Unsupported => Class::Unsupported,
            Self::Shed => Class::Waiting { retry_in: Duration::ZERO },
            Self::TimedOut => Class::TimedOut,
            Self::Internal => Class::Internal,
            Self::Lost => return if protocol == Protocol::Rest { "502".to_owned() } else { "Unavailable".to_owned() },
        };
        match protocol {
            Protocol::Rest => http_status(class).as_str().to_owned(),
            Protocol::Grpc => format!("{:?}", grpc_code(class)),
        }
    }
}

/// The numbers of one deployment.
#[derive(Default)]
pub(crate) struct Stats {
    protocols: [ByProtocol; 2],
    misses: AtomicU64,
    pub(crate) request_bytes: AtomicU64,
    pub(crate) response_bytes: AtomicU64,
}

#[derive(Default)]
struct ByProtocol {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    latency: Latency,
}

impl Stats {
    /// A request ended.
    pub(crate) fn record(&self, protocol: Protocol, outcome: Outcome, took: Duration) {
        let numbers = &self.protocols[protocol as usize];
        numbers.outcomes[outcome as usize].fetch_add(1, Relaxed);
        numbers.latency.record(took);
    }

    /// A request found nothing ready.
    pub(crate) fn miss(&self) {
        self.misses.fetch_add(1, Relaxed);
    }

    pub(crate) fn misses(&self) -> u64 {
        self.misses.load(Relaxed)
    }

    /// Requests that ended so, by any protocol.
    pub(crate) fn ended(&self, outcome: Outcome) -> u64 {
        self.protocols.iter().map(|numbers| numbers.outcomes[outcome as usize].load(Relaxed)).sum()
    }

    /// The latencies of all protocols together.
    pub(crate) fn latency(&self) -> Snapshot {
        let [rest, grpc] = &self.protocols;
        rest.latency.snapshot().and(&grpc.latency.snapshot())
    }
}

/// The numbers of the whole gateway.
#[derive(Default)]
pub(crate) struct Totals {
    shed: [AtomicU64; SHEDS.len()],
    /// Requests for models that nobody declared: one row, or clients could make labels at will.
    pub(crate) unknown: Stats,
    pub(crate) connections: AtomicU64,
}

const SHEDS: [Shed; 7] = [
    Shed::Loading,
    Shed::QueueFull,
    Shed::NoCapacity,
    Shed::LoadFailed,
    Shed::ScaledDown,
    Shed::ShuttingDown,
    Shed::Unavailable,
];

impl Totals {
    /// Notes why a request was shed, if it was.
    pub(crate) fn error(&self, error: &InferError) {
        if let InferError::Shed { reason, .. } = error
            && let Some(index) = SHEDS.iter().position(|shed| shed == reason)
        {
            self.shed[index].fetch_add(1, Relaxed);
        }
    }
}

/// Tells Prometheus.
pub(crate) struct Exporter {
    pub(crate) routes: Arc<Routes>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) door: Arc<Door>,
    /// The way to other nodes; `None`: there are none.
    pub(crate) forwarding: Option<Arc<Forwarding>>,
    /// Requests that other nodes sent here.
    pub(crate) served: Arc<hop::Served>,
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("gateway metrics")
    }
}

/// The label of requests for models that nobody declared.
const UNKNOWN: &str = "";

impl Exporter {
    /// Calls `each` for every deployment that had a request, by name, and for the unknown ones together.
    fn stats(&self, used: &[Arc<Entry>], mut each: impl FnMut(&str, &Stats) -> fmt::Result) -> fmt::Result {
        for entry in used {
            each(entry.name.as_str(), &entry.hot().stats)?;
        }
        each(UNKNOWN, &self.totals.unknown)
    }

    fn used(&self) -> Vec<Arc<Entry>> {
        let mut used = Vec::new();
        self.routes.each(|entry| used.extend(entry.used().map(|_| Arc::clone(entry))));
        used.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        used
    }

    fn requests(&self, used: &[Arc<Entry>], mut family: MetricEncoder<'_>) -> fmt::Result {
        self.stats(used, |name, stats| {
            for protocol in Protocol::ALL {
                for outcome in Outcome::ALL {
                    let count = stats.protocols[protocol as usize].outcomes[outcome as usize].load(Relaxed);
                    if count > 0 {
                        let code = outcome.code(protocol);
                        let labels = [("deployment", name), ("protocol", protocol.as_str()), ("code", code.as_str())];
                        counter(&mut family.encode_family(&labels)?, count)?;
                    }
                }
            }
            Ok(())
        })
    }

    fn seconds(&self, used: &[Arc<Entry>], mut family: MetricEncoder<'_>) -> fmt::Result {
        self.stats(used, |name, stats| {
            for protocol in Protocol::ALL {
                let latency = stats.protocols[protocol as usize].latency.snapshot();
                if latency.count() > 0 {
                    let labels = [("deployment", name), ("protocol", protocol.as_str())];
                    family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                        latency.sum_seconds(),
                        latency.count(),
                        &latency.coarse(),
                        None,
                    )?;
                }
            }
            Ok(())
        })
    }
}

fn counter(encoder: &mut MetricEncoder<'_>, count: u64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, _, u64>(&count, None)
}

/// A counter per deployment.
fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    used: &[Arc<Entry>],
    (name, help): (&str, &str),
    read: impl Fn(&Hot) -> u64,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for entry in used {
        counter(&mut family.encode_family(&[("deployment", entry.name.as_str())])?, read(entry.hot()))?;
    }
    Ok(())
}

/// A gauge per deployment.
fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    used: &[Arc<Entry>],
    (name, help): (&str, &str),
    read: impl Fn(&Hot) -> u32,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for entry in used {
        family.encode_family(&[("deployment", entry.name.as_str())])?.encode_gauge(&read(entry.hot()))?;
    }
    Ok(())
}

impl Collector for Exporter {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let used = self.used();
        let of =
            |encoder: &mut DescriptorEncoder<'_>, name, help, kind, fill: &dyn Fn(MetricEncoder<'_>) -> fmt::Result| {
                fill(encoder.encode_descriptor(name, help, None, kind)?)
            };
        let help = "Inference requests by deployment, protocol and status code";
        of(&mut encoder, "berth_gateway_requests", help, MetricType::Counter, &|family| self.requests(&used, family))?;
        let help = "Seconds from the request's head to its answer, parked time included";
        of(&mut encoder, "berth_gateway_request_seconds", help, MetricType::Histogram, &|family| {
            self.seconds(&used, family)
        })?;
        let misses = ("berth_gateway_misses", "Requests that found no ready replica");
        counters(&mut encoder, &used, misses, |hot| hot.stats.misses())?;
        let bytes = ("berth_gateway_request_bytes", "Bytes of inference request bodies");
        counters(&mut encoder, &used, bytes, |hot| hot.stats.request_bytes.load(Relaxed))?;
        let bytes = ("berth_gateway_response_bytes", "Bytes of inference response bodies");
        counters(&mut encoder, &used, bytes, |hot| hot.stats.response_bytes.load(Relaxed))?;
        let in_flight = ("berth_gateway_in_flight", "Requests that hold a replica");
        gauges(&mut encoder, &used, in_flight, |hot| hot.usage.in_flight.load(Relaxed))?;
        gauges(&mut encoder, &used, ("berth_gateway_parked", "Requests that wait for a replica"), |hot| {
            hot.lot.waiting()
        })?;
        of(&mut encoder, "berth_gateway_shed", "Requests refused, by reason", MetricType::Counter, &|mut family| {
            for (shed, count) in SHEDS.iter().zip(&self.totals.shed) {
                counter(&mut family.encode_family(&[("reason", shed.as_str())])?, count.load(Relaxed))?;
            }
            Ok(())
        })?;
        of(&mut encoder, "berth_gateway_requests_inside", "Inferences inside now", MetricType::Gauge, &|mut gauge| {
            gauge.encode_gauge(&self.door.inside())
        })?;
        of(&mut encoder, "berth_gateway_connections", "Open connections", MetricType::Gauge, &|mut gauge| {
            gauge.encode_gauge(&self.totals.connections.load(Relaxed))
        })?;
        self.served.encode(&mut encoder)?;
        self.forwarding.as_ref().map_or(Ok(()), |forwarding| hop::encode(forwarding, &mut encoder))
    }
}
