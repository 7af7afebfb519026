//! The body of an answer that goes on for as long as its reader wants: ends when the reader's token is revoked or expires.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use berth_wire::access::{Access, Asker};
use futures::future::BoxFuture;
use http_body::{Body as _, Frame, SizeHint};

/// Interval at which the token is looked at: a node learns of revocations within a second or two.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// A body, and the end of the right to it.
struct RevocableBody {
    inner: Body,
    lost: BoxFuture<'static, ()>,
}

/// The same answer; one without a known end ends with the right of its reader. Watches that end are begun again by their readers,
/// who then learn why.
pub(super) fn watched(response: Response, access: Arc<Access>, asker: Asker) -> Response {
    if response.body().size_hint().upper().is_some() {
        return response;
    }
    response.map(|inner| Body::new(RevocableBody { inner, lost: Box::pin(lost(access, asker)) }))
}

async fn lost(access: Arc<Access>, asker: Asker) {
    while access.still_knows(&asker) {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

impl http_body::Body for RevocableBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.lost.as_mut().poll(cx).is_ready() {
            // It would be polled again.
            self.lost = Box::pin(std::future::ready(()));
            return Poll::Ready(None);
        }
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
