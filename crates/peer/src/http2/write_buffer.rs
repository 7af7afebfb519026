//! Holds back what is written until the connection's task has nothing more to do, so that it leaves in one piece.
//!
//! h2 writes the head of a request before its body can be queued: two TLS records, two system calls, and a peer that is
//! woken twice. The task of the line (`line`) lets everything that is ready write into here, and then sends.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes held back. A large body comes in frames of 16 KiB, the most that many peers take. Over the loopback of Linux, writes of
/// this size cost the writer and the reader a third of the processor time that writes of single frames cost them, the copy included.
const HOLD: usize = 256 << 10;

/// Pieces beyond this are written at once: they are large enough already, and are not copied.
const DIRECT: usize = 64 << 10;

/// Bytes for which the buffer grows step by step. Beyond them it takes [`HOLD`] at once: a large body is under way.
const MAX_STEPWISE_BYTES: usize = 16 << 10;

/// A stream that is written to from inside hyper and sent from outside. Both are in one task: the lock is never waited for.
pub struct WriteBuffer<S>(Arc<Mutex<Inner<S>>>);

struct Inner<S> {
    stream: S,
    held: Vec<u8>,
    /// Bytes of `held` that are sent.
    sent: usize,
    broken: Option<io::Error>,
    /// Tasks that wait to write or to read. The stream only remembers the last one that asked to write.
    writer: Option<Waker>,
    reader: Option<Waker>,
}

