//! The body of an answer that another node gave.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use tonic::Status;

/// The body of an answer that came from elsewhere.
pub(crate) struct Relayed {
    pub(crate) pieces: std::vec::IntoIter<Bytes>,
    pub(crate) rest: Option<Incoming>,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) _guard: Option<Box<dyn Send>>,
}

impl Relayed {
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(piece) = self.pieces.next() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if let Some(rest) = &mut self.rest {
            let cut = |error: hyper::Error| Status::unavailable(format!("the answer was cut off: {error}"));
            return Pin::new(rest).poll_frame(cx).map_err(cut);
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.pieces.len() == 0 && self.trailers.is_none() && self.rest.as_ref().is_none_or(Incoming::is_end_stream)
    }
}
