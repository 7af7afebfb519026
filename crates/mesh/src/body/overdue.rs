//! Streamed answers that nobody reads any more. The body of such an answer ends it at its deadline when it is asked for the next
//! piece; but over HTTP/2 nobody asks while the client takes nothing, and the replica would be leased for as long as the client likes.
//! So the task of the connection looks, too, and at any answer for how long its client has taken nothing of it.
//!
//! ```text
//! WatchedPart polls a part of a connection ─┬─ in which an answer begins ──▶ begun() ──▶ noted, with its deadline
//!                                           ├─ and then: deadline and grace over? ──▶ HeldSource::let_go
//!                                           └─ nothing read for Limits::unread? ──▶ LeftUnread: the part is dropped (berth_peer::port)
//! ```
//! A part without such an answer costs nothing but a look at variables of the thread. Over HTTP/1.1 the connection itself ends when
//! nothing is read ([`Limits::unread`](crate::config::Limits)).

use std::{
    cell::Cell,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use berth_peer::port::{LeftUnread, ReadWatch};
use futures::future::BoxFuture;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::body::relayed::HeldSource;

/// Time beyond the deadline. An answer that is being read ends by itself before.
const GRACE: Duration = Duration::from_secs(1);

thread_local! {
    /// Answers that began in the part that this thread polls; `None`: it polls none.
    static BEGUN: Cell<Option<Vec<Answer>>> = const { Cell::new(None) };
}

/// A streamed answer.
struct Answer {
    /// Gone once the answer has ended.
    coming: Weak<HeldSource>,
    /// The time at which it is dropped if it is still unread.
    at: Instant,
}

/// Notes that an answer with a deadline began in the part that is being polled.
pub(super) fn begun(coming: &Arc<HeldSource>, deadline: Instant) {
    if let Some(mut answers) = BEGUN.take() {
        answers.push(Answer { coming: Arc::downgrade(coming), at: deadline + GRACE });
        BEGUN.set(Some(answers));
    }
}

/// A part of a connection that lets go of answers whose time is over, and ends where one is left unread.
pub(crate) struct WatchedPart<T> {
    part: BoxFuture<'static, T>,
    reading: ReadWatch,
    answers: Vec<Answer>,
    /// The next time to look; `None`: there are no answers.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<T> WatchedPart<T> {
    /// `part` does not panic.
    pub(crate) fn new(part: BoxFuture<'static, T>, reading: ReadWatch) -> Self {
        Self { part, reading, answers: Vec::new(), timer: None }
    }

    fn look(&mut self, cx: &mut Context<'_>) {
        let now = Instant::now();
        self.answers.retain(|answer| match answer.coming.upgrade() {
            None => false,
            Some(_) if now < answer.at => true,
            Some(coming) => {
                coming.let_go();
                false
            }
        });
        let Some(next) = self.answers.iter().map(|answer| answer.at).min() else {
            self.timer = None;
            return;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
        if timer.deadline() != next {
            timer.as_mut().reset(next);
        }
        if timer.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}

impl<T> Future for WatchedPart<T> {
    type Output = Result<T, LeftUnread>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        BEGUN.set(Some(Vec::new()));
        let Self { part, reading, .. } = &mut *self;
        let polled = reading.poll(cx, |cx| part.as_mut().poll(cx));
        let begun = BEGUN.take().unwrap_or_default();
        if polled.is_pending() {
            self.answers.extend(begun);
            if !self.answers.is_empty() {
                self.look(cx);
            }
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use berth_peer::port::Activity;
    use bytes::Bytes;
    use futures::FutureExt as _;
    use http::HeaderMap;
    use http_body::Frame;
    use http_body_util::{BodyExt as _, StreamBody};
    use tokio::{sync::oneshot, time::timeout_at};

    use super::*;
    use crate::{
        body::relayed::{RelayedBody, Source},
        exchange,
    };

    /// An answer that has `pieces`, and then no end.
    fn answer(pieces: &'static [&'static str], guard: Arc<()>, deadline: Instant) -> RelayedBody {
        use futures::stream::{StreamExt as _, iter, pending};
        let piece = |text: &&'static str| Ok::<_, exchange::BoxError>(Frame::data(Bytes::from(*text)));
        let body = StreamBody::new(iter(pieces.iter().map(piece)).chain(pending())).boxed_unsync();
        RelayedBody::new(Vec::new(), None, Some(Source::Model(body)), guard).until(deadline, &HeaderMap::new())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_is_let_go_of_after_its_deadline() {
        let (guard, deadline) = (Arc::new(()), Instant::now() + Duration::from_secs(10));
        let (reads, read) = oneshot::channel();
        let held = Arc::clone(&guard);
        let part = async move {
            let mut relayed = answer(&["a"], held, deadline);
            // The client's window is closed: nobody asks the body.
            read.await.expect("it is sent");
            poll_fn(|cx| relayed.poll_frame(cx)).await
        };
        let mut part = WatchedPart::new(part.boxed(), Activity::default().read_watch());
        assert!(timeout_at(deadline, &mut part).await.is_err());
        assert_eq!(Arc::strong_count(&guard), 2, "it may still be read");
        assert!(timeout_at(deadline + 2 * GRACE, &mut part).await.is_err());
        assert_eq!(Arc::strong_count(&guard), 1, "the replica is free");
        reads.send(()).expect("it waits");
        let ended = part.await.expect("it is read").expect("it tells its end").expect_err("its time is over");
        assert_eq!(ended.code(), tonic::Code::DeadlineExceeded);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_have_ended_leave_others_of_their_part_alone() {
        let now = Instant::now();
        let (early, late) = (now + Duration::from_secs(1), now + Duration::from_secs(100));
        let guards = [Arc::new(()), Arc::new(())];
        let [first, second] = guards.clone();
        let part = async move {
            drop(answer(&[], first, early));
            let _second = answer(&[], second, late);
            pending::<()>().await;
        };
        let mut part = WatchedPart::new(part.boxed(), Activity::default().read_watch());
        assert!(timeout_at(late, &mut part).await.is_err());
        assert_eq!(guards.each_ref().map(Arc::strong_count), [1, 2]);
        assert!(BEGUN.take().is_none(), "nothing is noted outside of a part");
        drop(answer(&[], Arc::default(), early));
        assert!(BEGUN.take().is_none());
    }
}
