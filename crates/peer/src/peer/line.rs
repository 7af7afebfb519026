//! A line to a peer: HTTP/2 as nodes speak it, in a task of the dialler's.

use std::{io, time::Duration};

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{Dialer, window};
use crate::{
    PeerBody,
    http2::{self, Unsent},
    pki::OpenConnection,
};

/// A connection to a peer, shared by many requests.
pub(super) struct PeerLine {
    inner: http2::Line<PeerBody>,
    /// Time that connecting took: one round trip.
    pub(super) connected_in: Duration,
}

impl PeerLine {
    /// Speaks HTTP/2 on a connection that the peer has taken. Ends when `cut` is cancelled.
    pub(super) async fn open<S>(
        stream: S,
        connected_in: Duration,
        dialer: &Dialer,
        cut: CancellationToken,
        open: OpenConnection,
    ) -> io::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let opened = http2::Line::open(stream, |settings| {
            settings
                .initial_stream_window_size(window::STREAM)
                .initial_connection_window_size(window::CONNECTION)
                .max_frame_size(window::FRAME)
                .max_header_list_size(window::HEADERS)
                .max_send_buf_size(window::SEND_BUFFER)
                .max_concurrent_reset_streams(window::CANCELLED)
                .max_local_error_reset_streams(None)
                .keep_alive_interval(dialer.policy.ping_every)
                .keep_alive_timeout(dialer.policy.ping_timeout)
                .keep_alive_while_idle(true);
        });
        let (inner, runs) = opened.await.map_err(io::Error::other)?;
        let task = async move {
            let _open = open;
            if let Some(Err(error)) = cut.run_until_cancelled(runs).await {
                tracing::debug!(event = "peer_line_ended", %error, "a line ended");
            }
        };
        dialer.tasks.spawn(task);
        Ok(Self { inner, connected_in })
    }

    /// True if it takes requests.
    pub(super) fn is_open(&self) -> bool {
        self.inner.is_open()
    }

    pub(super) async fn send(&self, request: Request<PeerBody>) -> Result<Response<Incoming>, Unsent<PeerBody>> {
        self.inner.send(request).await
    }
}