impl<S> Clone for WriteBuffer<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: AsyncWrite + Unpin> WriteBuffer<S> {
    /// Holds back what is written to `stream`.
    #[must_use]
    pub fn new(stream: S) -> Self {
        let (held, sent) = (Vec::new(), 0);
        Self(Arc::new(Mutex::new(Inner { stream, held, sent, broken: None, writer: None, reader: None })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what is held. What does not go now goes when the task is woken; who waited to write is woken once all is gone.
    pub fn send(&self, cx: &mut Context<'_>) {
        let mut inner = self.lock();
        let Poll::Ready(flushed) = inner.flush(cx) else { return };
        let reader = match flushed {
            Ok(()) => None,
            // Whoever reads or writes next is told.
            Err(error) => {
                inner.broken = Some(error);
                inner.reader.take()
            }
        };
        let woken = [inner.writer.take(), reader];
        drop(inner);
        woken.into_iter().flatten().for_each(Waker::wake);
    }
}

impl<S: AsyncWrite + Unpin> Inner<S> {
    fn write_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.held.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.held[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                some => self.sent += some,
            }
        }
        // A connection that rests holds no buffer: there are many.
        self.held = Vec::new();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Takes bytes for which there is room.
    fn hold(&mut self, bufs: &[IoSlice<'_>], size: usize) {
        if self.held.len() + size > MAX_STEPWISE_BYTES {
            self.held.reserve_exact(HOLD - self.held.len());
        }
        bufs.iter().for_each(|buf| self.held.extend_from_slice(buf));
    }

    fn flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_held(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn broken(&mut self) -> io::Result<()> {
        self.broken.take().map_or(Ok(()), Err)
    }
}

/// Remembers who waits. The same one asks again and again: only the first time is its waker cloned.
fn waits(who: &mut Option<Waker>, pending: bool, cx: &Context<'_>) {
    if pending && !who.as_ref().is_some_and(|who| who.will_wake(cx.waker())) {
        *who = Some(cx.waker().clone());
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WriteBuffer<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        inner.broken()?;
        let read = Pin::new(&mut inner.stream).poll_read(cx, buf);
        waits(&mut inner.reader, read.is_pending(), cx);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteBuffer<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.lock();
        inner.broken()?;
        let size: usize = bufs.iter().map(|buf| buf.len()).sum();
        if size <= DIRECT && inner.held.len() + size <= HOLD {
            inner.hold(bufs, size);
            return Poll::Ready(Ok(size));
        }
        let written = match inner.write_held(cx) {
            Poll::Ready(Ok(())) if size <= DIRECT => {
                inner.hold(bufs, size);
                Poll::Ready(Ok(size))
            }
            Poll::Ready(Ok(())) => Pin::new(&mut inner.stream).poll_write_vectored(cx, bufs),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        };
        waits(&mut inner.writer, written.is_pending(), cx);
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Not yet: `send` does, when all that is ready has been written.
        Poll::Ready(self.lock().broken())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        let shut = match inner.flush(cx) {
            Poll::Ready(Ok(())) => Pin::new(&mut inner.stream).poll_shutdown(cx),
            unfinished => unfinished,
        };
        waits(&mut inner.writer, shut.is_pending(), cx);
        shut
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        task::{Wake, Waker},
    };

    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    fn write(held: &mut WriteBuffer<impl AsyncWrite + Unpin>, bytes: &[u8]) -> Poll<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(held).poll_write(&mut cx, bytes).map(|written| written.expect("not broken"))
    }

    #[tokio::test]
    async fn small_writes_leave_together_and_large_ones_after_them() {
        let (near, mut far) = duplex(HOLD * 4);
        let mut held = WriteBuffer::new(near);
        let mut cx = Context::from_waker(Waker::noop());
        let mut seen = vec![0; HOLD * 4];
        assert_eq!((write(&mut held, b"head"), write(&mut held, b"body")), (Poll::Ready(4), Poll::Ready(4)));
        assert!(Pin::new(&mut held).poll_flush(&mut cx).is_ready());
        assert!(futures::poll!(std::pin::pin!(far.read(&mut seen))).is_pending(), "it is held back");
        held.send(&mut cx);
        assert_eq!(far.read(&mut seen).await.expect("read"), 8);
        assert_eq!(&seen[..8], b"headbody");

        assert_eq!(write(&mut held, b"first"), Poll::Ready(5));
        assert_eq!(write(&mut held, &vec![1; HOLD]), Poll::Ready(HOLD));
        far.read_exact(&mut seen[..5 + HOLD]).await.expect("read");
        assert_eq!(&seen[..6], b"first\x01");

        // The frames of a large body leave together, too, and before there are more of them than may be held.
        for _ in 0..HOLD / DIRECT {
            assert_eq!(write(&mut held, &vec![2; DIRECT]), Poll::Ready(DIRECT));
        }
        assert!(futures::poll!(std::pin::pin!(far.read(&mut seen))).is_pending(), "it is held back");
        assert_eq!(write(&mut held, b"next"), Poll::Ready(4));
        far.read_exact(&mut seen[..HOLD]).await.expect("read");
        assert!(futures::poll!(std::pin::pin!(far.read(&mut seen))).is_pending(), "it is held back");
        held.send(&mut cx);
        assert_eq!(far.read(&mut seen).await.expect("read"), 4);
        assert_eq!(&seen[..4], b"next");
    }

    #[tokio::test]
    async fn a_full_stream_takes_the_rest_later_and_holds_no_more_meanwhile() {
        let (near, mut far) = duplex(HOLD / 4);
        let mut held = WriteBuffer::new(near);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..HOLD / DIRECT {
            assert_eq!(write(&mut held, &vec![7; DIRECT]), Poll::Ready(DIRECT));
        }
        held.send(&mut cx);
        assert_eq!(write(&mut held, &[8]), Poll::Pending);
        let mut seen = vec![0; HOLD];
        for chunk in seen.chunks_mut(HOLD / 4) {
            far.read_exact(chunk).await.expect("read");
            held.send(&mut cx);
        }
        assert!(seen.iter().all(|byte| *byte == 7));
        assert_eq!(write(&mut held, &[8]), Poll::Ready(1));
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[tokio::test]
    async fn who_waits_to_write_is_woken_though_others_ask_the_stream_meanwhile() {
        let (near, mut far) = duplex(HOLD);
        let mut held = WriteBuffer::new(near);
        let (writer, task) = (Arc::new(Woken::default()), Waker::noop());
        let waker = Waker::from(Arc::clone(&writer));
        let mut waits = Context::from_waker(&waker);
        let large = vec![7; HOLD + 1];
        assert_eq!(Pin::new(&mut held).poll_write(&mut waits, &large).map(Result::unwrap), Poll::Ready(HOLD));
        assert!(Pin::new(&mut held).poll_write(&mut waits, &large).is_pending());
        assert_eq!(write(&mut held, &[8]), Poll::Ready(1));
        // The stream now knows the task only.
        held.send(&mut Context::from_waker(task));
        assert_eq!(writer.0.load(SeqCst), 0);
        far.read_exact(&mut vec![0; HOLD]).await.expect("read");
        held.send(&mut Context::from_waker(task));
        assert_eq!(writer.0.load(SeqCst), 1);
    }
}
