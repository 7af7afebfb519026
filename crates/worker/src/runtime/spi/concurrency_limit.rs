//! The bound on requests at once in a model whose runtime has said one: the rest waits in a short line.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use berth_spec::{InferError, inference::Shed};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::InFlight;

/// Requests that wait for each one that runs, and how many there are at least: ModelMesh's figures.
const WAITING_PER_RUN: usize = 8;
const WAITING_AT_LEAST: usize = 16;

/// When to try again after the line was full.
const RETRY: Duration = Duration::from_millis(500);

/// The bound on requests of one model at once: so many run, so many more wait, others are refused.
pub(super) struct ConcurrencyLimit {
    running: Arc<Semaphore>,
    waiting: AtomicUsize,
    most_waiting: usize,
}

impl ConcurrencyLimit {
    /// Lets `most` in at once.
    pub(super) fn new(most: usize, in_flight: InFlight) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        let most_waiting = match in_flight {
            InFlight::Default => most.saturating_mul(WAITING_PER_RUN).max(WAITING_AT_LEAST),
            InFlight::Most(all) => all.saturating_sub(most),
            InFlight::Unlimited => usize::MAX,
        };
        Self { running: Arc::new(Semaphore::new(most)), waiting: AtomicUsize::new(0), most_waiting }
    }

    /// Waits for a place until `deadline`.
    pub(super) async fn enter(&self, deadline: Option<Instant>) -> Result<OwnedSemaphorePermit, InferError> {
        if let Ok(permit) = Arc::clone(&self.running).try_acquire_owned() {
            return Ok(permit);
        }
        let waiting = WaitingCount::of(&self.waiting);
        if waiting.before >= self.most_waiting {
            let message = format!("{} requests wait for this model already: try again", waiting.before);
            return Err(InferError::shed(Shed::QueueFull, message, RETRY));
        }
        let permit = Arc::clone(&self.running).acquire_owned();
        let permit = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), permit).await.map_err(|_| {
                InferError::TimedOut("the deadline passed while the request waited for other requests".to_owned())
            })?,
            None => permit.await,
        };
        permit.map_err(|_| InferError::Cancelled)
    }
}

/// Counts one request that waits, while it lives.
struct WaitingCount<'a> {
    count: &'a AtomicUsize,
    before: usize,
}

impl<'a> WaitingCount<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        Self { count, before: count.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn the_line_has_an_end() {
        let concurrency_limit = ConcurrencyLimit::new(1, InFlight::Default);
        let first = concurrency_limit.enter(None).await.expect("a place");
        let mut line: Vec<_> = (0..16).map(|_| Box::pin(concurrency_limit.enter(None))).collect();
        assert!(line.iter_mut().all(|waits| waits.as_mut().now_or_never().is_none()));
        let refused = concurrency_limit.enter(None).await.expect_err("the line is full");
        assert!(matches!(refused, InferError::Shed { reason: Shed::QueueFull, .. }), "{refused:?}");
        drop(first);
        assert!(line.remove(0).await.is_ok());
        drop(line);
        assert!(concurrency_limit.enter(Some(Instant::now())).await.is_ok(), "whoever left the line counts no more");
    }
}
