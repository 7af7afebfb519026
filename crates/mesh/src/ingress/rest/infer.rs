//! An inference of the Open Inference Protocol over REST: its body read, its answer written.

use std::sync::Arc;

use berth_spec::{ByteSize, InferError, InferResponse, Signature};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header, request::Parts};

use crate::{
    body::{
        memory::{Charge, RequestMemory},
        reply::ReplyBody,
        upload::Upload,
    },
    deployment::DeploymentState,
    forward::{
        buffered::Failure,
        head::Head,
        run::Codec,
        runner::{LocalOutcome, Runner},
    },
    offload,
    oip::{
        self, AnswerForm, Decoded, Encoded, Layout,
        content::{Coding, compress, decompress},
    },
    shared_memory::{read_inputs, write_output},
    stack::Stack,
};

/// Blobs of answers below this are copied behind the JSON rather than written piece by piece: a copy of 16 KiB takes
/// about a microsecond, as one more write does.
const WORTH_PIECES: usize = 16 << 10;

/// An inference over REST: the head of its request, and how the body is coded.
pub(in crate::ingress) struct Inference {
    pub(in crate::ingress) head: Arc<Parts>,
    pub(in crate::ingress) coding: Coding,
}

impl Codec for Inference {
    type Answer = Response<ReplyBody>;

    fn head(&self, stack: &Stack, _: &DeploymentState) -> Result<Head, InferError> {
        Ok(stack.head(&self.head))
    }

    async fn local<R: Runner>(
        &mut self,
        runner: &mut R,
        upload: &mut Upload,
    ) -> Result<LocalOutcome<Response<ReplyBody>>, Failure> {
        let headers = &self.head.headers;
        let body = upload.bytes(runner.deadline()).await.map_err(|error| runner.failed(error))?;
        let length = body.len();
        // Tensors are held until the request is answered.
        let decoded = match upload.memory().take_beside(&body, weight(headers, &body)) {
            Ok(tensors) => decode(headers, self.coding, body, upload.limit(), tensors, || runner.signature()).await,
            Err(error) => Err(error),
        };
        let read = decoded.and_then(|(mut decoded, tensors)| {
            let shared = read_inputs(&mut decoded, &self.head.extensions, upload.memory())?;
            Ok((decoded, (tensors, shared)))
        });
        let (Decoded { request, mut form, options, .. }, _tensors) = read.map_err(|error| {
            runner.received(length);
            runner.failed(error)
        })?;
        runner.shorten(options.timeout);
        if form.classifies() {
            form.label(runner.signature());
        }
        match runner.infer(request).await {
            Ok(LocalOutcome::Moved(why)) => Ok(LocalOutcome::Moved(why)),
            Ok(LocalOutcome::Answered(mut response)) => {
                runner.received(length);
                if form.places() {
                    let write = |data: &Bytes, range: &oip::Range| write_output(data, range, &self.head.extensions);
                    form.place(&mut response, write).map_err(|error| runner.failed(error))?;
                }
                let encoded = encode(headers, response, form, upload.memory()).await;
                let (answer, length) = encoded.map_err(|error| runner.failed(error))?;
                runner.sent(length);
                Ok(LocalOutcome::Answered(answer))
            }
            Err(error) => {
                runner.received(length);
                Err(error.into())
            }
        }
    }

    fn came(&self) -> Option<&Parts> {
        Some(&self.head)
    }
}

/// The content coding of the request's body. Unsupported if there is no decoder for it.
pub(in crate::ingress) fn coding(headers: &HeaderMap) -> Result<Coding, InferError> {
    Coding::of_request(headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes))
}

