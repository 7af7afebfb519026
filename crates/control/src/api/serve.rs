//! The listener: one port, HTTP/1.1 and HTTP/2.
//!
//! ```text
//! accept (bounded) ─▶ connection: hyper (h1 | h2) ─▶ named ─▶ guard ─▶ admit ─▶ front ─▶ rest
//! shutdown: no new connection, watches end, requests in flight have a moment, then the rest is cut
//! ```

use std::{io, sync::Arc, time::Duration};

use axum::{Router, extract::Request, middleware};
use berth_peer::port::{Bounds, Patience, Port, PortTls, prepare};
use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{ApiRouter, admit, connection, guard, named};

/// Bounds of the port. Room for dashboards and a thousand watches; one address leaves half of it to others.
const BOUNDS: Bounds = Bounds { connections: 1_024, per_address: 512 };

/// Limits of silence: for the first request on a slow link, and for clients that keep a connection for later.
const PATIENCE: Patience = Patience { first: Duration::from_secs(15), idle: Duration::from_secs(300) };

/// Time for requests in flight at shutdown. Enough for a large apply.
const DRAIN: Duration = Duration::from_secs(5);

/// Time a client may leave sent data unread (Linux). Allows for a watch that is piped into a pager.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves the control API on `listener`, with TLS if there is some (nobody follows its files here), until `shutdown`, then lets requests in flight finish.
///
/// # Errors
/// [`io::Error`] when the listener has no address any more; a failed connection is not an error.
pub async fn serve(
    listener: TcpListener,
    tls: Option<PortTls>,
    api: ApiRouter,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let guarded = berth_wire::guard::Guard::of(address);
    let answering = api.clone();
    let answer = move |request: Request| {
        let router = answering.clone();
        async move { router.answer(request).await }
    };
    let (access, audit) = (api.access(), api.audit());
    // Around everything, so that nothing is done for a page of another site, here or elsewhere.
    let router = Router::new()
        .fallback(answer)
        .layer(middleware::from_fn(move |request, next| {
            admit::check(Arc::clone(&access), audit.clone(), request, next)
        }))
        .layer(middleware::from_fn(move |request, next| guard::check(guarded, request, next)))
        .layer(middleware::from_fn(named::name));
    tracing::info!(event = "control_api_started", %address);
    let (port, finish) = (Port::new("api", listener, BOUNDS).with_tls(tls), CancellationToken::new());
    let mut connections = JoinSet::new();
    // Ends with this function.
    let mut recording = JoinSet::new();
    recording.spawn(api.clone().record());
    recording.spawn(api.clone().follow_terms());
    recording.spawn(api.clone().follow_tokens());
    recording.spawn(api.clone().follow_revocations());
    loop {
        let (stream, from, place) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = port.accept() => accepted,
        };
        // Reaps those that have ended, so that the set holds only the living.
        while connections.try_join_next().is_some() {}
        prepare(&stream, UNREAD_TIMEOUT);
        let (router, greeter, finish) = (router.clone(), port.greeter(), finish.clone());
        connections.spawn(async move {
            // At shutdown, who has not asked yet is not waited for.
            let Some(Some(greeted)) = finish.run_until_cancelled(greeter.greet(stream, PATIENCE)).await else { return };
            if let Err(error) = connection::serve(greeted, from.ip(), router, finish).await {
                tracing::debug!(event = "api_connection_broke", %error, "a control connection ended badly");
            }
            drop(place);
        });
    }
    drop(port);
    api.stop();
    finish.cancel();
    if timeout(DRAIN, async { while connections.join_next().await.is_some() {} }).await.is_err() {
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
