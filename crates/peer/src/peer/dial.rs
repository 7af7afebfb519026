//! Makes a line: TCP, TLS with both names checked, and the peer's first word.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use berth_spec::Member;
use bytes::{Buf as _, BytesMut};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, BufReader, ReadBuf},
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::TlsConnector;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{line::PeerLine, window};
use crate::{Identity, LinePolicy, tls};

/// Reason why there is no connection. All callers that waited for it get the same error.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct DialError(Arc<str>);

impl DialError {
    pub(super) fn new(reason: impl Into<Arc<str>>) -> Self {
        Self(reason.into())
    }
}

/// Makes lines for all peers.
pub(crate) struct Dialer {
    pub(crate) identity: Identity,
    pub(crate) policy: LinePolicy,
    pub(crate) tasks: TaskTracker,
    /// Stops new connections.
    pub(crate) ends: CancellationToken,
}

impl Dialer {
    /// Dials a member within [`LinePolicy::dial`]. The line ends when `cut` is cancelled.
    pub(super) async fn dial(&self, member: &Member, cut: CancellationToken) -> Result<PeerLine, DialError> {
        let (name, address) = (&member.name, member.peer);
        let within = self.policy.dial;
        match timeout(within, self.connect(member, cut)).await {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(reason)) => Err(DialError::new(format!("cannot reach {name} at {address}: {reason}"))),
            Err(_) => Err(DialError::new(format!("{name} at {address} did not take a connection within {within:?}"))),
        }
    }

    async fn connect(&self, member: &Member, cut: CancellationToken) -> Result<PeerLine, String> {
        let shown = |error: io::Error| error.to_string();
        let name = tls::server_name(&member.name)?;
        let begun = Instant::now();
        let stream = TcpStream::connect(member.peer).await.map_err(shown)?;
        let connected_in = begun.elapsed();
        self.tune(&stream).map_err(shown)?;
        let shown_certificate = self.identity.certificate();
        let connector = TlsConnector::from(tls::client_config(&self.identity));
        let stream = BufReader::with_capacity(window::READ, stream);
        let mut stream = connector.connect(name, stream).await.map_err(|error| tls::explain(&error))?;
        let other = tls::caller(stream.get_ref().1.peer_certificates())?;
        if !other.roles.contain(member.roles) {
            return Err(format!("it claims the roles {}, and its certificate is for {}", member.roles, other.roles));
        }
        // In TLS 1.3 the dialler is done before the other end has looked at its certificate. The server's settings
        // come when it has: before that nothing is sent, so that a refusal here is certain to be one.
        let mut first = BytesMut::with_capacity(1 << 10);
        match stream.read_buf(&mut first).await {
            Ok(0) => return Err("it closed the connection: its log says why".to_owned()),
            Ok(_) => {}
            Err(error) => {
                if tls::is_revoked(&error) && other.roles.controller {
                    self.identity.told_revoked(&shown_certificate, &other.name);
                }
                return Err(format!("it refused this node's certificate, or broke off ({error})"));
            }
        }
        // A child: the line alone ends when the peer's certificate is revoked.
        let cut = cut.child_token();
        let open = self.identity.opened(&other, &cut);
        PeerLine::open(Rewound { first, stream }, connected_in, self, cut, open).await.map_err(shown)
    }

    fn tune(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        // Data that nobody acknowledges ends the connection as unanswered pings do. A socket that refuses still works.
        #[cfg(target_os = "linux")]
        let _ = SockRef::from(stream).set_tcp_user_timeout(Some(self.unanswered()));
        Ok(())
    }

    /// Longest silence of a connection.
    fn unanswered(&self) -> Duration {
        self.policy.ping_every + self.policy.ping_timeout
    }
}

/// A stream whose first bytes were read already.
struct Rewound<S> {
    first: BytesMut,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let some = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first[..some]);
        self.first.advance(some);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
