//! The models that a call is for: named in its first message where the method says so, else in its metadata.

use std::{borrow::Cow, time::Duration};

use berth_spec::InferError;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::{
    body::{
        read::{self, Pace},
        upload::{Bounds, Upload},
    },
    ingress::model_name,
    oip::grpc::frame::{FRAME_PREFIX, first},
    wire_field::{FieldLookup, find},
};

/// Bytes that clients send with the head, or right after it: most messages have their model in front.
const FIRST_BYTES: usize = 64 << 10;

/// The longest wait for these bytes.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(15);

/// A call whose models are known, with its body, of which a part may have been read for that.
pub(super) struct ModelCall<'h> {
    pub(super) models: Vec<Cow<'h, str>>,
    pub(super) upload: Upload,
}

/// Reads as much as it takes to know the models, a message of the greatest length at most.
pub(super) async fn of<'h>(
    headers: &'h HeaderMap,
    path: &[u32],
    mut incoming: Incoming,
    bounds: Bounds,
    deadline: Instant,
) -> Result<ModelCall<'h>, InferError> {
    // A call for several models is read whole; one for a single model passes, and may be a stream.
    let bounds_of =
        |models: &[Cow<'_, str>]| if models.len() > 1 { bounds.clone() } else { bounds.clone().of_stream() };
    if path.is_empty() {
        let models = model_name::all_of_metadata(headers)?;
        let upload = Upload::new(incoming, bounds_of(&models));
        return Ok(ModelCall { models, upload });
    }
    let (mut here, mut charge) = (BytesMut::new(), bounds.memory().charge());
    let (first_deadline, longest) =
        (deadline.min(Instant::now() + FIRST_BYTES_TIMEOUT), bounds.longest().saturating_add(FRAME_PREFIX));
    let mut enough = 0;
    let named = loop {
        if here.len() >= enough || is_whole(&here) {
            match look(&here, path)? {
                FieldLookup::Value(name) => {
                    let name = str::from_utf8(name)
                        .map_err(|_| InferError::Invalid("the model's id is not UTF-8".to_owned()))?;
                    break Some(name.to_owned()).filter(|name| !name.is_empty());
                }
                FieldLookup::Absent => break None,
                FieldLookup::Invalid => {
                    return Err(InferError::Invalid("the request is no protobuf message".to_owned()));
                }
                FieldLookup::Incomplete if here.len() >= longest => {
                    let message = format!("the model's id is not within the first {longest} bytes of the request");
                    return Err(InferError::Invalid(message));
                }
                // So all looks together cost about two, however small the pieces are.
                FieldLookup::Incomplete => enough = (here.len() * 2).min(longest),
            }
        }
        let end = if here.len() < FIRST_BYTES { first_deadline } else { deadline };
        let pace = Pace { pause: bounds.pause(), deadline: end };
        let Some(piece) = read::piece(&mut incoming, pace).await? else {
            return Err(InferError::Invalid("the request ends within its first message".to_owned()));
        };
        charge.grow_to(here.capacity().max(here.len() + piece.len()))?;
        here.extend_from_slice(&piece);
    };
    let models = match named {
        Some(name) => vec![Cow::Owned(name)],
        None => model_name::all_of_metadata(headers)?,
    };
    let here = charge.hold(here.freeze());
    let bounds = bounds_of(&models);
    let upload = match incoming.is_end_stream() {
        true => Upload::whole(here, bounds),
        false => Upload::begun(here, incoming, bounds),
    };
    Ok(ModelCall { models, upload })
}

/// True if all of the first message is here.
fn is_whole(here: &[u8]) -> bool {
    first(here).is_some_and(|(_, length)| here.len() >= FRAME_PREFIX.saturating_add(length))
}

fn look<'m>(here: &'m [u8], path: &[u32]) -> Result<FieldLookup<'m>, InferError> {
    match first(here) {
        None => Ok(FieldLookup::Incomplete),
        Some((0, length)) => {
            let message = &here[FRAME_PREFIX..here.len().min(FRAME_PREFIX.saturating_add(length))];
            Ok(find(message, length, path))
        }
        Some(_) => Err(InferError::Unsupported(
            "the model's id cannot be read from a compressed message: send it uncompressed, or name the model in mm-model-id"
                .to_owned(),
        )),
    }
}

/// The one message of a body, without its frame.
pub(super) fn message(body: &Bytes) -> Option<Bytes> {
    match first(body) {
        Some((0, length)) if body.len() == FRAME_PREFIX + length => Some(body.slice(FRAME_PREFIX..)),
        _ => None,
    }
}
