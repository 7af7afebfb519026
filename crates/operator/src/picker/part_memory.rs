//! The memory that parts of requests take at a picker, and the time in which a part has to be whole.
//!
//! ```text
//! data of a stream ──▶ PartBody: no room ──▶ UNAVAILABLE     a part has begun and does not end ──▶ DEADLINE_EXCEEDED
//!                         │ room
//!                         ▼
//!           counted until the Gateway has taken the answer, and the next part is asked for (answered)
//! ```
//! A part may come byte by byte: what counts is what has come, not what was announced.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use berth_wire::byte_budget::{ByteBudget, ByteCharge};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::{
    Status,
    codegen::{Bytes, StdError},
};

use super::Pool;

/// Bytes for the parts of all requests: a quarter of the pod's 256 MiB, since a part may be there as it came, as it was read, and as its
/// answer.
pub(super) const MEMORY: usize = 64 << 20;

/// Time in which a part has to be whole, from its begin: a Gateway sends it at once.
const PART_WITHIN: Duration = Duration::from_secs(10);

/// Bytes before each message of gRPC: a flag, and the length.
const PREFIX: usize = 5;

/// The begin of a message that is not whole yet.
#[derive(Debug, Default)]
struct UnfinishedMessage {
    prefix: [u8; PREFIX],
    /// Bytes of it that have come, prefix included.
    come: usize,
    /// Bytes that are to come after the prefix.
    left: usize,
}

impl UnfinishedMessage {
    /// Goes through data. True if a message ended in it.
    fn pass(&mut self, mut data: &[u8]) -> bool {
        let mut ended = false;
        while !data.is_empty() {
            let wanted = if self.come < PREFIX { PREFIX - self.come } else { self.left };
            let (part, rest) = data.split_at(wanted.min(data.len()));
            data = rest;
            if self.come < PREFIX {
                self.prefix[self.come..self.come + part.len()].copy_from_slice(part);
                let [_, length @ ..] = self.prefix;
                self.left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            } else {
                self.left -= part.len();
            }
            self.come += part.len();
            if self.come >= PREFIX && self.left == 0 {
                (self.come, ended) = (0, true);
            }
        }
        ended
    }
}

#[derive(Debug)]
struct StreamState {
    charge: ByteCharge,
    unfinished: UnfinishedMessage,
}

/// The bytes that one stream holds. Clones are of the same one.
#[derive(Debug, Clone)]
pub(super) struct StreamMemory(Arc<Mutex<StreamState>>);

impl StreamMemory {
    /// Nothing held yet.
    pub(super) fn new(budget: &Arc<ByteBudget>) -> Self {
        let state = StreamState { charge: budget.charge(), unfinished: UnfinishedMessage::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Lets go of the parts that were whole: their answers have been taken.
    pub(super) fn answered(&self) {
        let mut state = self.state();
        let come = state.unfinished.come;
        state.charge.shrink_to(come);
    }

    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The data of a stream, which count as they come.
pub(super) struct PartBody<B> {
    inner: B,
    memory: StreamMemory,
    pool: Pool,
    /// Runs while more of a part is awaited.
    late: Option<Pin<Box<Sleep>>>,
}

impl<B> PartBody<B> {
    pub(super) fn new(inner: B, memory: StreamMemory, pool: Pool) -> Self {
        Self { inner, memory, pool, late: None }
    }
}

impl<B> Body for PartBody<B>
where
    B: Body<Data = Bytes, Error: Into<StdError>> + Unpin,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) else {
            if this.memory.state().unfinished.come == 0 {
                return Poll::Pending;
            }
            ready!(this.late.get_or_insert_with(|| Box::pin(sleep(PART_WITHIN))).as_mut().poll(cx));
            let seconds = PART_WITHIN.as_secs();
            let message = format!("a part of a request was not whole within {seconds} s: send all of it");
            return Poll::Ready(Some(Err(Status::deadline_exceeded(message).into())));
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        };
        if let Some(data) = frame.data_ref() {
            let mut state = this.memory.state();
            if !state.charge.grow(data.len()) {
                this.pool.0.metrics.no_memory();
                let message = "the parts of other requests take all memory: try again later";
                return Poll::Ready(Some(Err(Status::unavailable(message).into())));
            }
            if state.unfinished.pass(data) {
                this.late = None;
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_unfinished_until_its_last_byte_however_it_is_cut() {
        let stream = [&[0, 0, 0, 0, 3, 7, 8, 9][..], &[0, 0, 0, 0, 0], &[1, 0, 0, 1, 0], &[7; 20]].concat();
        for size in 1..=stream.len() {
            let (mut unfinished, mut ended) = (UnfinishedMessage::default(), Vec::new());
            for (number, data) in stream.chunks(size).enumerate() {
                if unfinished.pass(data) {
                    ended.push(number);
                }
            }
            let mut expected = vec![7 / size, 12 / size];
            expected.dedup();
            assert_eq!((unfinished.come, unfinished.left, ended), (25, 236, expected), "{size}");
        }
    }

    #[test]
    fn what_was_answered_does_not_count() {
        let budget = ByteBudget::new(20);
        let memory = StreamMemory::new(&budget);
        let come = |data: &[u8]| {
            let mut state = memory.state();
            assert!(state.charge.grow(data.len()));
            state.unfinished.pass(data);
        };
        come(&[0, 0, 0, 0, 3, 7]);
        memory.answered();
        assert_eq!(budget.used(), 6, "it is not whole");
        come(&[8, 9, 0, 0]);
        assert_eq!(budget.used(), 10);
        memory.answered();
        assert_eq!(budget.used(), 2, "the next one has begun");
        drop(memory);
        assert_eq!(budget.used(), 0);
    }
}
