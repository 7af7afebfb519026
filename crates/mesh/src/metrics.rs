//! The counters of the gateway. Plain relaxed atomics on the way of a request (some 20 ns); the collector reads them when
//! somebody scrapes. A deployment's numbers live in its entry and go with it, so labels never outlive deployments.

pub(crate) mod forward;

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_spec::{Class, InferError, UseLimit, inference::Shed};
use berth_wire::status::{grpc_code, http_status};
use prometheus_client::{
    encoding::{MetricEncoder, NoLabelSet},
    metrics::counter::Counter,
};

use http::StatusCode;
use tonic::{Code, Status};

use crate::latency::{Latency, Snapshot};

/// The protocol of a request, the label `protocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Rest,
    Grpc,
}

impl Protocol {
    pub(crate) const ALL: [Self; 2] = [Self::Rest, Self::Grpc];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Grpc => "grpc",
        }
    }
}

/// The end of a request, as far as metrics tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Invalid,
    NotFound,
    TooLarge,
    Unsupported,
    Shed,
    /// A limit on use was met.
    Limited,
    TimedOut,
    /// The client went away.
    Cancelled,
    Internal,
    /// The line to where it ran broke, and it could not be sent again.
    Lost,
}

impl Outcome {
    pub(crate) const ALL: [Self; 11] = [
        Self::Ok,
        Self::Invalid,
        Self::NotFound,
        Self::TooLarge,
        Self::Unsupported,
        Self::Shed,
        Self::Limited,
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
            InferError::Limited { .. } => Self::Limited,
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
            429 => Self::Limited,
            503 => Self::Shed,
            504 => Self::TimedOut,
            400..=499 => Self::Invalid,
            _ => Self::Internal,
        }
    }

    /// The outcome that a gRPC status tells.
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

    /// The result by the party to blame, in one of three words.
    pub(crate) fn result(self) -> OutcomeResult {
        match self {
            Self::Ok => OutcomeResult::Ok,
            Self::Invalid | Self::NotFound | Self::TooLarge | Self::Unsupported | Self::Limited | Self::Cancelled => {
                OutcomeResult::ClientError
            }
            Self::Shed | Self::TimedOut | Self::Internal | Self::Lost => OutcomeResult::ServerError,
        }
    }

    /// The status code of the protocol: `200`, `503`, `OK`, `Unavailable`. 499 is nginx's word for a client that left.
    pub(crate) fn code(self, protocol: Protocol) -> String {
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
            Self::Limited => Class::Limited { retry_in: Duration::ZERO },
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

/// The end of a request in one of three words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutcomeResult {
    Ok,
    ClientError,
    ServerError,
}

/// The counts and latencies of one deployment's requests since the start of the gateway.
#[derive(Default)]
pub(crate) struct Stats {
    /// Made by the first request of each protocol: models are mostly asked by one, and thousands of them by few requests.
    protocols: [OnceLock<Box<ByProtocol>>; Protocol::ALL.len()],
    misses: AtomicU64,
    pub(crate) request_bytes: AtomicU64,
    pub(crate) response_bytes: AtomicU64,
}

#[derive(Default)]
pub(crate) struct ByProtocol {
    pub(crate) outcomes: [AtomicU64; Outcome::ALL.len()],
    pub(crate) latency: Latency,
}

impl Stats {
    /// Counts a request at its end, and its time since it came.
    pub(crate) fn record(&self, protocol: Protocol, outcome: Outcome, took: Duration) {
        let numbers = self.protocols[protocol as usize].get_or_init(Box::default);
        numbers.outcomes[outcome as usize].fetch_add(1, Relaxed);
        numbers.latency.record(took);
    }

    /// The numbers of a protocol, if it had a request.
    pub(crate) fn of(&self, protocol: Protocol) -> Option<&ByProtocol> {
        self.protocols[protocol as usize].get().map(|numbers| &**numbers)
    }

    fn each(&self) -> impl Iterator<Item = &ByProtocol> {
        Protocol::ALL.into_iter().filter_map(move |protocol| self.of(protocol))
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
        self.each().map(|numbers| numbers.outcomes[outcome as usize].load(Relaxed)).sum()
    }

    /// The latencies of all protocols together.
    pub(crate) fn latency(&self) -> Snapshot {
        self.each().fold(Snapshot::default(), |sum, numbers| sum.and(&numbers.latency.snapshot()))
    }
}

/// The owner of a limit, as metrics tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Model,
    Principal,
}

impl Scope {
    pub(crate) const ALL: [Self; 2] = [Self::Model, Self::Principal];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Principal => "principal",
        }
    }
}

/// The numbers of the whole gateway.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) shed: [AtomicU64; SHEDS.len()],
    /// Requests that met a limit, by its owner and the limit.
    pub(crate) limited: [[AtomicU64; UseLimit::ALL.len()]; Scope::ALL.len()],
    /// Requests for models that nobody declared: one row, or clients could make labels at will.
    pub(crate) unknown: Stats,
    pub(crate) connections: AtomicU64,
    /// Answers over HTTP/2 that were cut, since their clients left them unread.
    pub(crate) unread: Counter,
}

/// Reasons, in the order of their counters.
pub(crate) const SHEDS: [Shed; 9] = [
    Shed::Loading,
    Shed::QueueFull,
    Shed::NoCapacity,
    Shed::LoadFailed,
    Shed::ScaledDown,
    Shed::ShuttingDown,
    Shed::Unavailable,
    Shed::NoMemory,
    Shed::Overloaded,
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

pub(crate) fn counter(encoder: &mut MetricEncoder<'_>, count: u64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, _, u64>(&count, None)
}
