//! The account of one request: counted while it is in flight, told to the metrics when it is over, however it ends.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use http::{HeaderMap, HeaderValue, Method, StatusCode};
use hyper::upgrade::OnUpgrade;
use tokio::time::Instant;

use super::Proxy;
use crate::{
    access::{Admitted, UsageGuard},
    body::{Sent, Watcher},
    log::{Logger, Recording},
    metrics::{self, Exchanged, RequestLabels},
    upstream::Lease,
};

/// Status of a request whose client has gone before the answer began, as nginx has it.
const GONE: u16 = 499;

pub(crate) struct Exchange {
    proxy: Arc<Proxy>,
    labels: Option<RequestLabels>,
    /// False: it is not among the requests in flight any more.
    counts: bool,
    began: Instant,
    pub(super) sent: Arc<Sent>,
    received: u64,
    /// The server's connection, until the answer's body has ended.
    pub(super) lease: Option<Lease>,
    /// The client's connection, where it asks for another protocol.
    pub(super) upgrade: Option<OnUpgrade>,
    /// The exchange as it will be logged, if it was chosen.
    recording: Option<Recording>,
    /// Counts against the limits of whoever asks.
    _used: Option<UsageGuard>,
}

impl Exchange {
    pub(super) fn begin(proxy: Arc<Proxy>, path: Arc<str>, method: &Method) -> Self {
        let now = proxy.in_flight.fetch_add(1, Relaxed) + 1;
        proxy.metrics.in_flight(&proxy.name, now);
        let labels = RequestLabels {
            port: Arc::clone(&proxy.name),
            path,
            method: metrics::method(method),
            code: GONE,
            grpc: "".into(),
        };
        let (began, sent) = (Instant::now(), Arc::default());
        Self {
            proxy,
            labels: Some(labels),
            counts: true,
            began,
            sent,
            received: 0,
            lease: None,
            upgrade: None,
            recording: None,
            _used: None,
        }
    }

    /// Records it, if the log wants it.
    pub(super) fn record(&mut self, logger: Option<&Arc<Logger>>, method: &Method, path: &str, headers: &HeaderMap) {
        let Some(recording) = logger.and_then(|logger| logger.begin(method, path, headers)) else { return };
        self.sent.capture(recording.capture());
        self.recording = Some(recording);
    }

    /// Notes who asks.
    pub(super) fn asked_by(&mut self, Admitted { principal, used, .. }: Admitted) {
        self._used = used;
        if let Some(recording) = &mut self.recording {
            recording.asked_by(principal);
        }
    }

    /// Counts no more among the requests in flight, nor against the limits of whoever asks. For those who follow a job: they wait, have a
    /// bound of their own, and keep no executor from its end.
    pub(super) fn stand_aside(&mut self) {
        self._used = None;
        self.leave();
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.counts) {
            let now = self.proxy.in_flight.fetch_sub(1, Relaxed) - 1;
            self.proxy.metrics.in_flight(&self.proxy.name, now);
        }
    }

    pub(super) fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        if let Some(labels) = &mut self.labels {
            labels.code = status.as_u16();
        }
        if self.recording.as_mut().is_some_and(|recording| !recording.answered(headers)) {
            self.recording = None;
        }
    }

    pub(super) fn grpc(&mut self, status: &HeaderValue) {
        if let Some(labels) = &mut self.labels {
            labels.grpc = metrics::grpc(status);
        }
    }

    /// Counts what went over an upgraded connection.
    pub(crate) fn copied(&mut self, sent: u64, received: u64) {
        self.sent.add(usize::try_from(sent).unwrap_or(usize::MAX));
        self.received += received;
    }
}

impl Watcher for Exchange {
    fn data(&mut self, data: &[u8]) {
        self.received += data.len() as u64;
        if let Some(recording) = &mut self.recording {
            recording.data(data);
        }
    }

    fn grpc_status(&mut self, status: &HeaderValue) {
        self.grpc(status);
    }

    fn end(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let Some(labels) = self.labels.take() else { return };
        if let Some(recording) = self.recording.take() {
            let (grpc, sent) = (Arc::clone(&labels.grpc), self.sent.bytes());
            recording.finish(labels.code, grpc, self.sent.captured(), sent, self.received);
        }
        self.leave();
        self.proxy.metrics.exchanged(Exchanged {
            labels,
            seconds: self.began.elapsed().as_secs_f64(),
            request_bytes: self.sent.bytes(),
            response_bytes: self.received,
        });
    }
}
