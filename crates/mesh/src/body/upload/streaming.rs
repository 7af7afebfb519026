//! A body that passes through while it comes, and what is kept of it.
//!
//! ```text
//!  reading 1 ── turn ──▶ reading 2: the kept pieces again, then what comes
//!      └─ ends with an error, whoever still polls it
//! ```

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use berth_peer::{BoxError, port::KeptPieces};
use berth_spec::{ByteSize, InferError};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use crate::{
    body::{broken::broken, upload::Bounds},
    payload::RequestTap,
};

pub(super) fn lock(shared: &Mutex<Streaming>) -> MutexGuard<'_, Streaming> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A body that is passed on as it arrives; pieces are kept so that it can be sent again.
pub(super) struct Streaming {
    source: Incoming,
    kept: KeptPieces,
    /// Bytes that came so far.
    pub(super) total: Arc<AtomicUsize>,
    bounds: Bounds,
    /// More came than may be kept.
    let_go: bool,
    /// Something of it has been handed on.
    begun: bool,
    ended: bool,
    pub(super) fault: Option<InferError>,
    /// Number of the [`StreamingReader`] that reads; earlier ones end.
    turn: u32,
    timer: Option<Pin<Box<Sleep>>>,
    /// Payload processors that see it.
    tap: Option<RequestTap>,
}

impl Streaming {
    pub(super) fn new(source: Incoming, bounds: Bounds) -> Self {
        Self {
            source,
            kept: KeptPieces::default(),
            total: Arc::default(),
            bounds,
            let_go: false,
            begun: false,
            ended: false,
            fault: None,
            turn: 0,
            timer: None,
            tap: None,
        }
    }

    /// Has payload processors see it, what has come already included.
    pub(super) fn tap(&mut self, mut tap: RequestTap) {
        self.kept.pieces().iter().for_each(|piece| tap.piece(piece));
        self.tap = Some(tap);
    }

    pub(super) fn is_repeatable(&self) -> bool {
        !(self.let_go && self.begun)
    }

    /// Keeps the piece that was read to see whether it is all: whatever its size, it must be there for the first reader.
    pub(super) fn begin_with(&mut self, first: Bytes) {
        self.total.store(first.len(), Relaxed);
        if let Some(room) = &self.bounds.room {
            room.used.fetch_add(first.len(), Relaxed);
        }
        self.kept.add(&first);
    }

    /// Notes a piece that came.
    fn took(&mut self, piece: &Bytes) -> Result<(), InferError> {
        let total = self.total.fetch_add(piece.len(), Relaxed) + piece.len();
        if total > self.bounds.body {
            return Err(InferError::TooLarge(format!(
                "the request's body is larger than {}",
                ByteSize(self.bounds.body as u64)
            )));
        }
        if let Some(tap) = &mut self.tap {
            tap.piece(piece);
        }
        let fits = self.kept.length() + piece.len() <= self.bounds.replay;
        let room = self.bounds.room.as_ref();
        if !self.let_go && fits && room.is_some_and(|room| room.take(piece.len())) {
            self.kept.add(piece);
        } else if !self.let_go {
            self.let_go = true;
            self.forget();
        }
        Ok(())
    }

    fn forget(&mut self) {
        if let Some(room) = &self.bounds.room {
            room.used.fetch_sub(self.kept.length(), Relaxed);
        }
        self.kept = KeptPieces::default();
    }

    /// The next piece from the client.
    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, InferError>>> {
        loop {
            match Pin::new(&mut self.source).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.timer = None;
                    // Trailers of requests mean nothing here.
                    let Ok(piece) = frame.into_data() else { continue };
                    if !piece.is_empty() {
                        return Poll::Ready(Some(self.took(&piece).map(|()| piece)));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(broken(&error)))),
                Poll::Ready(None) => {
                    self.ended = true;
                    if let Some(tap) = &mut self.tap {
                        tap.end();
                    }
                    return Poll::Ready(None);
                }
                Poll::Pending => {
                    let Some(pause) = self.bounds.pause else { return Poll::Pending };
                    let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(pause)));
                    let paused = || InferError::TimedOut("the request's body paused for too long".to_owned());
                    return timer.as_mut().poll(cx).map(|()| Some(Err(paused())));
                }
            }
        }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.forget();
    }
}

/// One attempt's reading of a body that is sent while it comes; a later attempt begins another.
pub(super) struct StreamingReader {
    shared: Arc<Mutex<Streaming>>,
    turn: u32,
    /// Bytes of what is kept that this reading has had.
    at: usize,
}

impl StreamingReader {
    /// A reading from the start, if all of it is still there; earlier readings end.
    pub(super) fn new(shared: &Arc<Mutex<Streaming>>) -> Option<Self> {
        let mut streaming = lock(shared);
        if !streaming.is_repeatable() {
            return None;
        }
        streaming.turn += 1;
        streaming.begun = true;
        let turn = streaming.turn;
        drop(streaming);
        Some(Self { shared: Arc::clone(shared), turn, at: 0 })
    }
}

impl Body for StreamingReader {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let mut streaming = lock(&this.shared);
        if streaming.turn != this.turn {
            return Poll::Ready(Some(Err("the request is sent elsewhere".into())));
        }
        if let Some(fault) = &streaming.fault {
            return Poll::Ready(Some(Err(fault.clone().into())));
        }
        if let Some(piece) = streaming.kept.after(this.at) {
            this.at += piece.len();
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if streaming.ended {
            return Poll::Ready(None);
        }
        match std::task::ready!(streaming.poll_source(cx)) {
            None => Poll::Ready(None),
            Some(Ok(piece)) => {
                this.at = streaming.kept.length();
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Some(Err(fault)) => {
                streaming.fault = Some(fault.clone());
                Poll::Ready(Some(Err(fault.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let streaming = lock(&self.shared);
        streaming.turn == self.turn && streaming.ended && self.at >= streaming.kept.length()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
