//! One connection of a client, HTTP/1.1 or HTTP/2.
//!
//! ```text
//! serving ── shutdown, idle, or the end of an answer is left unread ──▶ finishing: takes no new requests, ends after those in flight
//!    └── no request ever came ──▶ ended ◀── an end is left unread for as long again ──┘
//! ```

use std::{convert::Infallible, net::IpAddr, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use berth_peer::{
    BoxError,
    port::{Activity, Counting, Greeted, Inactivity, Paced, answer_whole},
};
use berth_wire::{access::Arrival, api::AuditPort};
use futures::FutureExt;
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Most streams in one HTTP/2 connection: more than a client of the API has open, and a bound on the memory of one.
const STREAMS: u32 = 128;

/// Limit for receiving a request's head. Allows for slow links.
const HEAD_WITHIN: Duration = Duration::from_secs(15);

/// Largest head in bytes, for both protocols. Holds long tokens.
const HEAD_BYTES: usize = 32 << 10;

/// Interval between pings on an idle HTTP/2 connection, to detect dead watches.
const PING_EVERY: Duration = Duration::from_secs(20);

/// Serves a connection to its end.
pub(super) async fn serve(
    greeted: Greeted,
    address: IpAddr,
    router: Router,
    finish: CancellationToken,
) -> Result<(), BoxError> {
    let Greeted { stream, certificate, patience } = greeted;
    let activity = Activity::default();
    let counted = activity.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        counted.request();
        request.extensions_mut().insert(Arrival { port: AuditPort::Api, address: Some(address) });
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(Arc::clone(certificate));
        }
        let (router, version) = (router.clone(), request.version());
        answer_whole(
            request,
            |request| async move { router.oneshot(request).await.unwrap_or_else(|never| match never {}) },
        )
        .map(move |answer| Ok::<_, Infallible>(answer.map(|body| Paced::new(body, version))))
    });
    let server = server(activity.clone());
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = finish.cancelled() => connection.as_mut().graceful_shutdown(),
        silence = activity.clone().silence(patience) => match silence {
            Inactivity::NoRequest => return Ok(()),
            Inactivity::Idle | Inactivity::Unread => connection.as_mut().graceful_shutdown(),
        },
    }
    tokio::select! {
        ended = connection => ended,
        () = activity.unread_still() => Ok(()),
    }
}

fn server(activity: Activity) -> auto::Builder<Counting> {
    let mut server = auto::Builder::new(Counting(activity));
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
