//! Reading request bodies: bounded in bytes, in the time between two pieces, and by the request's deadline.

use std::sync::Arc;

use berth_spec::InferError;
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Duration, Instant, timeout_at};

use crate::body::{
    broken::broken,
    memory::{Charge, MIN_COUNTED_BYTES, RequestMemory},
};

/// The most that is set aside before anything has come: enough for most tensors, and little for a client that sends
/// nothing.
const FIRST_PIECE: usize = 1 << 20;

/// The bounds in time of a body that is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The longest time between two pieces.
    pub(crate) pause: Duration,
    /// The end of the request's time.
    pub(crate) deadline: Instant,
}

/// The whole body. One that came in one piece, as small ones do, is not copied.
///
/// `limit` is in bytes. The bytes count against `memory`.
pub(crate) async fn read(
    body: &mut Incoming,
    limit: usize,
    pace: Pace,
    memory: &Arc<RequestMemory>,
) -> Result<Bytes, InferError> {
    if usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX) > limit {
        return Err(too_large(limit));
    }
    let Some(first) = piece(body, pace).await? else { return Ok(Bytes::new()) };
    rest(first, body, limit, pace, memory).await
}

/// The whole body, of which `first` has come.
pub(crate) async fn rest(
    first: Bytes,
    body: &mut Incoming,
    limit: usize,
    pace: Pace,
    memory: &Arc<RequestMemory>,
) -> Result<Bytes, InferError> {
    // Most bodies are small, are not counted, and came in one piece. Those do not carry the state of others.
    if first.len() < MIN_COUNTED_BYTES.min(limit) && body.is_end_stream() {
        return Ok(first);
    }
    Box::pin(gather(first, body, limit, pace, memory.charge())).await
}

async fn gather(
    first: Bytes,
    body: &mut Incoming,
    limit: usize,
    pace: Pace,
    mut charge: Charge,
) -> Result<Bytes, InferError> {
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX).saturating_add(first.len());
    if first.len() > limit {
        return Err(too_large(limit));
    }
    charge.grow_to(first.len())?;
    if body.is_end_stream() {
        return Ok(charge.hold(first));
    }
    // Nothing may follow but the end, as some gRPC clients send it.
    let Some(second) = piece(body, pace).await? else { return Ok(charge.hold(first)) };
    let mut whole = BytesMut::with_capacity(expected.min(FIRST_PIECE).max(first.len() + second.len()));
    whole.extend_from_slice(&first);
    let mut next = Some(second);
    while let Some(more) = next {
        if whole.len() + more.len() > limit {
            return Err(too_large(limit));
        }
        charge.grow_to(whole.capacity().max(whole.len() + more.len()))?;
        whole.extend_from_slice(&more);
        next = piece(body, pace).await?;
    }
    Ok(charge.hold(whole.freeze()))
}

/// The next piece of data; `None` at the end.
pub(crate) async fn piece(body: &mut Incoming, pace: Pace) -> Result<Option<Bytes>, InferError> {
    let Pace { pause, deadline } = pace;
    loop {
        // What is there already needs no timer.
        let next = match futures::FutureExt::now_or_never(body.frame()) {
            Some(next) => next,
            None => {
                let until = deadline.min(Instant::now() + pause);
                Box::pin(timeout_at(until, body.frame())).await.map_err(|_| too_slow(until < deadline))?
            }
        };
        match next {
            None => return Ok(None),
            Some(Err(error)) => return Err(broken(&error)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data()
                    && !data.is_empty()
                {
                    return Ok(Some(data));
                }
            }
        }
    }
}

fn too_large(limit: usize) -> InferError {
    InferError::TooLarge(format!("the request's body is larger than {}", berth_spec::ByteSize(limit as u64)))
}

fn too_slow(paused: bool) -> InferError {
    let why = if paused { "paused for too long" } else { "was not complete before its deadline" };
    InferError::TimedOut(format!("the request's body {why}"))
}
