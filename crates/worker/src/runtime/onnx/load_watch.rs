//! Cancels loads of ONNX Runtime that nobody waits for any more.
//!
//! ```text
//! begin ──▶ watched ──the load returns──▶ forgotten
//!              │ its token is cancelled: no longer wanted, or its time is up
//!              ▼
//!          cancelled: the library fails the load at its next look
//! ```
//! The [`watchdog`]'s thread looks at all loads. The library looks between the steps of a load: parts of the
//! optimization, weights that are read or packed. A single step is not interrupted.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ort::session::builder::LoadCanceler;
use tokio_util::sync::CancellationToken;

use super::watchdog;

/// Loads that are under way.
static LOADS: Mutex<Vec<Load>> = Mutex::new(Vec::new());

/// A load that is given up may end by itself until it has run for this time. The library does not give back all memory of a load
/// that it cancels: where models are paged in and out, the process would grow beyond its bound.
pub(super) const BY_ITSELF: Duration = Duration::from_secs(10);

struct Load {
    id: u64,
    /// The moment from which it may be cancelled.
    until: Instant,
    given_up: CancellationToken,
    canceler: LoadCanceler,
}

impl Load {
    /// Cancels the load if it was given up. The library may be told again.
    fn look(&self) {
        if self.given_up.is_cancelled()
            && Instant::now() >= self.until
            && let Err(error) = self.canceler.cancel()
        {
            tracing::error!(%error, "onnxruntime cannot cancel a load");
        }
    }
}

/// A load that is watched until this is dropped.
pub(super) struct WatchedLoad(u64);

impl Drop for WatchedLoad {
    fn drop(&mut self) {
        loads().retain(|load| load.id != self.0);
    }
}

/// Watches a load: it is cancelled when `given_up` is, but not before it has run for `by_itself`.
pub(super) fn begin(given_up: &CancellationToken, canceler: LoadCanceler, by_itself: Duration) -> WatchedLoad {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let until = Instant::now() + by_itself;
    let load = Load { id: NEXT.fetch_add(1, Relaxed), until, given_up: given_up.clone(), canceler };
    let watched = WatchedLoad(load.id);
    loads().push(load);
    watchdog::watch();
    watched
}

/// Looks at all loads.
pub(super) fn look() {
    loads().iter().for_each(Load::look);
}

fn loads() -> MutexGuard<'static, Vec<Load>> {
    LOADS.lock().unwrap_or_else(PoisonError::into_inner)
}
