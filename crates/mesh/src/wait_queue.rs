//! The queue of one deployment's waiting requests, and the bound of all queues together.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Notify;

/// One deployment's waiting requests.
#[derive(Default)]
pub(crate) struct WaitQueue {
    waiting: AtomicU32,
    changed: Notify,
}

/// Requests parked now, over all deployments, and their bound.
pub(crate) struct Total {
    parked: AtomicU32,
    max: u32,
}

/// A place in a lot; leaving it is dropping it.
pub(crate) struct Waiter<'a> {
    queue: &'a WaitQueue,
    total: &'a Total,
}

impl Total {
    pub(crate) fn new(max: u32) -> Self {
        Self { parked: AtomicU32::new(0), max }
    }
}

impl WaitQueue {
    /// Requests parked here.
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Lets every waiter look at the route again.
    pub(crate) fn wake(&self) {
        self.changed.notify_waiters();
    }

    /// Resolves at the next change of the route after it was first polled or enabled.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// Takes a place, if both bounds allow it.
    pub(crate) fn enter<'a>(&'a self, queue: u32, total: &'a Total) -> Option<Waiter<'a>> {
        let here = self.waiting.fetch_add(1, Ordering::Relaxed);
        let everywhere = total.parked.fetch_add(1, Ordering::Relaxed);
        let place = Waiter { queue: self, total };
        (here < queue && everywhere < total.max).then_some(place)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
        self.total.parked.fetch_sub(1, Ordering::Relaxed);
    }
}
