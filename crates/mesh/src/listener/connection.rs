//! One connection with all its requests, as one task.
//!
//! ```text
//! serving ──stop, idle, an end left unread──→ finishing: takes no new requests, ends after those in flight
//!    │ the client is done, or cut                 │ or when an end is left unread for as long again
//!    └─────────────────→ ended ←──────────────────┘
//! ```
//!
//! hyper gives every HTTP/2 stream to an executor. The one here does not spawn: the streams are run by the task of
//! their connection, each caught if it panics. Requests of one connection then meet in a model's queue without crossing threads, and their
//! answers leave in one write. A connection's requests are decoded by one core, which its frames are, too; what takes
//! long (runs, large bodies) happens elsewhere. Measured together with `ingress/grpc/infer.rs` in one run: 29 % more
//! gRPC requests per second with 8 callers on one connection, 28 % less processor time for each.

use std::{
    convert::Infallible,
    mem,
    net::IpAddr,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use berth_peer::{
    http2::WriteBuffer,
    port::{Activity, Greeted, Inactivity, LeftUnread, Paced},
};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{rt::TokioIo, server::conn::auto};

use super::ShutdownSignals;
use crate::{body::overdue::WatchedPart, ingress::Ingress};

/// An event of one part of a connection.
enum Event {
    /// A stream was answered.
    Answered,
    /// Take no more requests.
    Stop,
    /// Inactive for too long.
    Silent(Inactivity),
    /// End now.
    Cut,
}

/// Takes the streams of one connection from hyper.
#[derive(Clone, Default)]
pub(super) struct StreamExecutor {
    streams: Arc<Mutex<Vec<BoxFuture<'static, Event>>>>,
    activity: Activity,
}

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let open = self.activity.stream();
        // A panic ends its own stream, which the client sees reset, and not the connection with all the others.
        let stream = Box::pin(AssertUnwindSafe(stream).catch_unwind().map(move |ended| {
            drop(open);
            if ended.is_err() {
                tracing::error!("a stream panicked");
            }
            Event::Answered
        }));
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }
}

impl StreamExecutor {
    pub(super) fn new(activity: Activity) -> Self {
        Self { streams: Arc::default(), activity }
    }

    fn take(&self) -> Vec<BoxFuture<'static, Event>> {
        mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Serves one connection to its end. `executor` runs the streams of `http`; `client` is the address of the other end.
pub(super) async fn serve(
    http: auto::Builder<StreamExecutor>,
    executor: StreamExecutor,
    greeted: Greeted,
    client: Option<IpAddr>,
    ingress: Arc<Ingress>,
    signals: ShutdownSignals,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let Greeted { stream, certificate, patience } = greeted;
    let activity = executor.activity.clone();
    let silence = activity.clone().silence(patience);
    let service = service_fn(move |mut request: Request<Incoming>| {
        activity.request();
        if let Some(client) = client {
            ingress.note_client(&mut request, client);
        }
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(Arc::clone(certificate));
        }
        let version = request.version();
        let answered = Arc::clone(&ingress).serve(request, client);
        answered.map(move |answer| Ok::<_, Infallible>(answer.map(|body| Paced::new(body, version))))
    });
    let held = WriteBuffer::new(stream);
    let mut connection = pin!(http.serve_connection(TokioIo::new(held.clone()), service));
    // What hyper writes is held, and leaves by `held.send` alone.
    // The signals are parts like streams, so that they are looked at when they come and not whenever something is read.
    let events = [
        signals.stopping.cancelled_owned().map(|()| Event::Stop).boxed(),
        signals.cut.cancelled_owned().map(|()| Event::Cut).boxed(),
        silence.map(Event::Silent).boxed(),
    ];
    let watching = |part: BoxFuture<'static, Event>| WatchedPart::new(part, executor.activity.read_watch());
    let mut parts = FuturesUnordered::from_iter(events.map(watching));
    let turn = |cx: &mut Context<'_>| loop {
        let ended = connection.as_mut().poll(cx);
        // The message of an answer and its end leave in one write, and wake its reader once.
        held.send(cx);
        if let Poll::Ready(ended) = ended {
            return Poll::Ready(ended);
        }
        parts.extend(executor.take().into_iter().map(watching));
        let mut answered = false;
        while let Poll::Ready(event) = parts.poll_next_unpin(cx) {
            match event {
                // A stream that is left unread goes with its part: its client sees it reset.
                Some(Ok(Event::Answered) | Err(LeftUnread)) => answered = true,
                Some(Ok(Event::Stop)) => {
                    connection.as_mut().graceful_shutdown();
                    cx.waker().wake_by_ref();
                }
                Some(Ok(Event::Silent(Inactivity::Idle | Inactivity::Unread))) => {
                    connection.as_mut().graceful_shutdown();
                    parts.push(watching(executor.activity.clone().unread_still().map(|()| Event::Cut).boxed()));
                    cx.waker().wake_by_ref();
                }
                Some(Ok(Event::Cut | Event::Silent(Inactivity::NoRequest))) | None => return Poll::Ready(Ok(())),
            }
        }
        // Answers that are ready leave together, and at once: they have woken this task, but after others of its thread.
        if !answered {
            return Poll::Pending;
        }
    };
    std::future::poll_fn(turn).await
}

#[cfg(test)]
mod tests {
    use hyper::rt::Executor as _;

    use super::*;

    #[test]
    fn a_stream_that_panics_has_ended_and_nothing_else_has() {
        let executor = StreamExecutor::default();
        executor.execute(async { panic!("in the body of an answer") });
        executor.execute(async {});
        let ended: Vec<_> = executor.take().into_iter().map(|stream| stream.now_or_never()).collect();
        assert!(matches!(ended[..], [Some(Event::Answered), Some(Event::Answered)]));
    }
}
