//! The field of a body by which requests to an alias keep together: read before the alias chooses.

use berth_spec::{ByteSize, InferError};
use bytes::Bytes;
use http::{HeaderValue, request::Parts};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::infer;
use crate::{
    body::read::{self, Pace},
    offload,
    oip::{
        self, Layout,
        content::{Coding, decompress},
    },
    stack::Stack,
    sticky::json_field,
};

/// The whole body, and the hash of the field at `path` in its JSON. A body that cannot be read has no such field: what is
/// wrong with it is told by whoever runs it.
pub(super) async fn read(
    stack: &Stack,
    head: &Parts,
    body: &mut Option<Incoming>,
    path: &str,
) -> Result<(Bytes, Option<u64>), InferError> {
    let limits = &stack.limits;
    let Some(incoming) = body else { return Err(InferError::Cancelled) };
    let pace = Pace { pause: limits.body_idle, deadline: Instant::now() + limits.deadline };
    let whole = read::read(incoming, limits.body, pace, &stack.memory).await?;
    *body = None;
    let Ok(coding) = infer::coding(&head.headers) else { return Ok((whole, None)) };
    let length = head.headers.get(oip::HEADER_LENGTH).cloned();
    let (text, path, limit) = (whole.clone(), path.to_owned(), ByteSize(limits.body as u64));
    let weight = if coding == Coding::Identity { whole.len() } else { offload::MIN_BYTES };
    let mut charge = stack.memory.charge();
    let find = move || {
        let plain = decompress(text, coding, limit, |bytes| charge.grow_to(bytes))?;
        Ok(match Layout::of(length.as_ref().map(HeaderValue::as_bytes), plain.len())? {
            Layout::Json => json_field(&plain, &path),
            Layout::Binary { json } => json_field(&plain[..json], &path),
            Layout::Raw => None,
        })
    };
    let found = offload::run(weight, find).await.unwrap_or_default();
    Ok((whole, found))
}
