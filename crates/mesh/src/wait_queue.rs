//! The queue of one deployment's waiting requests, and the places of all queues together.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use tokio::sync::Notify;

use crate::{
    accounts::Key,
    fair::{Pool, PoolPart},
};

/// The part of a full queue that one principal may hold while others hold more: a queue of 256 keeps 32 places for each.
const CALLER_SHARE_DIVISOR: u32 = 8;

/// One deployment's waiting requests.
#[derive(Default)]
pub(crate) struct WaitQueue {
    waiting: AtomicU32,
    changed: Notify,
}

/// A place in a queue; leaving it is dropping it.
pub(crate) struct Waiter<'a> {
    queue: &'a WaitQueue,
    all: &'a Pool,
    key: &'a Arc<Key>,
    part: PoolPart,
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

    /// Takes a place for a request of this key, if the queue of `most` places and those of all queues allow it. A full queue takes
    /// some more of principals that have few in it.
    pub(crate) fn enter<'a>(&'a self, most: u32, all: &'a Pool, key: &'a Arc<Key>) -> Option<Waiter<'a>> {
        let part = all.take(1, &key.parked, &key.account.parked)?;
        let here = self.waiting.fetch_add(1, Ordering::Relaxed);
        let place = Waiter { queue: self, all, key, part };
        let few = || key.parked.held() <= (most / CALLER_SHARE_DIVISOR).max(1) as usize;
        (here < most || here < most.saturating_mul(2) && few()).then_some(place)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
        self.all.give_back(1, self.part, &self.key.parked, &self.key.account.parked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fair::Shape;

    #[test]
    fn a_full_queue_takes_principals_that_have_few_in_it() {
        let (queue, all) = (WaitQueue::default(), Pool::new(100, 0, Shape::new(true)));
        let (storm, other) = (Arc::default(), Arc::default());
        let places: Vec<_> = (0..40).filter_map(|_| queue.enter(16, &all, &storm)).collect();
        assert_eq!(places.len(), 16);
        let few: Vec<_> = (0..5).filter_map(|_| queue.enter(16, &all, &other)).collect();
        assert_eq!((few.len(), queue.waiting()), (2, 18));
        drop((places, few));
        assert_eq!((queue.waiting(), all.taken()), (0, 0));
        assert!(queue.enter(0, &all, &other).is_none(), "nobody waits here");
    }
}
