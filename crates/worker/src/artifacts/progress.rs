//! Progress of a fetch, reported at most a few times a second.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use berth_spec::ByteSize;
use tokio::time::Instant;

/// The shortest time between two reports: nobody reads faster, and a fleet's inventories stay small.
const INTERVAL: Duration = Duration::from_millis(200);

/// A callback with the bytes that are here, and the bytes in all once known.
pub type Listener = Arc<dyn Fn(ByteSize, Option<ByteSize>) + Send + Sync>;

/// Counts the bytes of one fetch.
pub(super) struct Progress {
    listener: Listener,
    done: AtomicU64,
    fetched: AtomicU64,
    total: Mutex<(Option<ByteSize>, Option<Instant>)>,
}

impl Progress {
    pub(super) fn new(listener: Listener) -> Self {
        Self { listener, done: AtomicU64::new(0), fetched: AtomicU64::new(0), total: Mutex::default() }
    }

    /// The size became known, and this much is here already.
    pub(super) fn begin(&self, done: u64, total: Option<u64>) {
        self.done.store(done, Ordering::Relaxed);
        self.total.lock().unwrap_or_else(PoisonError::into_inner).0 = total.map(ByteSize);
        self.add(0);
    }

    /// Bytes that came in this fetch.
    pub(super) fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// More bytes are here.
    pub(super) fn add(&self, bytes: u64) {
        self.fetched.fetch_add(bytes, Ordering::Relaxed);
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let now = Instant::now();
        let total = {
            let mut state = self.total.lock().unwrap_or_else(PoisonError::into_inner);
            if state.1.is_some_and(|last| now.duration_since(last) < INTERVAL) {
                return;
            }
            state.1 = Some(now);
            state.0
        };
        (self.listener)(ByteSize(done), total);
    }
}
