//! The body of an answer that somebody watches: payload processors, or the counts of calls.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;

use crate::{body::reply::ReplyBody, watch::Watch};

/// A body that tells a [`Watch`] of each frame and of its end.
pub(crate) struct TappedBody {
    pub(super) inner: ReplyBody,
    watch: Box<dyn Watch>,
}

/// The same answer; `watch` sees it.
pub(crate) fn tapped(response: Response<ReplyBody>, mut watch: Box<dyn Watch>) -> Response<ReplyBody> {
    let (head, inner) = response.into_parts();
    watch.head(&head);
    Response::from_parts(head, ReplyBody::Tapped(Box::new(TappedBody { inner, watch })))
}

impl TappedBody {
    /// The next frame; `None` at the end.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(piece) = frame.data_ref() {
                    self.watch.piece(piece);
                } else if let Some(trailers) = frame.trailers_ref() {
                    self.watch.trailers(trailers);
                }
            }
            Some(Err(status)) => self.watch.failed(status.code()),
            None => self.watch.end(),
        }
        Poll::Ready(frame)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for TappedBody {
    fn drop(&mut self) {
        // Nobody asks a body for more that says to be at its end.
        if self.inner.is_end_stream() {
            self.watch.end();
        }
    }
}
