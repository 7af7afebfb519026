//! The body of an answer that a payload processor sees.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;

use crate::{body::reply::ReplyBody, payload::ResponseTap};

/// A body, and who sees it.
pub(crate) struct Tapped {
    pub(super) inner: ReplyBody,
    tap: ResponseTap,
}

/// The same answer; `tap` sees it.
pub(crate) fn tapped(response: Response<ReplyBody>, mut tap: ResponseTap) -> Response<ReplyBody> {
    let (head, inner) = response.into_parts();
    tap.head(&head);
    Response::from_parts(head, ReplyBody::Tapped(Box::new(Tapped { inner, tap })))
}

impl Tapped {
    /// The next frame; `None` at the end.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(piece) = frame.data_ref() {
                    self.tap.piece(piece);
                } else if let Some(trailers) = frame.trailers_ref() {
                    self.tap.status(trailers);
                }
            }
            Some(Err(status)) => self.tap.failed(status.code()),
            None => self.tap.end(),
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

impl Drop for Tapped {
    fn drop(&mut self) {
        // Nobody asks a body for more that says to be at its end.
        if self.inner.is_end_stream() {
            self.tap.end();
        }
    }
}
