//! One inference over REST: the order of [`stack`](crate::stack), with the body between parking and lease.

use berth_spec::{ByteSize, InferError, InferRequest, Signature};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use hyper::body::Incoming;

use super::timeout;
use crate::{
    ingress::{
        body,
        fault::Fault,
        heavy::{self, HEAVY},
        reply::{Reply, ReplyBody},
    },
    metrics::Protocol,
    oip::{
        self, AnswerForm, Decoded, Encoded, Layout,
        content::{Coding, compress, decompress},
    },
    stack::{Admitted, Call, Stack},
};

/// Blobs of answers below this are copied behind the JSON rather than written piece by piece.
/// Halved or doubled: no difference that was seen; a copy of 16 KiB takes about a microsecond, as a write more does.
const WORTH_PIECES: usize = 16 << 10;

pub(super) async fn infer(
    stack: &Stack,
    headers: &HeaderMap,
    body: &mut Incoming,
    model: &str,
    version: Option<&str>,
) -> Reply {
    let mut admitted = stack.admit(Call { model, version, protocol: Protocol::Rest, timeout: timeout(headers)? })?;
    let coding = headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes);
    let coding = Coding::of_request(coding).map_err(|error| Fault::wrong_encoding(admitted.failed(error)))?;
    admitted.ready().await?;
    let decoded = receive(stack, headers, coding, body, &admitted).await;
    let Decoded { request, form, options } = decoded.map_err(|error| admitted.failed(error))?;
    admitted.shorten(options.timeout);
    answer(&mut admitted, headers, request, form).await
}

/// Reads and decodes the body.
async fn receive(
    stack: &Stack,
    headers: &HeaderMap,
    coding: Coding,
    body: &mut Incoming,
    admitted: &Admitted<'_>,
) -> Result<Decoded, InferError> {
    let limits = &stack.limits;
    let body = body::read(body, limits.body, limits.body_idle, admitted.deadline()).await?;
    admitted.received(body.len());
    let length = headers.get(oip::HEADER_LENGTH);
    if coding == Coding::Identity && body.len() < HEAVY {
        let layout = Layout::of(length.map(HeaderValue::as_bytes), body.len())?;
        return match layout {
            Layout::Raw => admitted.with_signature(|signature| oip::decode(&body, layout, signature)),
            Layout::Json | Layout::Binary { .. } => oip::decode(&body, layout, &Signature::default()),
        };
    }
    let signature = admitted.with_signature(Signature::clone);
    let (length, limit) = (length.cloned(), ByteSize(limits.body as u64));
    heavy::aside(HEAVY, move || {
        let body: Bytes = decompress(body, coding, limit)?;
        let layout = Layout::of(length.as_ref().map(HeaderValue::as_bytes), body.len())?;
        oip::decode(&body, layout, &signature)
    })
    .await
}

/// Runs the request and encodes the answer.
async fn answer(admitted: &mut Admitted<'_>, headers: &HeaderMap, request: InferRequest, form: AnswerForm) -> Reply {
    let response = admitted.infer(request).await?;
    let encoded = heavy::aside(oip::effort(&response, &form), move || oip::encode(&response, &form)).await;
    let encoded = encoded.map_err(|error| admitted.failed(error))?;
    admitted.sent(encoded.len());
    let coding = Coding::accepted(headers.get(header::ACCEPT_ENCODING).map(HeaderValue::as_bytes));
    Ok(response_of(encoded, coding).await)
}

async fn response_of(encoded: Encoded, coding: Coding) -> Response<ReplyBody> {
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

/// Compresses a body where it holds up nobody.
async fn squeeze(body: Bytes, coding: Coding) -> (Bytes, Coding) {
    if body.len() < HEAVY {
        return compress(body, coding);
    }
    let plain = body.clone();
    // A panic in the compressor: the answer is good without it.
    tokio::task::spawn_blocking(move || compress(body, coding)).await.unwrap_or((plain, Coding::Identity))
}
