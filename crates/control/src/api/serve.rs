//! The listener: one port, HTTP/1.1 and HTTP/2.
//!
//! ```text
//! accept (bounded) ─▶ hyper (h1 | h2) ─▶ guard ─▶ front ─▶ rest
//! shutdown: no new connection, watches end, requests in flight have a moment, then the rest is cut
//! ```

use std::{io, sync::Arc, time::Duration};

use axum::{Router, extract::Request, middleware};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{ApiRouter, guard};

/// Most connections at a time; more wait in the kernel's queue. Room for dashboards and a thousand watches.
const CONNECTIONS: usize = 1_024;

/// Most streams in one HTTP/2 connection.
const STREAMS: u32 = 128;

/// Limit for receiving a request's head. Allows for slow links.
const HEAD_WITHIN: Duration = Duration::from_secs(15);

/// Largest head in bytes, for both protocols. Holds long tokens.
const HEAD_BYTES: usize = 32 << 10;

/// Interval between pings on an idle HTTP/2 connection, to detect dead watches.
const PING_EVERY: Duration = Duration::from_secs(20);

/// Time for requests in flight at shutdown. Enough for a large apply.
const DRAIN: Duration = Duration::from_secs(5);

/// Time a client may leave sent data unread (Linux). Allows for a watch that is piped into a pager.
const UNREAD: Duration = Duration::from_secs(60);

/// A pause after a failed accept: without it, a process out of file descriptors spins.
const BREATH: Duration = Duration::from_millis(50);

/// Serves the control API on `listener` until `shutdown`, then lets requests in flight finish.
///
/// # Errors
/// [`io::Error`] when the listener has no address any more; a failed connection is not an error.
pub async fn serve(listener: TcpListener, api: ApiRouter, shutdown: CancellationToken) -> io::Result<()> {
    let address = listener.local_addr()?;
    let guarded = berth_wire::guard::Guard::of(address);
    let answering = api.clone();
    let answer = move |request: Request| {
        let router = answering.clone();
        async move { router.answer(request).await }
    };
    // Around everything, so that nothing is done for a page of another site, here or elsewhere.
    let router = Router::new()
        .fallback(answer)
        .layer(middleware::from_fn(move |request, next| guard::check(guarded, request, next)));
    tracing::info!(event = "control_api_started", %address);
    let (server, graceful) = (server(), GracefulShutdown::new());
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    // Ends with this function.
    let mut recording = JoinSet::new();
    recording.spawn(api.clone().record());
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        // Reaps those that have ended, so that the set holds only the living.
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) => {
                let connection = graceful.watch(connect(&server, stream, &router));
                connections.spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(event = "api_connection_broke", %error, "a control connection ended badly");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(event = "api_accept_failed", %error, "accepting a control connection failed");
                sleep(BREATH).await;
            }
        }
    }
    drop(listener);
    api.stop();
    if timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::warn!(
            event = "api_connections_cut",
            open = connections.len(),
            "control connections were cut at shutdown"
        );
    }
    connections.shutdown().await;
    tracing::info!(event = "control_api_stopped", %address);
    Ok(())
}

fn server() -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(HEAD_BYTES);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_BYTES as u32)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY);
    server
}

fn connect(
    server: &auto::Builder<TokioExecutor>,
    stream: TcpStream,
    router: &Router,
) -> auto::Connection<'static, TokioIo<TcpStream>, TowerToHyperService<Router>, TokioExecutor> {
    // Answers are small and waited for; a socket that refuses the option still works.
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD));
    server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone())).into_owned()
}
