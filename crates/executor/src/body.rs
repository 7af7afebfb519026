//! Bodies on their way: counted, bounded, and an end that is noticed.

mod repeatable;

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use berth_wire::byte_budget::{ByteBudget, ByteCharge};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use tokio::time::{Sleep, sleep};

pub(crate) use self::repeatable::Repeatable;
use crate::{BoxError, log::Captured};

/// A body of any origin.
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A body of these bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Counts of a request's body, which is read while the answer may be on its way already.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    bytes: AtomicU64,
    too_large: AtomicBool,
    no_memory: AtomicBool,
    broke_off: AtomicBool,
    awaited: AtomicBool,
    /// Begin of the body, where the request is logged.
    captured: OnceLock<Mutex<Captured>>,
}

impl Sent {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Keeps the begin of what comes from now on. Set once.
    pub(crate) fn capture(&self, captured: Mutex<Captured>) {
        let _ = self.captured.set(captured);
    }

    pub(crate) fn captured(&self) -> Option<&Mutex<Captured>> {
        self.captured.get()
    }

    /// Counts data of the body.
    pub(crate) fn data(&self, data: &[u8]) {
        self.add(data.len());
        if let Some(captured) = self.captured.get() {
            captured.lock().unwrap_or_else(PoisonError::into_inner).add(data);
        }
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// True if the client did not send all of the body.
    pub(crate) fn broke_off(&self) -> bool {
        self.broke_off.load(Relaxed)
    }

    /// True while more of the body is wanted and the client sends none. False also while the server takes none.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.load(Relaxed)
    }

    /// True if the body had more than it may.
    pub(crate) fn is_too_large(&self) -> bool {
        self.too_large.load(Relaxed)
    }

    /// True if there was no memory for the body.
    pub(crate) fn had_no_memory(&self) -> bool {
        self.no_memory.load(Relaxed)
    }
}

/// Bytes of a body that passes which are not counted: its request takes about as much without them.
const UNCOUNTED: u64 = 8 << 10;

/// The way in which a request's body counts against the memory of all.
pub(crate) enum CountedBody {
    /// Each piece, until the connection to the server has written it.
    InPieces(Arc<ByteBudget>),
    /// All of it, for as long as it is kept to be sent again.
    Whole(ByteCharge),
}

impl CountedBody {
    /// The piece, counted; `None`: there is no room. `passed`: bytes of the body so far, with it.
    fn piece(&mut self, data: Bytes, passed: u64) -> Option<Bytes> {
        match self {
            Self::InPieces(_) if passed <= UNCOUNTED => Some(data),
            Self::InPieces(budget) => {
                let mut charge = budget.charge();
                charge.grow(data.len()).then(|| charge.hold(data))
            }
            Self::Whole(charge) => charge.grow(data.len()).then_some(data),
        }
    }
}

/// The body of a request, which may have so many bytes.
pub(crate) struct Bounded<B> {
    pub(crate) inner: B,
    pub(crate) most: u64,
    pub(crate) sent: Arc<Sent>,
    pub(crate) counted: CountedBody,
}

impl<B> http_body::Body for Bounded<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let polled = poll_said(&mut this.inner, cx);
        this.sent.awaited.store(polled.is_pending(), Relaxed);
        let data = match ready!(polled).map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => data,
            Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
            Some(Err(error)) => {
                this.sent.broke_off.store(true, Relaxed);
                return Poll::Ready(Some(Err(error.into())));
            }
            None => return Poll::Ready(None),
        };
        this.sent.data(&data);
        let passed = this.sent.bytes();
        if passed > this.most {
            this.sent.too_large.store(true, Relaxed);
            return Poll::Ready(Some(Err("the body is larger than the executor lets through".into())));
        }
        let Some(data) = this.counted.piece(data, passed) else {
            this.sent.no_memory.store(true, Relaxed);
            return Poll::Ready(Some(Err("the bodies of other requests take all memory".into())));
        };
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The next frame that says something. Empty ones are left out: servers and clients of HTTP/2 end a connection on which they get many, and
/// that to a server is shared by all clients.
fn poll_said<B>(body: &mut B, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    loop {
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        let empty = matches!(&frame, Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty));
        if !empty {
            return Poll::Ready(frame);
        }
        if body.is_end_stream() {
            return Poll::Ready(None);
        }
    }
}

