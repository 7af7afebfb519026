//! Answers over HTTP/2 that their clients leave unread. HTTP/2 asks for no more of an answer while the client takes nothing of it, and
//! keeps what it has: memory, places and connections to servers would be the client's for as long as its connection lives.
//!
//! ```text
//! Paced gives a body in pieces, and notes whose turn it is ──▶ ReadWatch, around the task of the stream
//!     the client's, for too long ─────────────▶ LeftUnread: the task is dropped, and HTTP/2 resets the stream with all that it kept
//!     the stream is over, its end unsent ─────▶ Activity: the connection takes no more streams when that lasts (Inactivity::Unread),
//!                                               and is ended when it lasts as long again (Activity::unread_still)
//! ```
//! Over HTTP/1.1 the kernel ends the connection ([`prepare`](super::prepare)).

use std::{
    cell::Cell,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::Activity;

/// Bytes that HTTP/2 gets at once, and that a client must take in the time that it has; one that makes room in larger steps, most
/// often of half its window, must take such a step. No less than the first window of most clients: smaller pieces would only be
/// more work.
const PIECE: usize = 64 << 10;

/// Answers of this size are followed until they are sent: smaller ones take little.
const FOLLOWED: usize = 8 << 10;

/// Smaller answers that are followed all the same, of 256. So whoever leaves many of them unread is noticed, and nobody knows which to
/// read.
const SAMPLED: u8 = 16;

/// Whoever has the next step in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The body was not asked.
    Same,
    /// More of it is still to be made.
    Server,
    /// A piece of it was given, and the next one is asked for once that is taken.
    Client,
}

thread_local! {
    /// The turn in the stream that this thread polls.
    static TURN: Cell<Turn> = const { Cell::new(Turn::Same) };
    /// The last piece that was given in it, if that is followed.
    static LAST: Cell<Option<Weak<Bytes>>> = const { Cell::new(None) };
}

/// A body that HTTP/2 gets in pieces, and HTTP/1.1 as it comes.
#[derive(Debug)]
pub struct Paced<B> {
    inner: B,
    /// `None`: for HTTP/1.1.
    piece: Option<usize>,
    /// The rest of a frame of which pieces were given.
    left: Bytes,
    /// True if the pieces of that frame are followed.
    followed: bool,
}

impl<B> Paced<B> {
    /// The body of an answer to a request of this version.
    #[must_use]
    pub fn new(inner: B, version: Version) -> Self {
        let piece = (version == Version::HTTP_2).then_some(PIECE);
        Self { inner, piece, left: Bytes::new(), followed: false }
    }

    fn next_piece(&mut self, most: usize) -> Bytes {
        let piece = self.left.split_to(most.min(self.left.len()));
        TURN.set(Turn::Client);
        if !self.followed {
            return piece;
        }
        let piece = Arc::new(piece);
        LAST.set(Some(Arc::downgrade(&piece)));
        Bytes::from_owner(FollowedPiece(piece))
    }
}

/// A piece, of which is known when it was sent: nobody has it any more.
struct FollowedPiece(Arc<Bytes>);

