//! Reading ahead of TLS, which reads 4 KiB at a time, and of HTTP/2, which reads small frames 8 KiB at a time: a body of 4 MiB would cost
//! a thousand system calls.
//!
//! ```text
//! direct ──a read filled the reader's buffer: more has come──▶ ahead: 32 KiB at a time
//!    ▲                                                           │ a read brought less, or nothing yet
//!    └──────────────── taken to the last byte ◀──────────────────┘
//! ```
//!
//! A connection that rests, or that sees small requests alone, holds no buffer and copies nothing. Nor is anything copied for a reader that
//! has as much room itself.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

/// Bytes read at a time while more is there: two of the largest TLS records.
const AHEAD: usize = 32 << 10;

/// A stream that is read ahead while much comes. Writes pass as they are.
#[derive(Debug)]
pub struct ReadAhead<T> {
    stream: T,
    ahead: Option<Ahead>,
}

/// Bytes that were read and are not taken yet.
#[derive(Debug)]
struct Ahead {
    bytes: BytesMut,
    /// True if the last read filled all the room there was.
    more: bool,
}

impl<T> ReadAhead<T> {
    /// Wraps a stream of which nothing has been read yet.
    #[must_use]
    pub fn new(stream: T) -> Self {
        Self { stream, ahead: None }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ReadAhead<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, ahead } = self.get_mut();
        let Some(held) = ahead else {
            let room = buffer.remaining();
            ready!(Pin::new(stream).poll_read(cx, buffer))?;
            if room > 0 && buffer.remaining() == 0 {
                *ahead = Some(Ahead { bytes: BytesMut::with_capacity(AHEAD), more: true });
            }
            return Poll::Ready(Ok(()));
        };
        if held.bytes.is_empty() && buffer.remaining() >= AHEAD {
            let read = Pin::new(stream).poll_read(cx, buffer);
            if buffer.remaining() > 0 {
                *ahead = None;
            }
            return read;
        }
        if held.bytes.is_empty() {
            held.bytes.reserve(AHEAD);
            let room = held.bytes.capacity();
            match poll_read_buf(Pin::new(stream), cx, &mut held.bytes) {
                Poll::Ready(Ok(read)) => held.more = read == room,
                // Whoever waits holds no buffer: senders that stall are many.
                other => {
                    *ahead = None;
                    return other.map_ok(drop);
                }
            }
        }
        let taken = held.bytes.len().min(buffer.remaining());
        buffer.put_slice(&held.bytes[..taken]);
        held.bytes.advance(taken);
        if held.bytes.is_empty() && !held.more {
            *ahead = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ReadAhead<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.get_mut().stream);
        match parts {
            // TLS gives one record most often, and `writev` takes the kernel longer than `send`.
            [part] => stream.poll_write(cx, part),
            parts => stream.poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Bytes that have all come, and the number of reads that took them.
    struct Come {
        bytes: Vec<u8>,
        reads: usize,
    }

    impl AsyncRead for Come {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.reads += 1;
            let taken = self.bytes.len().min(buffer.remaining());
            buffer.put_slice(&self.bytes[..taken]);
            self.bytes.drain(..taken);
            Poll::Ready(Ok(()))
        }
    }

    /// All that came, read as TLS does.
    async fn read_off(stream: &mut ReadAhead<Come>) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 4_096]);
        loop {
            match stream.read(&mut buffer).await.expect("nothing fails") {
                0 => return all,
                read => all.extend_from_slice(&buffer[..read]),
            }
        }
    }

    #[tokio::test]
    async fn what_is_large_takes_few_reads_and_stays_whole() {
        for length in [0, 1, 4_095, 4_096, 4_097, 36_864, 36_865, 200_000] {
            let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
            let mut stream = ReadAhead::new(Come { bytes: bytes.clone(), reads: 0 });
            assert!(read_off(&mut stream).await == bytes, "{length}");
            assert!(stream.stream.reads <= 4 + length / AHEAD, "{} reads of {length}", stream.stream.reads);
            assert!(stream.ahead.is_none(), "a buffer is held after {length}");
        }
    }

    #[tokio::test]
    async fn a_reader_with_room_reads_by_itself() {
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(4_096 + 2 * AHEAD + 1).collect();
        let mut stream = ReadAhead::new(Come { bytes: bytes.clone(), reads: 0 });
        assert_eq!(stream.read(&mut [0; 4_096]).await.expect("nothing fails"), 4_096);
        let mut large = vec![0; 2 * AHEAD];
        assert_eq!(stream.read(&mut large).await.expect("nothing fails"), 2 * AHEAD);
        assert!(large == bytes[4_096..4_096 + 2 * AHEAD] && stream.stream.reads == 2);
        assert_eq!(stream.read(&mut large).await.expect("nothing fails"), 1);
        assert!(stream.ahead.is_none() && stream.stream.reads == 3);
    }

    #[tokio::test]
    async fn what_is_small_needs_no_buffer() {
        let mut stream = ReadAhead::new(Come { bytes: vec![7; 300], reads: 0 });
        assert_eq!(stream.read(&mut [0; 4_096]).await.expect("nothing fails"), 300);
        assert!(stream.ahead.is_none() && stream.stream.reads == 1);
    }

    #[tokio::test]
    async fn whoever_waits_for_more_holds_no_buffer() {
        let (mut sender, receiver) = tokio::io::duplex(64 << 10);
        let mut stream = ReadAhead::new(receiver);
        tokio::io::AsyncWriteExt::write_all(&mut sender, &[7; 4_096]).await.expect("room");
        assert_eq!(stream.read(&mut [0; 4_096]).await.expect("nothing fails"), 4_096);
        assert!(stream.ahead.is_some());
        let mut buffer = [0; 4_096];
        let mut waiting = Box::pin(stream.read(&mut buffer));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(waiting);
        assert!(stream.ahead.is_none());
    }
}
