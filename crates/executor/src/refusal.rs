//! Answers of the executor itself, in the form of the request's protocol.

use berth_spec::UseLimit;
use berth_wire::access::Unauthenticated;
use http::{HeaderValue, Response, StatusCode, header};

use crate::body::{Body, full};

/// Reason why the executor answers in the server's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nobody knows who asks.
    Unknown(Unauthenticated),
    /// No role allows it.
    Denied(Box<str>),
    /// A limit of whoever asks, which lets the next one in after some seconds.
    Limited { limit: UseLimit, seconds: u64 },
    /// The path has segments that lead out of it.
    DotSegments,
    /// Several headers say which host is meant.
    Hosts,
    /// The request's body broke off, or is malformed.
    BadBody,
    /// As many requests as may be are in flight.
    Busy { most: usize },
    /// The breaker is open for some more seconds.
    Open { seconds: u64 },
    /// A tunnel is asked for: the executor stands before one server, and leads nowhere else.
    Tunnel,
    /// The request's body is larger than it may be.
    TooLarge { most: u64 },
    /// The bodies of other requests take all memory.
    NoMemory,
    /// No connection to the server.
    Unreachable,
    /// The server broke the connection before it answered.
    Broken,
    /// The server said that it did not look at the request.
    NotTaken,
    /// No answer in time.
    Late { seconds: u64 },
    /// The client did not send all of the body in time.
    Slow { seconds: u64 },
}

impl Refusal {
    /// The word for metrics.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "unauthenticated",
            Self::Denied(_) => "denied",
            Self::Limited { limit, .. } => limit.as_str(),
            Self::DotSegments => "dot_segments",
            Self::Hosts => "hosts",
            Self::BadBody => "bad_body",
            Self::Busy { .. } => "busy",
            Self::Open { .. } => "breaker_open",
            Self::Tunnel => "tunnel",
            Self::TooLarge { .. } => "too_large",
            Self::NoMemory => "no_memory",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::NotTaken => "not_taken",
            Self::Late { .. } => "late",
            Self::Slow { .. } => "slow_client",
        }
    }

    /// The status in HTTP, and the code in gRPC (grpc.github.io/grpc/core/md_doc_statuscodes.html).
    const fn status(&self) -> (StatusCode, u16) {
        match self {
            Self::Unknown(why) if why.retry_in().is_some() => (StatusCode::SERVICE_UNAVAILABLE, 14),
            Self::Unknown(_) => (StatusCode::UNAUTHORIZED, 16),
            Self::Denied(_) => (StatusCode::FORBIDDEN, 7),
            Self::Limited { .. } => (StatusCode::TOO_MANY_REQUESTS, 8),
            Self::DotSegments | Self::Hosts | Self::BadBody => (StatusCode::BAD_REQUEST, 3),
            Self::Busy { .. } | Self::Open { .. } | Self::NoMemory => (StatusCode::SERVICE_UNAVAILABLE, 14),
            Self::Tunnel => (StatusCode::METHOD_NOT_ALLOWED, 12),
            Self::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, 8),
            Self::Unreachable | Self::Broken | Self::NotTaken => (StatusCode::BAD_GATEWAY, 14),
            Self::Late { .. } => (StatusCode::GATEWAY_TIMEOUT, 4),
            Self::Slow { .. } => (StatusCode::REQUEST_TIMEOUT, 4),
        }
    }

    pub(crate) fn message(&self) -> String {
        match self {
            Self::Unknown(why) => why.to_string(),
            Self::Denied(why) => why.to_string(),
            Self::Limited { limit, seconds } => {
                format!(
                    "your {} of this model is reached (access.limits, or that of your token): try again in {seconds} s",
                    limit.as_str()
                )
            }
            Self::DotSegments => {
                "the path has a segment . or .., which leads out of what is open to you: send the path that you mean"
                    .to_owned()
            }
            Self::Hosts => "the request has several Host headers: send one".to_owned(),
            Self::BadBody => {
                "your request's body broke off, or its chunks or frames are malformed: send all of it".to_owned()
            }
            Self::Busy { most } => {
                format!("{most} requests are in flight, which is the most (maxInFlight): try again later")
            }
            Self::Open { seconds } => {
                format!(
                    "the model server did not answer several times in a row and is left alone for {seconds} s: try again then"
                )
            }
            Self::Tunnel => "CONNECT is not passed on: send the request itself".to_owned(),
            Self::TooLarge { most } => format!("the body has more than {most} bytes, which is the most (maxBody)"),
            Self::NoMemory => {
                "the bodies of other requests take a quarter of the memory, which is the most: try again later".to_owned()
            }
            Self::Unreachable => "the model server takes no connections (connectTimeout): see its log".to_owned(),
            Self::Broken => {
                "the model server closed the connection before it answered, or its answer is no HTTP: see its log".to_owned()
            }
            Self::NotTaken => {
                "the model server ended the request and says that it did not look at it (HTTP/2 GOAWAY or REFUSED_STREAM): send it again"
                    .to_owned()
            }
            Self::Late { seconds } => format!("the model server did not begin to answer within {seconds} s (timeout)"),
            Self::Slow { seconds } => {
                format!("your request's body did not arrive within {seconds} s (timeout): send it again")
            }
        }
    }

    /// The answer. `grpc`: to a call of gRPC, whose status is in the trailers or, where nothing else is said, in the head.
    pub(crate) fn response(&self, grpc: bool) -> Response<Body> {
        let ((status, code), message) = (self.status(), self.message());
        let mut response = if grpc {
            let mut response = Response::new(full(""));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert("grpc-status", code.into());
            // The messages are ASCII without percent signs, as this header wants it.
            if let Ok(message) = HeaderValue::from_str(&message) {
                headers.insert("grpc-message", message);
            }
            response
        } else {
            let mut response = Response::new(full(serde_json::json!({ "error": message }).to_string()));
            *response.status_mut() = status;
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        };
        let again = match self {
            Self::Busy { .. } | Self::NoMemory => Some(1),
            Self::Open { seconds } | Self::Limited { seconds, .. } => Some(*seconds),
            Self::Unknown(why) => why.retry_in().map(|pause| pause.as_secs()),
            _ => None,
        };
        if matches!(self, Self::Unknown(why) if why.retry_in().is_none()) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = again {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
