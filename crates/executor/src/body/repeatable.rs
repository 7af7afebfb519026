//! The body of a request that may be sent again.
//!
//! ```text
//! client ──▶ inner ──▶ kept ──▶ the attempt that runs      each attempt begins with what the ones before it have taken
//! ```
//! It passes on as it comes. If it were collected first, the task of the client's connection would read from itself and so wake itself;
//! the runtime hands such a task to another thread, which takes longer than all else that the executor does with a request.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use berth_peer::port::KeptPieces;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::BoxError;

/// A body with a known and small length, for several attempts.
pub(crate) struct Repeatable<B>(Arc<Mutex<SharedBody<B>>>);

struct SharedBody<B> {
    inner: B,
    /// Data that attempts have taken.
    kept: KeptPieces,
    /// Number of attempts so far.
    attempts: usize,
}

/// The body of one attempt.
pub(crate) struct Attempt<B> {
    body: Arc<Mutex<SharedBody<B>>>,
    number: usize,
    /// Bytes that it has given.
    given: usize,
    /// Bytes that it has not given yet.
    left: u64,
}

impl<B: Body> Repeatable<B> {
    pub(crate) fn new(inner: B) -> Self {
        Self(Arc::new(Mutex::new(SharedBody { inner, kept: KeptPieces::default(), attempts: 0 })))
    }

    /// The body of the next attempt, from its begin. The one before gets no more of it.
    pub(crate) fn attempt(&self) -> Attempt<B> {
        let mut shared = lock(&self.0);
        shared.attempts += 1;
        let left = shared.kept.length() as u64 + shared.inner.size_hint().lower();
        Attempt { body: Arc::clone(&self.0), number: shared.attempts, given: 0, left }
    }
}

impl<B> Body for Attempt<B>
where
    B: Body<Data = Bytes, Error = BoxError> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let mut shared = lock(&this.body);
        if shared.attempts != this.number {
            return Poll::Ready(Some(Err("the request was sent again".into())));
        }
        let data = match shared.kept.after(this.given) {
            Some(data) => data,
            None => loop {
                match ready!(Pin::new(&mut shared.inner).poll_frame(cx)) {
                    // Trailers of a body with a length are left out: another attempt would have none.
                    Some(Ok(frame)) => {
                        let Ok(data) = frame.into_data() else { continue };
                        shared.kept.add(&data);
                        break data;
                    }
                    ended => return Poll::Ready(ended),
                }
            },
        };
        this.given += data.len();
        this.left = this.left.saturating_sub(data.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        let shared = lock(&self.body);
        shared.inner.is_end_stream() && self.given == shared.kept.length()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

fn lock<B>(body: &Mutex<SharedBody<B>>) -> MutexGuard<'_, SharedBody<B>> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _, stream};
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    /// A body that gives these parts, and then waits for more or ends.
    fn parts(
        parts: &'static [&'static str],
        ends: bool,
    ) -> Repeatable<impl Body<Data = Bytes, Error = BoxError> + Unpin> {
        let given = stream::iter(parts).map(|part| Ok::<_, BoxError>(Frame::data(Bytes::from_static(part.as_bytes()))));
        let all = if ends { given.boxed() } else { given.chain(stream::pending()).boxed() };
        Repeatable::new(StreamBody::new(all))
    }

    fn next<B>(attempt: &mut Attempt<B>) -> Option<Option<Result<Bytes, String>>>
    where
        B: Body<Data = Bytes, Error = BoxError> + Unpin,
    {
        let frame = attempt.frame().now_or_never()?;
        Some(
            frame.map(|frame| {
                frame.map_err(|error| error.to_string()).map(|frame| frame.into_data().unwrap_or_default())
            }),
        )
    }

    #[test]
    fn each_attempt_has_all_of_it() {
        let body = parts(&["a", "b", "c"], true);
        let mut first = body.attempt();
        assert_eq!(next(&mut first), Some(Some(Ok("a".into()))));
        let mut second = body.attempt();
        assert!(matches!(next(&mut first), Some(Some(Err(_)))), "it takes what the next one needs");
        for expected in ["a", "b", "c"] {
            assert_eq!(next(&mut second), Some(Some(Ok(expected.into()))));
        }
        assert_eq!((next(&mut second), next(&mut body.attempt())), (Some(None), Some(Some(Ok("a".into())))));
    }

    #[test]
    fn what_has_not_come_is_waited_for() {
        let body = parts(&["a"], false);
        let mut attempt = body.attempt();
        assert_eq!((next(&mut attempt), next(&mut attempt)), (Some(Some(Ok("a".into()))), None));
    }
}
