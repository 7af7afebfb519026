//! The queue of a port's log, and its writer.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ::http::{HeaderMap, Method};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{
    entry,
    recording::{HEAD, Recording, weight},
    settings::LogSettings,
    sink::Sink,
};

/// Lines that are written at once: one write, or one request, for many lines under load.
const MOST_LINES: usize = 500;

/// Bytes of lines that are written at once, at most by one line more.
const MOST_BYTES: usize = 512 << 10;

/// Attempts to write lines, and the pause after the first one.
const ATTEMPTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    port: Arc<str>,
    result: &'static str,
}

/// Counters of all ports.
#[derive(Clone, Default)]
pub(crate) struct LogFamilies(Family<ResultLabels, Counter>);

impl LogFamilies {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "berth_executor_log_lines",
            "Exchanges that were chosen for the log, by result",
            self.0.clone(),
        );
    }
}

/// The log of one port, with settings that stay.
pub(crate) struct Logger {
    pub(crate) settings: LogSettings,
    port: Arc<str>,
    counts: LogFamilies,
    /// Bytes for what is in flight and what waits.
    room: Arc<Semaphore>,
    waiting: Mutex<VecDeque<Recording>>,
    wake: Notify,
    /// No more comes: the rest is written.
    pub(crate) closing: CancellationToken,
}

impl Logger {
    pub(crate) fn new(settings: LogSettings, port: Arc<str>, counts: LogFamilies) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(settings.memory.min(Semaphore::MAX_PERMITS)));
        let closing = CancellationToken::new();
        Arc::new(Self { settings, port, counts, room, waiting: Mutex::default(), wake: Notify::new(), closing })
    }

    pub(super) const fn bodies(&self) -> usize {
        self.settings.bodies
    }

    fn count(&self, result: &'static str, number: usize) {
        let labels = ResultLabels { port: Arc::clone(&self.port), result };
        self.counts.0.get_or_create(&labels).inc_by(number as u64);
    }

    /// Begins to record a request, if it is chosen and there is room.
    pub(crate) fn begin(self: &Arc<Self>, method: &Method, path: &str, headers: &HeaderMap) -> Option<Recording> {
        let LogSettings { sample, paths, bodies, .. } = &self.settings;
        if *sample < 1.0 && rand::random::<f64>() >= *sample {
            return None;
        }
        if !paths.is_empty() && !paths.iter().any(|template| template.matches(path)) {
            return None;
        }
        let room = self.charge(HEAD.max(weight(headers) + path.len()) + 2 * bodies)?;
        Some(Recording::new(Arc::clone(self), room, method, path, headers))
    }

    /// Room for so many bytes; `None`: there is none, and an exchange is dropped for it.
    pub(super) fn charge(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let room = Arc::clone(&self.room).try_acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX)).ok();
        if room.is_none() {
            self.count("dropped", 1);
        }
        room
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.room.available_permits()
    }

    pub(super) fn write(&self, recording: Recording) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(recording);
        self.wake.notify_one();
    }

    /// The next lines, and the room that they take.
    fn next(&self) -> (Vec<String>, Vec<Recording>) {
        let (mut lines, mut taken, mut bytes) = (Vec::new(), Vec::new(), 0);
        while lines.len() < MOST_LINES && bytes < MOST_BYTES {
            let recording = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(recording) = recording else { break };
            let line = entry::line(&self.port, &recording, &self.settings.redaction);
            bytes += line.len();
            lines.push(line);
            taken.push(recording);
        }
        (lines, taken)
    }

    /// Writes what comes, until it is closed and all is written.
    pub(crate) async fn run(self: Arc<Self>, mut sink: Sink) {
        let mut told = String::new();
        loop {
            let (lines, taken) = self.next();
            if lines.is_empty() {
                if self.closing.is_cancelled() {
                    return;
                }
                tokio::select! {
                    () = self.wake.notified() => {}
                    () = self.closing.cancelled() => {}
                }
                continue;
            }
            match self.written(&mut sink, &lines).await {
                Ok(()) => {
                    self.count("written", lines.len());
                    told.clear();
                }
                Err(error) => {
                    self.count("failed", lines.len());
                    if told != error {
                        tracing::warn!(
                            event = "executor_log_failed",
                            port = &*self.port,
                            error,
                            "requests are not logged"
                        );
                        told = error;
                    }
                }
            }
            // Their memory is free from here.
            drop(taken);
        }
    }

    async fn written(&self, sink: &mut Sink, lines: &[String]) -> Result<(), String> {
        let mut pause = FIRST_PAUSE;
        for _ in 1..ATTEMPTS {
            match sink.write(lines).await {
                Err(_) if !self.closing.is_cancelled() => sleep(pause).await,
                done => return done,
            }
            pause *= 2;
        }
        sink.write(lines).await
    }
}