/// The most bytes that the tensors in the JSON of a body can take: a number of one digit and a comma become eight bytes.
/// What follows the JSON stays where it is.
fn weight(headers: &HeaderMap, body: &Bytes) -> usize {
    let length = headers.get(oip::HEADER_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    body.len().min(length.unwrap_or(usize::MAX)).saturating_mul(4)
}

/// Reads a body. `limit` is in bytes, after decompression; `tensors` is what is held for them so far.
async fn decode(
    headers: &HeaderMap,
    coding: Coding,
    body: Bytes,
    limit: usize,
    mut tensors: Charge,
    signature: impl Fn() -> Arc<Signature>,
) -> Result<(Decoded, Charge), InferError> {
    let length = headers.get(oip::HEADER_LENGTH);
    if coding == Coding::Identity && body.len() < offload::MIN_BYTES {
        let layout = Layout::of(length.map(HeaderValue::as_bytes), body.len())?;
        let decoded = match layout {
            Layout::Raw => oip::decode(&body, layout, &signature()),
            Layout::Json | Layout::Binary { .. } => oip::decode(&body, layout, &Signature::default()),
        };
        return Ok((decoded?, tensors));
    }
    let (signature, length, limit) = (signature(), length.cloned(), ByteSize(limit as u64));
    let mut charge = tensors.another();
    offload::run(offload::MIN_BYTES, move || {
        let came = body.len();
        let body: Bytes = decompress(body, coding, limit, |bytes| charge.grow_to(bytes))?;
        let body = charge.hold(body);
        let layout = Layout::of(length.as_ref().map(HeaderValue::as_bytes), body.len())?;
        // Of a body that was compressed, more than was thought.
        if matches!(layout, Layout::Json) && body.len() > came {
            tensors.grow_to(body.len().saturating_mul(4))?;
        }
        Ok((oip::decode(&body, layout, &signature)?, tensors))
    })
    .await
}

/// Writes an answer; also its length before compression, in bytes.
async fn encode(
    headers: &HeaderMap,
    response: InferResponse,
    form: AnswerForm,
    memory: &Arc<RequestMemory>,
) -> Result<(Response<ReplyBody>, usize), InferError> {
    let mut encoded = offload::run(oip::effort(&response, &form), move || oip::encode(&response, &form)).await?;
    let length = encoded.len();
    encoded.json = memory.answer(encoded.json);
    for blob in &mut encoded.blobs {
        *blob = memory.answer(std::mem::take(blob));
    }
    let coding = Coding::accepted(headers.get(header::ACCEPT_ENCODING).map(HeaderValue::as_bytes));
    Ok((response_of(encoded, coding).await, length))
}

pub(super) async fn response_of(encoded: Encoded, coding: Coding) -> Response<ReplyBody> {
    let content_type = HeaderValue::from_static(encoded.content_type());
    let json_length = encoded.binary.then_some(encoded.json.len());
    let (body, coding) = match coding {
        Coding::Identity => (plain(encoded), coding),
        Coding::Gzip | Coding::Deflate => {
            let (body, coding) = Box::pin(squeeze(encoded.into_bytes(), coding)).await;
            (ReplyBody::from(body), coding)
        }
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    if let Some(length) = json_length {
        headers.insert(HeaderName::from_static(oip::HEADER_LENGTH), length.into());
    }
    if let Some(name) = coding.name() {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(name));
    }
    response
}

fn plain(encoded: Encoded) -> ReplyBody {
    if encoded.blobs.is_empty() {
        return ReplyBody::from(encoded.json);
    }
    if encoded.len() < WORTH_PIECES {
        return ReplyBody::from(encoded.into_bytes());
    }
    let length = Some(encoded.len() as u64);
    let left = std::iter::once(encoded.json).chain(encoded.blobs).filter(|piece| !piece.is_empty());
    ReplyBody::Pieces { left: Box::new(left), length }
}

/// Compresses a body; a large one on another thread.
async fn squeeze(body: Bytes, coding: Coding) -> (Bytes, Coding) {
    if body.len() < offload::MIN_BYTES {
        return compress(body, coding);
    }
    let plain = body.clone();
    // A panic in the compressor: the answer is good without it.
    tokio::task::spawn_blocking(move || compress(body, coding)).await.unwrap_or((plain, Coding::Identity))
}
