//! Waiting for an outcome on a thread that may block: a channel of tokio's has no wait with a time limit outside of its runtime.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use futures::FutureExt as _;
use tokio::sync::oneshot;

use super::queue::Outcome;

/// Waits until there is an outcome; `None`: there is none by `until`.
pub(in crate::runtime) fn wait(answer: &mut oneshot::Receiver<Outcome>, until: Instant) -> Option<Outcome> {
    let waker = futures::task::waker(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(outcome) = answer.poll_unpin(&mut context) {
            return Some(outcome.unwrap_or_else(|_| Outcome::Lost("the model's process is gone".to_owned())));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

struct Unpark(std::thread::Thread);

impl futures::task::ArcWake for Unpark {
    fn wake_by_ref(waker: &Arc<Self>) {
        waker.0.unpark();
    }
}
