//! A control plane on a thread of its own: so that no plan, however large, delays a request.
//!
//! ```text
//! Running ──stop──▶ what runs there ends ──▶ thread ends
//!    └── it fails, or ends by itself ──▶ ended() tells why
//! ```

use std::{io, thread, time::Duration};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{allocator, failure::Failure};

/// Threads for blocking work: reads of the store, metrics, parsing of manifests. Artifacts are hashed by threads of their
/// own.
const BLOCKING: usize = 4;

/// Idle time after which such a thread ends and frees its memory: a burst of work has ended by then.
const BLOCKING_IDLE: Duration = Duration::from_secs(1);

/// Interval at which free memory is returned to the system. A pass over the heap takes 100 µs with 100,000
/// deployments.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(1);

/// Limit for blocking work at shutdown, so that a hanging disk cannot block the end of the process.
const BLOCKED: Duration = Duration::from_secs(5);

/// Limit for the end of the thread: beyond those of the last plan, the store's last writes and blocking work. A thread that a hanging disk
/// has stopped ends with the process.
const ENDS_WITHIN: Duration = Duration::from_secs(25);

/// Handle of the control plane's thread.
pub(crate) struct ControlThread {
    stop: CancellationToken,
    /// `None` once it has been told.
    outcome: Option<oneshot::Receiver<Result<(), Failure>>>,
}

impl ControlThread {
    /// Starts it; `run` ends soon after its token is cancelled.
    pub(crate) fn start<F>(run: impl FnOnce(CancellationToken) -> F + Send + 'static) -> Result<Self, Failure>
    where
        F: Future<Output = Result<(), Failure>>,
    {
        let (runtime, stop) = (runtime()?, CancellationToken::new());
        let (tell, outcome) = oneshot::channel();
        let stopping = stop.clone();
        let body = move || {
            let done = runtime.block_on(run(stopping));
            // The store is closed when the runtime has dropped what still held it. A read that hangs in the disk is left
            // behind: it ends with the process.
            runtime.shutdown_timeout(BLOCKED);
            // Nobody listens any more when the process is leaving at once.
            let _ = tell.send(done);
        };
        thread::Builder::new().name("berth-control".to_owned()).spawn(body)?;
        Ok(Self { stop, outcome: Some(outcome) })
    }

    /// Resolves when it ends without being told to, with the reason.
    pub(crate) async fn ended(&mut self) -> Failure {
        let Some(outcome) = &mut self.outcome else { return std::future::pending().await };
        let ended = outcome.await;
        self.outcome = None;
        match ended {
            Ok(Err(failure)) => failure,
            Ok(Ok(())) => Failure::Failed("the control plane ended unexpectedly".to_owned()),
            Err(_) => Failure::Failed("the control plane failed, please report it".to_owned()),
        }
    }

    /// Waits until the thread has ended, but no longer than [`ENDS_WITHIN`].
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let Some(outcome) = self.outcome else { return };
        match tokio::time::timeout(ENDS_WITHIN, outcome).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(failure))) => tracing::warn!(event = "control_stopped_badly", error = %failure),
            Err(_) => {
                tracing::error!(event = "control_left", "the control plane does not end: its disk may not answer")
            }
            Ok(Err(_)) => tracing::error!(event = "control_broke", "the control plane broke while it stopped"),
        }
    }
}

/// One thread, and a few for what blocks.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING)
        .thread_keep_alive(BLOCKING_IDLE)
        .build()
}

/// Never ends. Here, because what is declared, and is most of what is held, is allocated by this thread.
pub(crate) async fn give_back() {
    let mut every = tokio::time::interval(GIVE_BACK_EVERY);
    loop {
        every.tick().await;
        allocator::give_back();
    }
}
