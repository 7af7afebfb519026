//! One exchange that was chosen for the log, while it goes on.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use ::http::{HeaderMap, Method};
use berth_wire::request_id::RequestId;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::writer::Logger;

/// The begin of a body, copied as it passes.
#[derive(Debug, Default)]
pub(crate) struct Captured {
    most: usize,
    bytes: Vec<u8>,
}

impl Captured {
    pub(crate) const fn new(most: usize) -> Self {
        Self { most, bytes: Vec::new() }
    }

    pub(crate) fn add(&mut self, data: &[u8]) {
        let room = self.most - self.bytes.len();
        self.bytes.extend_from_slice(&data[..data.len().min(room)]);
    }
}

/// One direction of an exchange.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) headers: HeaderMap,
    /// Begin of the body.
    pub(super) body: Vec<u8>,
    /// Bytes of the whole body.
    pub(super) bytes: u64,
}

/// An exchange that is over, or goes on.
pub(crate) struct Recording {
    logger: Arc<Logger>,
    /// Counts its memory until it is written.
    pub(super) _room: OwnedSemaphorePermit,
    began: Instant,
    /// Milliseconds since the Unix epoch.
    pub(super) at: u64,
    pub(super) id: String,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) principal: Option<Arc<str>>,
    pub(super) request: Side,
    pub(super) response: Side,
    answer: Captured,
    pub(super) millis: f64,
    pub(super) status: u16,
    pub(super) grpc: Arc<str>,
}

impl Recording {
    pub(super) fn new(logger: Arc<Logger>, room: OwnedSemaphorePermit, head: (&Method, &str, &HeaderMap)) -> Self {
        let (method, path, headers) = head;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let answer = Captured::new(logger.bodies());
        let id = RequestId::of(headers).map(|id| id.to_string()).unwrap_or_default();
        Self {
            logger,
            _room: room,
            began: Instant::now(),
            at: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            id,
            method: method.clone(),
            path: path.to_owned(),
            principal: None,
            request: Side { headers: headers.clone(), ..Side::default() },
            response: Side::default(),
            answer,
            millis: 0.0,
            status: 0,
            grpc: "".into(),
        }
    }

    /// A place for the begin of the request's body.
    pub(crate) fn capture(&self) -> Mutex<Captured> {
        Mutex::new(Captured::new(self.logger.bodies()))
    }

    pub(crate) fn asked_by(&mut self, principal: Arc<str>) {
        self.principal = Some(principal);
    }

    pub(crate) fn answered(&mut self, headers: &HeaderMap) {
        self.response.headers = headers.clone();
    }

    pub(crate) fn data(&mut self, data: &[u8]) {
        self.answer.add(data);
    }

    /// Hands it to the writer.
    pub(crate) fn over(
        mut self,
        (status, grpc): (u16, Arc<str>),
        request: Option<&Mutex<Captured>>,
        (sent, received): (u64, u64),
    ) {
        self.millis = self.began.elapsed().as_secs_f64() * 1_000.0;
        (self.status, self.grpc) = (status, grpc);
        if let Some(captured) = request {
            self.request.body = std::mem::take(&mut captured.lock().unwrap_or_else(PoisonError::into_inner).bytes);
        }
        self.response.body = std::mem::take(&mut self.answer.bytes);
        (self.request.bytes, self.response.bytes) = (sent, received);
        let logger = Arc::clone(&self.logger);
        logger.write(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_copied_than_may_be() {
        let mut captured = Captured::new(5);
        captured.add(b"abc");
        captured.add(b"defg");
        captured.add(b"h");
        assert_eq!(captured.bytes, b"abcde");
        let mut nothing = Captured::default();
        nothing.add(b"abc");
        assert!(nothing.bytes.is_empty());
    }
}
