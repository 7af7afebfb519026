//! Sees one request and its answer pass.
//!
//! ```text
//!  request: collecting ── first message │ end ──▶ told        answer: collecting ── end ──▶ told, with its status
//!                └─ dropped ──▶ told without its data              └─ dropped ──▶ told, CANCELLED
//! ```

use std::sync::Arc;

use berth_wire::request_id::RequestId;
use bytes::Bytes;
use http::HeaderMap;
use tonic::Code;

use super::{
    Payload, SECRET_HEADERS,
    collector::{CollectedBody, Collector},
    queue::Queue,
};
use crate::watch::{Watch, code_of, is_grpc, status};

/// The form of a body: how its pieces make payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// gRPC messages, each with its frame.
    Messages,
    /// One document: all of the body.
    Whole,
}

impl Kind {
    fn of(headers: &HeaderMap) -> Self {
        if is_grpc(headers) { Self::Messages } else { Self::Whole }
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

    fn tell(&self, mut metadata: HeaderMap, collected: CollectedBody, code: Option<Code>) {
        let data = match collected {
            CollectedBody::Data(data) => data,
            CollectedBody::Part => Vec::new(),
            CollectedBody::TooLong => {
                self.queues.iter().for_each(|queue| {
                    queue.counted.too_long.inc();
                });
                return;
            }
        };
        for secret in &SECRET_HEADERS {
            metadata.remove(secret);
        }
        let (model, alias, method) = (Arc::clone(&self.model), self.alias.clone(), Arc::clone(&self.method));
        let payload = Arc::new(Payload { id: self.id.clone(), model, alias, method, metadata, data, code });
        for queue in &self.queues {
            queue.offer(&payload);
        }
    }
}

/// The copy that processors get of a request and of its answer, before either has begun.
#[derive(Debug)]
pub(crate) struct Tap {
    pub(super) exchange: Arc<Exchange>,
    pub(super) metadata: HeaderMap,
}

impl Tap {
    /// The taps of the two bodies, which go different ways.
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
    /// Takes in a piece of the body as it passes.
    pub(crate) fn piece(&mut self, piece: &Bytes) {
        if !self.told && self.collector.add(piece) {
            self.tell();
        }
    }

    /// Hands the payload over: the body is at its end.
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
            self.exchange.tell(std::mem::take(&mut self.metadata), CollectedBody::Part, None);
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

impl Watch for ResponseTap {
    fn head(&mut self, head: &http::response::Parts) {
        let kind = Kind::of(&head.headers);
        self.collector = Collector::new(kind, self.exchange.as_ref().map_or(0, |exchange| exchange.most()));
        self.metadata.clone_from(&head.headers);
        self.code = match kind {
            Kind::Messages => status(&head.headers),
            Kind::Whole => Some(code_of(head.status)),
        };
    }

    fn piece(&mut self, piece: &Bytes) {
        self.collector.add(piece);
    }

    fn trailers(&mut self, trailers: &HeaderMap) {
        self.code = status(trailers).or(self.code);
    }

    fn failed(&mut self, code: Code) {
        self.code = Some(code);
        self.tell();
    }

    fn end(&mut self) {
        self.code.get_or_insert(Code::Ok);
        self.tell();
    }
}

impl ResponseTap {
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