impl AsRef<[u8]> for FollowedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let Some(most) = this.piece else { return Pin::new(&mut this.inner).poll_frame(cx) };
        if !this.left.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(this.next_piece(most)))));
        }
        let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) else {
            TURN.set(Turn::Server);
            return Poll::Pending;
        };
        let data = match frame.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => data,
            Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => return Poll::Ready(None),
        };
        this.followed = data.len() >= FOLLOWED || rand::random::<u8>() < SAMPLED;
        this.left = data;
        Poll::Ready(Some(Ok(Frame::data(this.next_piece(most)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, left) = (self.inner.size_hint(), self.left.len() as u64);
        if left == 0 {
            return hint;
        }
        let mut with_left = SizeHint::new();
        with_left.set_lower(hint.lower() + left);
        if let Some(upper) = hint.upper() {
            with_left.set_upper(upper + left);
        }
        with_left
    }
}

/// The end of a stream whose client took nothing of its answer for too long.
#[derive(Debug, PartialEq, Eq)]
pub struct LeftUnread;

/// The watch over one stream of HTTP/2 whose answers are [`Paced`].
#[derive(Debug)]
pub struct ReadWatch {
    activity: Activity,
    /// Since then the client has the next step.
    since: Option<Instant>,
    last: Option<Weak<Bytes>>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl ReadWatch {
    pub(super) fn new(activity: Activity) -> Self {
        Self { activity, since: None, last: None, timer: None }
    }

    /// Polls the task of the stream.
    ///
    /// # Errors
    /// The client leaves the answer unread: the task is to be dropped.
    pub fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        stream: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Result<T, LeftUnread>> {
        TURN.set(Turn::Same);
        let polled = stream(cx);
        match TURN.replace(Turn::Same) {
            Turn::Same => {}
            Turn::Server => self.since = None,
            Turn::Client => self.since = polled.is_pending().then(Instant::now),
        }
        // Taken in any case: it is no piece of the next stream.
        if let Some(last) = LAST.take() {
            self.last = Some(last);
        }
        let Poll::Ready(ended) = polled else { return self.wait(cx).map(Err) };
        if let Some(last) = self.last.take().filter(|last| last.strong_count() > 0) {
            self.activity.ended_unsent(last);
        }
        Poll::Ready(Ok(ended))
    }

    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<LeftUnread> {
        let Some(since) = self.since else { return Poll::Pending };
        let end = since + self.activity.unread();
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        // It is set anew when it has run, not with every piece.
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= end {
                self.activity.cut();
                return Poll::Ready(LeftUnread);
            }
            timer.as_mut().reset(end);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, time::Duration};

    use futures::StreamExt as _;
    use http_body_util::{BodyExt as _, Full, StreamBody};
    use prometheus_client::metrics::counter::Counter;
    use tokio::time::timeout;

    use super::*;
    use crate::port::{Inactivity, Patience};

    const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn http2_gets_pieces_and_http1_the_whole() {
        let whole = Bytes::from(vec![7; 3 * PIECE - 1]);
        let pieces = vec![PIECE, PIECE, PIECE - 1];
        for (version, expected) in [(Version::HTTP_2, pieces), (Version::HTTP_11, vec![whole.len()])] {
            let mut body = Paced::new(Full::new(whole.clone()), version);
            let (mut lengths, mut read) = (Vec::new(), Vec::new());
            while let Some(frame) = body.frame().await {
                let piece = frame.expect("no error").into_data().expect("data");
                lengths.push(piece.len());
                read.extend_from_slice(&piece);
                assert_eq!(body.size_hint().exact(), Some((whole.len() - read.len()) as u64));
            }
            assert!(body.is_end_stream() && lengths == expected && read == whole, "{version:?}: {lengths:?}");
        }
    }

    /// A stream that takes a piece of its answer at each of these times, and keeps the last of them.
    async fn reads_every(pauses: &[Duration], rest: bool) -> Bytes {
        let frames = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![7; PIECE]))));
        let mut body = Paced::new(StreamBody::new(frames), Version::HTTP_2);
        let mut last = body.frame().await;
        for pause in pauses {
            tokio::time::sleep(*pause).await;
            last = body.frame().await;
        }
        if rest {
            std::future::pending::<()>().await;
        }
        last.expect("a frame").expect("no error").into_data().expect("data")
    }

    async fn watched<T>(activity: &Activity, stream: impl Future<Output = T>) -> Result<T, LeftUnread> {
        let (mut stream, mut watch) = (Box::pin(stream), activity.read_watch());
        poll_fn(|cx| watch.poll(cx, |cx| stream.as_mut().poll(cx))).await
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_reads_nothing_is_cut_and_whoever_reads_slowly_is_not() {
        let cut = Counter::default();
        let activity = Activity::new(UNREAD_TIMEOUT, cut.clone());
        let slow = [UNREAD_TIMEOUT - Duration::from_secs(1); 20];
        assert!(watched(&activity, reads_every(&slow, false)).await.is_ok());
        assert_eq!(cut.get(), 0);
        let began = Instant::now();
        assert_eq!(watched(&activity, reads_every(&slow, true)).await, Err(LeftUnread));
        assert_eq!((began.elapsed().as_secs(), cut.get()), (20 * 59 + 60, 1));
        // The model's pauses are no client's.
        let piece = futures::stream::iter([Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![7; PIECE])))]);
        let mut silent = Paced::new(StreamBody::new(piece.chain(futures::stream::pending())), Version::HTTP_2);
        let reads = async {
            let _unsent = silent.frame().await;
            silent.frame().await
        };
        assert!(timeout(UNREAD_TIMEOUT * 100, watched(&activity, reads)).await.is_err());
        assert!(LAST.take().is_none(), "the next stream has pieces of its own");
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_that_is_not_sent_ends_the_connection_in_two_steps() {
        let (patience, cut) = (Patience { first: UNREAD_TIMEOUT * 2, idle: UNREAD_TIMEOUT * 10 }, Counter::default());
        let activity = Activity::new(UNREAD_TIMEOUT, cut.clone());
        activity.request();
        let _stream = activity.stream();
        let mut silence = pin!(activity.clone().silence(patience));
        drop(watched(&activity, reads_every(&[], false)).await.expect("it is read"));
        assert!(timeout(UNREAD_TIMEOUT * 3, silence.as_mut()).await.is_err(), "it was sent");
        let began = Instant::now();
        let unsent = watched(&activity, reads_every(&[], false)).await.expect("HTTP/2 has it");
        assert_eq!(silence.await, Inactivity::Unread);
        assert_eq!((began.elapsed().as_secs(), cut.get()), (60, 0), "others that share the connection have time");
        // Nobody has to come anew to be noticed: it is the same end.
        activity.clone().unread_still().await;
        assert_eq!((began.elapsed().as_secs(), cut.get()), (120, 1));
        let mut still = pin!(activity.clone().unread_still());
        drop(unsent);
        let later = watched(&activity, reads_every(&[], false)).await.expect("HTTP/2 has it");
        assert!(timeout(UNREAD_TIMEOUT, still.as_mut()).await.is_err(), "it has its own time");
        drop(later);
        assert!(timeout(UNREAD_TIMEOUT * 10, still).await.is_err(), "it was sent");
        assert_eq!(cut.get(), 1);
    }
}
