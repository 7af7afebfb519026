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

/// Bytes of an exchange beside its bodies, about: heads of the usual size and the line.
pub(super) const HEAD: usize = 4 << 10;

/// Bytes of headers, as they are in memory.
pub(super) fn weight(headers: &HeaderMap) -> usize {
    /// A name, a value and their entries in the map, about.
    const ENTRY: usize = 104;
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + ENTRY).sum()
}

/// One direction of an exchange.
#[derive(Debug, Default)]
pub(super) struct RecordedMessage {
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
    room: OwnedSemaphorePermit,
    /// Bytes of the heads that came so far.
    heads: usize,
    began: Instant,
    /// Milliseconds since the Unix epoch.
    pub(super) at: u64,
    pub(super) id: String,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) principal: Option<Arc<str>>,
    pub(super) request: RecordedMessage,
    pub(super) response: RecordedMessage,
    answer: Captured,
    pub(super) millis: f64,
    pub(super) status: u16,
    pub(super) grpc: Arc<str>,
}

impl Recording {
    pub(super) fn new(
        logger: Arc<Logger>,
        room: OwnedSemaphorePermit,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let answer = Captured::new(logger.bodies());
        let id = RequestId::of(headers).map(|id| id.to_string()).unwrap_or_default();
        Self {
            logger,
            room,
            heads: weight(headers) + path.len(),
            began: Instant::now(),
            at: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            id,
            method: method.clone(),
            path: path.to_owned(),
            principal: None,
            request: RecordedMessage { headers: headers.clone(), ..RecordedMessage::default() },
            response: RecordedMessage::default(),
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

    /// Keeps the head of the answer. False: it finds no room, and the exchange is not logged.
    pub(crate) fn answered(&mut self, headers: &HeaderMap) -> bool {
        let before = self.heads;
        self.heads += weight(headers);
        // What was charged first has room for heads of the usual size.
        let more = self.heads.saturating_sub(before.max(HEAD));
        if more > 0 {
            let Some(more) = self.logger.charge(more) else { return false };
            self.room.merge(more);
        }
        self.response.headers = headers.clone();
        true
    }

    pub(crate) fn data(&mut self, data: &[u8]) {
        self.answer.add(data);
    }

    /// Hands it to the writer.
    pub(crate) fn finish(
        mut self,
        status: u16,
        grpc: Arc<str>,
        request: Option<&Mutex<Captured>>,
        sent: u64,
        received: u64,
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
    use crate::log::{LogFamilies, LogSettings, Redaction, SinkSettings};

    fn headers(bytes: usize) -> HeaderMap {
        HeaderMap::from_iter([(::http::header::COOKIE, "x".repeat(bytes).parse().expect("a value"))])
    }

    #[test]
    fn heads_count_as_they_are() {
        let sink = SinkSettings::File { path: "/nowhere".into(), size: 1, keep: 0 };
        let redaction = Redaction::default();
        let settings = LogSettings { sample: 1.0, paths: Vec::new(), bodies: 0, redaction, memory: 64 << 10, sink };
        for (request, answer, left) in [
            (100, 100, Some(60 << 10)),
            (10 << 10, 100, Some(53 << 10)),
            (100, 10 << 10, Some(53 << 10)),
            (30 << 10, 30 << 10, Some(3 << 10)),
            (40 << 10, 40 << 10, None),
        ] {
            let logger = Logger::new(settings.clone(), "http".into(), LogFamilies::default());
            let mut recording = logger.begin(&Method::GET, "/", &headers(request)).expect("there is room");
            assert_eq!(recording.answered(&headers(answer)), left.is_some(), "{request} and {answer}");
            let free = logger.free();
            assert!(left.is_none_or(|left| free.abs_diff(left) < 1 << 10), "{request} and {answer}: {free}");
            drop(recording);
            assert_eq!(logger.free(), 64 << 10);
        }
        let logger = Logger::new(settings, "http".into(), LogFamilies::default());
        assert!(logger.begin(&Method::GET, "/", &headers(64 << 10)).is_none());
    }

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
