//! Sees one request and its answer pass.
//!
//! ```text
//!  request: collecting ── first message │ end ──▶ told        answer: collecting ── end ──▶ told, with its status
//!                └─ dropped ──▶ told without its data              └─ dropped ──▶ told, CANCELLED
//! ```

use std::sync::Arc;

use berth_wire::request_id::RequestId;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use tonic::Code;

use super::{
    Payload, SECRETS,
    collector::{Collected, Collector},
    queue::Queue,
};

/// The form of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// gRPC messages, framed.
    Messages,
    /// One document.
    Whole,
}

impl Kind {
    fn of(headers: &HeaderMap) -> Self {
        let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        if kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) { Self::Messages } else { Self::Whole }
    }
}

/// A request and its answer, for those that ask for them.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) queues: Vec<Arc<Queue>>,
    pub(super) id: RequestId,
    pub(super) model: Arc<str>,
    pub(super) alias: Option<Arc<str>>,
    pub(super) method: Arc<str>,
}

impl Exchange {
    /// The most that is collected of a body.
    fn most(&self) -> usize {
        self.queues.iter().map(|queue| queue.most).max().unwrap_or_default()
    }

    fn tell(&self, mut metadata: HeaderMap, collected: Collected, code: Option<Code>) {
        let data = match collected {
            Collected::Data(data) => data,
            Collected::Part => Vec::new(),
            Collected::TooLong => {
                self.queues.iter().for_each(|queue| {
                    queue.counted.too_long.inc();
                });
                return;
            }
        };
        for secret in &SECRETS {
            metadata.remove(secret);
        }
        let (model, alias, method) = (Arc::clone(&self.model), self.alias.clone(), Arc::clone(&self.method));
        let payload = Arc::new(Payload { id: self.id.clone(), model, alias, method, metadata, data, code });
        for queue in &self.queues {
            queue.offer(&payload);
        }
    }
}

/// The taps of a request and of its answer.
#[derive(Debug)]
pub(crate) struct Tap {
    pub(super) exchange: Arc<Exchange>,
    pub(super) metadata: HeaderMap,
}

impl Tap {
    /// One for the request, one for the answer.
    pub(crate) fn split(self) -> (RequestTap, ResponseTap) {
        let most = self.exchange.most();
        let collector = Collector::new(Kind::of(&self.metadata), most);
        let answer = ResponseTap {
            exchange: Some(Arc::clone(&self.exchange)),
            metadata: HeaderMap::new(),
            collector: Collector::new(Kind::Messages, most),
            code: None,
        };
        (RequestTap { told: false, exchange: self.exchange, metadata: self.metadata, collector }, answer)
    }
}

/// Sees the body of a request pass.
#[derive(Debug)]
pub(crate) struct RequestTap {
    told: bool,
    exchange: Arc<Exchange>,
    metadata: HeaderMap,
    collector: Collector,
}

impl RequestTap {
    /// A piece of the body.
    pub(crate) fn piece(&mut self, piece: &Bytes) {
        if !self.told && self.collector.add(piece) {
            self.tell();
        }
    }

    /// The body is at its end.
    pub(crate) fn end(&mut self) {
        if !self.told {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.told = true;
        self.exchange.tell(std::mem::take(&mut self.metadata), self.collector.finish(), None);
    }
}

impl Drop for RequestTap {
    fn drop(&mut self) {
        if !self.told {
            self.exchange.tell(std::mem::take(&mut self.metadata), Collected::Part, None);
        }
    }
}

/// Sees an answer pass.
#[derive(Debug)]
pub(crate) struct ResponseTap {
    /// `None`: it was told.
    exchange: Option<Arc<Exchange>>,
    metadata: HeaderMap,
    collector: Collector,
    code: Option<Code>,
}

impl ResponseTap {
    /// The head of the answer.
    pub(crate) fn head(&mut self, head: &http::response::Parts) {
        let kind = Kind::of(&head.headers);
        self.collector = Collector::new(kind, self.exchange.as_ref().map_or(0, |exchange| exchange.most()));
        self.metadata.clone_from(&head.headers);
        match kind {
            Kind::Messages => self.status(&head.headers),
            Kind::Whole => self.code = Some(code_of(head.status)),
        }
    }

    /// A piece of the body.
    pub(crate) fn piece(&mut self, piece: &Bytes) {
        self.collector.add(piece);
    }

    /// Trailers, or a head, that may hold the status.
    pub(crate) fn status(&mut self, headers: &HeaderMap) {
        if let Some(status) = tonic::Status::from_header_map(headers) {
            self.code = Some(status.code());
        }
    }

    /// The answer is at its end.
    pub(crate) fn end(&mut self) {
        self.code.get_or_insert(Code::Ok);
        self.tell();
    }

    /// There is no answer but this status.
    pub(crate) fn failed(&mut self, code: Code) {
        self.code = Some(code);
        self.tell();
    }

    fn tell(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            let code = self.code.unwrap_or(Code::Cancelled);
            exchange.tell(std::mem::take(&mut self.metadata), self.collector.finish(), Some(code));
        }
    }
}

impl Drop for ResponseTap {
    fn drop(&mut self) {
        if self.exchange.is_some() {
            self.code = Some(Code::Cancelled);
        }
        self.tell();
    }
}

/// The gRPC status for one of HTTP.
fn code_of(status: http::StatusCode) -> Code {
    match status.as_u16() {
        200..400 => Code::Ok,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        413 | 429 => Code::ResourceExhausted,
        400..=499 => Code::InvalidArgument,
        501 => Code::Unimplemented,
        502 | 503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        _ => Code::Internal,
    }
}
