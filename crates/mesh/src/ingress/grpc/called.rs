//! The models that a call is for: named in its first message where the method says so, else in its metadata.

use std::{borrow::Cow, time::Duration};

use berth_spec::InferError;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::{
    body::upload::{Bounds, Upload},
    ingress::model_name,
    oip::grpc::frame::{PREFIX, first},
    wire_field::{Found, find},
};

/// The bytes of a message in which its model is looked for. A name that stands behind more than that is refused: messages have
/// it in front.
const DEEPEST: usize = 64 << 10;

/// The longest wait for these bytes: clients send them with the head, or right after it.
const WAIT: Duration = Duration::from_secs(15);

/// The models of a call, and its body.
pub(super) struct Called<'h> {
    pub(super) models: Vec<Cow<'h, str>>,
    pub(super) upload: Upload,
}

/// Reads as much as it takes to know the models.
pub(super) async fn of<'h>(
    headers: &'h HeaderMap,
    path: &[u32],
    mut incoming: Incoming,
    bounds: Bounds,
) -> Result<Called<'h>, InferError> {
    // A call for several models is read whole; one for a single model passes, and may be a stream.
    let bounds_of =
        |models: &[Cow<'_, str>]| if models.len() > 1 { bounds.clone() } else { bounds.clone().of_stream() };
    if path.is_empty() {
        let models = model_name::all_of_metadata(headers)?;
        let upload = Upload::new(incoming, bounds_of(&models));
        return Ok(Called { models, upload });
    }
    let mut here = BytesMut::new();
    let end = Instant::now() + WAIT;
    let named = loop {
        match look(&here, path)? {
            Found::Value(name) => {
                let name =
                    str::from_utf8(name).map_err(|_| InferError::Invalid("the model's id is not UTF-8".to_owned()))?;
                break Some(name.to_owned()).filter(|name| !name.is_empty());
            }
            Found::Absent => break None,
            Found::Invalid => return Err(InferError::Invalid("the request is no protobuf message".to_owned())),
            Found::More if here.len() > DEEPEST => {
                let message = format!("the model's id is not within the first {DEEPEST} bytes of the request");
                return Err(InferError::Invalid(message));
            }
            Found::More => {}
        }
        let frame = timeout_at(end, incoming.frame()).await;
        let frame = frame.map_err(|_| InferError::TimedOut("the request's first message did not come".to_owned()))?;
        match frame {
            Some(Ok(frame)) => here.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(_)) => return Err(InferError::Cancelled),
            None => return Err(InferError::Invalid("the request ends within its first message".to_owned())),
        }
    };
    let models = match named {
        Some(name) => vec![Cow::Owned(name)],
        None => model_name::all_of_metadata(headers)?,
    };
    let here = here.freeze();
    let bounds = bounds_of(&models);
    let upload = match incoming.is_end_stream() {
        true => Upload::whole(here, bounds),
        false => Upload::begun(here, incoming, bounds),
    };
    Ok(Called { models, upload })
}

fn look<'m>(here: &'m [u8], path: &[u32]) -> Result<Found<'m>, InferError> {
    match first(here) {
        None => Ok(Found::More),
        Some((0, length)) => {
            let message = &here[PREFIX..here.len().min(PREFIX.saturating_add(length))];
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
        Some((0, length)) if body.len() == PREFIX + length => Some(body.slice(PREFIX..)),
        _ => None,
    }
}
