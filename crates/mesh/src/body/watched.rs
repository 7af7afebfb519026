//! The body of a stream whose caller had to prove who it is: ends when the token is revoked or expires.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use berth_wire::access::{Access, Asker};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::HeaderMap;
use http_body::{Body as _, Frame};
use tonic::Status;

use crate::body::reply::ReplyBody;

/// Interval at which the token is looked at: a node learns of revocations within a second or two.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// A stream that is cut when its caller's token is revoked or expires.
pub(crate) struct WatchedBody {
    inner: ReplyBody,
    lost: BoxFuture<'static, ()>,
    /// The end is told by a status in trailers.
    grpc: bool,
}

/// The same body; a stream ends with the right of its caller.
pub(crate) fn watched(body: ReplyBody, access: &Arc<Access>, asker: Asker, grpc: bool) -> ReplyBody {
    if !body.is_open() {
        return body;
    }
    let lost = Box::pin(lost(Arc::clone(access), asker));
    ReplyBody::Watched(Box::new(WatchedBody { inner: body, lost, grpc }))
}

async fn lost(access: Arc<Access>, asker: Asker) {
    while access.still_knows(&asker) {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

impl WatchedBody {
    /// The next frame; `None` at the end.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if matches!(self.inner, ReplyBody::Empty) || self.lost.as_mut().poll(cx).is_pending() {
            return Pin::new(&mut self.inner).poll_frame(cx);
        }
        self.inner = ReplyBody::Empty;
        let status = Status::unauthenticated("the token was revoked or has expired");
        if !self.grpc {
            // A body cannot be taken back: it breaks off, so that nobody takes it for whole.
            return Poll::Ready(Some(Err(status)));
        }
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers)?;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    /// True if nothing more comes.
    pub(crate) fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use berth_wire::access::{Grant, Role, Secret, Snapshot, TokenRecord};
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_its_token_is_revoked() {
        let (access, secret) = (Arc::new(Access::required()), Secret::generate());
        let record = TokenRecord {
            id: secret.id().to_owned(),
            hash: secret.hash(),
            grant: Grant::everywhere(Role::Caller),
            limits: None,
            description: String::new(),
            created_by: String::new(),
            created: 1,
            expires: None,
        };
        access.learn(&Snapshot { revision: 1, tokens: vec![record] });
        let mut headers = HeaderMap::new();
        headers.insert("authorization", format!("Bearer {}", secret.reveal()).parse().expect("a value"));
        let asker = access.asker(&headers, None).expect("it is known");
        let open = || ReplyBody::Stream(Box::pin(futures::stream::pending()));
        let mut grpc = watched(open(), &access, asker.clone(), true);
        let mut rest = watched(open(), &access, asker, false);
        let minute = Duration::from_secs(60);
        assert!(tokio::time::timeout(minute, grpc.frame()).await.is_err(), "it is open as long as the token");
        access.learn(&Snapshot { revision: 2, tokens: Vec::new() });
        let ended = tokio::time::timeout(CHECK_INTERVAL, grpc.frame())
            .await
            .expect("it ends")
            .expect("a frame")
            .expect("no error");
        assert_eq!(ended.into_trailers().expect("trailers")["grpc-status"], "16");
        assert!(grpc.frame().await.is_none());
        let ended = tokio::time::timeout(CHECK_INTERVAL, rest.frame()).await.expect("it ends").expect("a frame");
        assert!(ended.is_err() && rest.frame().await.is_none());
    }
}
