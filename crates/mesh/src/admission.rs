//! The admission: counts the requests inside, shares out the places fairly, refuses beyond a bound, and closes at shutdown.
//!
//! ```text
//! Open ──close()──→ Closed ──last pass dropped──→ empty
//! enter() → Permit    enter() → refused
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use berth_spec::{InferError, inference::Shed};
use tokio::sync::Notify;

use crate::{
    accounts::Key,
    fair::{Pool, PoolPart, Shape},
    quota::metered::MeteredRequest,
};

/// The high bit of [`Admission::state`].
const CLOSED: u32 = 1 << 31;

/// The `Retry-After` once admission has ended: another process has taken over by then.
const RETRY_ELSEWHERE: Duration = Duration::from_secs(5);
/// When to try again after too many requests: inferences are short.
const RETRY_SOON: Duration = Duration::from_secs(1);

/// The count of requests inside, with its bound.
pub(crate) struct Admission {
    /// Places of requests whose model is known.
    places: Pool,
    max: u32,
    /// Requests inside, and [`CLOSED`]. One word, so that a request is either counted or refused.
    state: AtomicU32,
    /// Told when it closes and when the last one has left.
    changed: Notify,
}

impl Admission {
    /// With so many places for all, and a reserve for those who hold few.
    pub(crate) fn new(max: u32, reserve: u32, shape: Shape) -> Arc<Self> {
        Arc::new(Self {
            places: Pool::new(max as usize, reserve as usize, shape),
            max: max.saturating_add(reserve).min(CLOSED - 1),
            state: AtomicU32::new(0),
            changed: Notify::new(),
        })
    }

    /// Lets one request in of which nobody knows yet what it is for, or that is no inference.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Permit, InferError> {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        let permit = Permit { admission: Arc::clone(self), place: None, metered: None };
        if before & CLOSED != 0 {
            return Err(shutting_down());
        }
        if before >= self.max {
            let message = format!("the server has {before} requests at once and takes no more; try again");
            return Err(InferError::shed(Shed::QueueFull, message, RETRY_SOON));
        }
        Ok(permit)
    }

    /// Lets one request of this key in: if there is room, or the key holds less than its share.
    pub(crate) fn enter_for(self: &Arc<Self>, key: &Arc<Key>) -> Result<Permit, InferError> {
        let mut permit = self.enter()?;
        let Some(part) = self.places.take(1, &key.inside, &key.account.inside) else {
            let message = format!(
                "the server has {} requests at once, {} of them of the same caller for the same model, and takes no more of \
                 those; try again",
                self.places.taken(),
                key.inside.held()
            );
            return Err(InferError::shed(Shed::QueueFull, message, RETRY_SOON));
        };
        permit.place = Some((Arc::clone(key), part));
        Ok(permit)
    }

    /// Refuses from now on; how many are inside. Idempotent.
    pub(crate) fn close(&self) -> u32 {
        let before = self.state.fetch_or(CLOSED, Ordering::AcqRel);
        self.changed.notify_waiters();
        before & !CLOSED
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// The number of requests that are inside now.
    pub(crate) fn inside(&self) -> u32 {
        self.state.load(Ordering::Relaxed) & !CLOSED
    }

    /// Waits until [`close`](Self::close) was called.
    pub(crate) async fn closed(&self) {
        self.until(|| self.is_closed()).await;
    }

    /// Waits until nobody is inside. Meaningful after [`close`](Self::close).
    pub(crate) async fn emptied(&self) {
        self.until(|| self.inside() == 0).await;
    }

    async fn until(&self, reached: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if reached() {
                return;
            }
            changed.await;
        }
    }
}

/// The refusal of a server that is stopping.
pub(crate) fn shutting_down() -> InferError {
    InferError::shed(Shed::ShuttingDown, "the server is stopping; send the request to another one", RETRY_ELSEWHERE)
}

/// The right of one request to be inside. Dropping it gives its place back.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    /// The place that it takes, where its key is known.
    place: Option<(Arc<Key>, PoolPart)>,
    metered: Option<Arc<MeteredRequest>>,
}

impl Permit {
    /// The same, which also counts against limits until it is dropped.
    pub(crate) fn metered(self, metered: Option<Arc<MeteredRequest>>) -> Self {
        // No struct update: what has a drop cannot be taken apart.
        let mut permit = self;
        permit.metered = metered;
        permit
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some((key, part)) = self.place.take() {
            self.admission.places.give_back(1, part, &key.inside, &key.account.inside);
        }
        let before = self.admission.state.fetch_sub(1, Ordering::AcqRel);
        if before == CLOSED | 1 {
            self.admission.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn reason(result: Result<Permit, InferError>) -> &'static str {
        result.err().map_or("in", |error| error.reason())
    }

    #[test]
    fn counts_bounds_and_closes() {
        let admission = Admission::new(2, 0, Shape::new(false));
        let (first, second) = (admission.enter().expect("room"), admission.enter().expect("room"));
        assert_eq!(reason(admission.enter()), "queue_full");
        drop(second);
        assert_eq!(reason(admission.enter()), "in");
        assert_eq!(admission.close(), 1);
        assert_eq!(reason(admission.enter()), "shutting_down");
        drop(first);
        assert_eq!(admission.inside(), 0);
    }

    #[test]
    fn a_storm_leaves_places_for_others() {
        let (admission, storm, other) = (Admission::new(4, 64, Shape::new(false)), Arc::default(), Arc::default());
        let permits: Vec<_> = (0..100).filter_map(|_| admission.enter_for(&storm).ok()).collect();
        assert_eq!(permits.len(), 4);
        assert_eq!(reason(admission.enter_for(&storm)), "queue_full");
        assert_eq!(reason(admission.enter_for(&other)), "in");
        drop(permits);
        assert_eq!((admission.inside(), storm.inside.held(), other.inside.held()), (0, 0, 0));
    }

    #[tokio::test]
    async fn emptied_waits_for_the_last() {
        let admission = Admission::new(2, 0, Shape::new(false));
        let permit = admission.enter().expect("room");
        admission.close();
        assert!(admission.emptied().now_or_never().is_none());
        drop(permit);
        admission.emptied().await;
    }
}