/// Something that is told how an answer's body went. Dropped before the end: the client has gone, or the server broke off.
pub(crate) trait Watcher: Send + Unpin + 'static {
    fn data(&mut self, data: &[u8]);

    /// The status of gRPC, in the trailers.
    fn grpc_status(&mut self, status: &http::HeaderValue);

    /// The body is whole.
    fn end(&mut self);
}

/// The end of a body whose sender fell silent.
#[derive(Debug, thiserror::Error)]
#[error("the model server sent nothing of its answer for {} s", .0.as_secs_f64())]
pub(crate) struct Silent(Duration);

/// A limit for the silences of a body. None begins while nobody asks for more: a slow reader is no silent sender.
pub(crate) struct Idle {
    limit: Option<Duration>,
    /// Runs while more is awaited.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Idle {
    /// `None`: a body may be silent for as long as it likes.
    pub(crate) const fn new(limit: Option<Duration>) -> Self {
        Self { limit, timer: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Silent> {
        let Some(limit) = self.limit else { return Poll::Pending };
        self.timer.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx).map(|()| Silent(limit))
    }
}

/// The body of an answer, watched. What holds memory for it ends before the watcher.
pub(crate) struct WatchedBody<B, W> {
    pub(crate) inner: B,
    pub(crate) watcher: W,
    pub(crate) idle: Idle,
}

impl<B, W> http_body::Body for WatchedBody<B, W>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    W: Watcher,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = poll_said(&mut this.inner, cx) else {
            return this.idle.poll(cx).map(|silent| Some(Err(silent.into())));
        };
        this.idle.timer = None;
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    this.watcher.data(data);
                } else if let Some(status) = frame.trailers_ref().and_then(|trailers| trailers.get("grpc-status")) {
                    let status = status.clone();
                    this.watcher.grpc_status(&status);
                }
                // hyper asks no more when it knows that nothing comes.
                if this.inner.is_end_stream() {
                    this.watcher.end();
                }
            }
            Some(Err(_)) => {}
            None => this.watcher.end(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Bytes that are handed out at once. HTTP/2 keeps them until the client takes them, and nobody counts them then.
const PIECE: usize = 16 << 10;

/// Bytes that are handed out in copies of a small part: whoever leaves them unread keeps `held`, which counts them, to the last piece
/// or until they are [let go of](LetGo).
pub(crate) struct PiecewiseBody<T> {
    held: Arc<Mutex<Option<(Bytes, T)>>>,
    left: usize,
}

/// The way to let go of bytes that nobody reads, and of what counts them. HTTP/2 does not ask for a body whose client takes nothing.
pub(crate) struct LetGo<T>(Weak<Mutex<Option<(Bytes, T)>>>);

impl<T> LetGo<T> {
    /// True if the body has gone.
    pub(crate) fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Lets go; what is read next is an error.
    pub(crate) fn now(self) {
        if let Some(held) = self.0.upgrade() {
            drop(held.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl<T> PiecewiseBody<T> {
    pub(crate) fn new(bytes: Bytes, held: T) -> Self {
        Self { left: bytes.len(), held: Arc::new(Mutex::new(Some((bytes, held)))) }
    }

    pub(crate) fn let_go(&self) -> LetGo<T> {
        LetGo(Arc::downgrade(&self.held))
    }
}

impl<T> http_body::Body for PiecewiseBody<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let piece = {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((rest, _)) = held.as_mut() else {
                return Poll::Ready(Some(Err("the answer was not read in its time".into())));
            };
            let length = PIECE.min(rest.len());
            // A part of the bytes themselves would keep all of them.
            Bytes::copy_from_slice(&rest.split_to(length))
        };
        self.left -= piece.len();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::{StreamExt as _, stream};
    use http_body_util::StreamBody;

    use super::*;

    /// Tells of the end of a body.
    struct Notice(mpsc::Sender<()>);

    impl Watcher for Notice {
        fn data(&mut self, _: &[u8]) {}

        fn grpc_status(&mut self, _: &http::HeaderValue) {}

        fn end(&mut self) {
            self.0.send(()).expect("it listens");
        }
    }

    #[tokio::test]
    async fn a_body_counts_until_nobody_has_it() {
        let budget = ByteBudget::new(30_000);
        let body = |counted| {
            let pieces = stream::repeat_with(|| Ok::<_, BoxError>(Frame::data(Bytes::from(vec![7; 5_000]))));
            Bounded { inner: StreamBody::new(pieces), most: 1 << 20, sent: Arc::default(), counted }
        };
        let mut passes = body(CountedBody::InPieces(Arc::clone(&budget)));
        let mut unsent = Vec::new();
        // The first piece is as small as a head.
        for expected in [0, 5_000, 10_000, 15_000] {
            unsent.push(passes.frame().await.expect("a piece").expect("room"));
            assert_eq!(budget.used(), expected);
        }
        let mut kept = body(CountedBody::Whole(budget.charge()));
        for expected in [20_000, 25_000, 30_000] {
            drop(kept.frame().await.expect("a piece").expect("room"));
            assert_eq!(budget.used(), expected);
        }
        assert!(passes.frame().await.is_some_and(|frame| frame.is_err()) && passes.sent.had_no_memory());
        assert!(kept.frame().await.is_some_and(|frame| frame.is_err()) && kept.sent.had_no_memory());
        assert_eq!(budget.used(), 30_000);
        unsent.clear();
        assert_eq!(budget.used(), 15_000);
        drop(kept);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn pieces_are_small_and_hold_what_counts_them_to_the_last() {
        let (bytes, held) = (Bytes::from(vec![7; 3 * PIECE - 1]), Arc::new(()));
        let counts = Arc::downgrade(&held);
        let mut body = PiecewiseBody::new(bytes.clone(), held);
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            assert!(counts.upgrade().is_some());
            let piece = frame.expect("no error").into_data().expect("data");
            assert!(piece.len() <= PIECE);
            read.extend_from_slice(&piece);
            assert_eq!(body.size_hint().exact(), Some((bytes.len() - read.len()) as u64));
        }
        assert!(body.is_end_stream() && read == bytes);
        drop(body);
        assert!(counts.upgrade().is_none());
        assert!(PiecewiseBody::new(Bytes::new(), ()).is_end_stream());
    }

    #[tokio::test]
    async fn what_nobody_reads_can_be_let_go_of() {
        let (held, mut body) = (Arc::new(()), None);
        let pieces = PiecewiseBody::new(Bytes::from(vec![7; 3 * PIECE]), Arc::clone(&held));
        let let_go = pieces.let_go();
        assert!(body.insert(pieces).frame().await.is_some_and(|frame| frame.is_ok()));
        let_go.now();
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(body.expect("it is there").frame().await.is_some_and(|frame| frame.is_err()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_that_falls_silent_is_given_up_and_a_slow_one_is_not() {
        let (tell, told) = mpsc::channel();
        let slow = || {
            stream::iter(["a", "b", "c"]).then(|text| async move {
                sleep(Duration::from_secs(9)).await;
                Ok::<_, BoxError>(Frame::data(Bytes::from_static(text.as_bytes())))
            })
        };
        for (limit, ends, expected) in [(Some(10), true, true), (Some(8), true, false), (None, false, false)] {
            let parts = if ends { slow().boxed() } else { slow().chain(stream::pending()).boxed() };
            let (watcher, idle) = (Notice(tell.clone()), Idle::new(limit.map(Duration::from_secs)));
            let body = WatchedBody { inner: StreamBody::new(parts), watcher, idle };
            let read = tokio::time::timeout(Duration::from_secs(3_600), body.collect()).await;
            match read {
                Ok(Ok(read)) => assert_eq!((read.to_bytes().as_ref(), expected), (&b"abc"[..], true)),
                Ok(Err(error)) => assert!(error.is::<Silent>() && limit == Some(8), "{error}"),
                Err(_) => assert_eq!(limit, None, "it waits on"),
            }
            assert_eq!(told.try_recv().is_ok(), expected);
        }
    }
}
