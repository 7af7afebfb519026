//! Cancels loads of ONNX Runtime that nobody waits for any more.
//!
//! ```text
//! begin ──▶ watched ──the load returns──▶ forgotten
//!              │ its token is cancelled: no longer wanted, or its time is up
//!              ▼
//!          cancelled: the library fails the load at its next look, and frees what it took
//! ```
//! The [`watchdog`]'s thread looks at all loads. The library looks between the steps of a load: once the file is parsed, between passes
//! of the optimization, between weights that are read or packed. It does not look within a step: while it reads the file, from a
//! disk that may hang, or computes one constant. A load that is stuck there keeps its thread, which the worker counts, and the
//! memory that it has taken, which counts as the process's; others [overtake](super::engine_lock) it.
//! The sample runs after a load have a bound of their own.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use ort::session::builder::LoadCanceler;
use tokio_util::sync::CancellationToken;

use super::watchdog;

/// Loads that are under way and wanted.
static LOADS: Mutex<Vec<Load>> = Mutex::new(Vec::new());

struct Load {
    id: u64,
    given_up: CancellationToken,
    canceler: LoadCanceler,
}

impl Load {
    /// Cancels the load if it was given up; true while it is wanted.
    fn look(&self) -> bool {
        if !self.given_up.is_cancelled() {
            return true;
        }
        if let Err(error) = self.canceler.cancel() {
            tracing::error!(%error, "onnxruntime cannot cancel a load");
        }
        false
    }
}

/// A load that is watched until this is dropped.
#[must_use]
pub(super) struct WatchedLoad(u64);

impl Drop for WatchedLoad {
    fn drop(&mut self) {
        loads().retain(|load| load.id != self.0);
    }
}

/// Watches a load: it is cancelled when `given_up` is.
pub(super) fn begin(given_up: &CancellationToken, canceler: LoadCanceler) -> WatchedLoad {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let load = Load { id: NEXT.fetch_add(1, Relaxed), given_up: given_up.clone(), canceler };
    let watched = WatchedLoad(load.id);
    loads().push(load);
    watchdog::watch();
    watched
}

/// Looks at all loads. One that was cancelled stays so: once is enough.
pub(super) fn look() {
    loads().retain(Load::look);
}

fn loads() -> MutexGuard<'static, Vec<Load>> {
    LOADS.lock().unwrap_or_else(PoisonError::into_inner)
}
