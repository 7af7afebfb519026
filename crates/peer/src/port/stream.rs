//! A connection with TLS or without: one that a client opened, or one to a server.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{client, server};

use super::read_ahead::ReadAhead;

/// The stream of a client's connection, once it may speak HTTP.
pub type ClientStream = MaybeTls<server::TlsStream<ReadAhead<TcpStream>>>;

/// A connection to a server, with or without TLS.
pub type ServerStream = MaybeTls<client::TlsStream<ReadAhead<TcpStream>>>;

/// Sets the options of a socket: what is written goes out at once, and whoever leaves it unread for so long is cut off (Linux). hyper
/// waits for them without an end; the kernel's clock starts when their window is full or they are silent. A socket that refuses
/// still works.
pub fn prepare(stream: &TcpStream, unread: Duration) {
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(unread));
    #[cfg(not(target_os = "linux"))]
    let _ = unread;
}

/// A stream with TLS or without.
#[derive(Debug)]
pub enum MaybeTls<T> {
    /// Without TLS.
    Plain(TcpStream),
    /// After a TLS handshake.
    Tls(Box<T>),
}

impl<T: AsyncRead + Unpin> AsyncRead for MaybeTls<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for MaybeTls<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
