//! Answers to calls for a model: its echo.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use berth_wire::oip::{ModelInferRequest, ModelInferResponse, model_infer_response::InferOutputTensor};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header, request::Parts};
use http_body::Frame;
use http_body_util::{BodyExt as _, BodyStream, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tonic::{Code, Status};

use super::{
    StandsFor, listed,
    models::Models,
    repository::{self, SERVICE},
};

/// The body of an answer.
pub(super) type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// The longest inference.
const MAX_REQUEST_BYTES: usize = 256 << 20;

/// A flag and a length.
const PREFIX: usize = 5;

/// The model that answered.
const MODEL: HeaderName = HeaderName::from_static("testing-model-id");

/// Answers one call of any protocol that the server stands for; errors become statuses.
pub(super) async fn of(models: &Models, request: Request<Incoming>) -> Response<Body> {
    match answered(models, request).await {
        Ok(response) => response,
        Err(status) => {
            let response: Response<tonic::body::Body> = status.into_http();
            response.map(|body| body.map_err(Into::into).boxed_unsync())
        }
    }
}

/// A call for a model.
enum Call {
    /// Read already, because it names the model.
    Inference(ModelInferRequest),
    Other(Incoming),
}

async fn answered(models: &Models, request: Request<Incoming>) -> Result<Response<Body>, Status> {
    let (parts, body) = request.into_parts();
    let body = match tensorflow(models, &parts, body).await {
        Ok(answer) => return answer,
        Err(body) => body,
    };
    let (call, named) = match (models.repository(), parts.uri.path().strip_prefix(SERVICE)) {
        (Some(repository), Some(method)) => match repository::of(models, repository, method, body).await {
            Ok(answer) => return answer.map(grpc),
            Err(body) if method == "ModelInfer" => {
                let inference: ModelInferRequest = message(body).await?;
                let name = inference.model_name.clone();
                (Call::Inference(inference), Some(name))
            }
            Err(body) => (Call::Other(body), None),
        },
        _ => (Call::Other(body), None),
    };
    let id = named.or_else(|| id(&parts.headers));
    let id = id.ok_or_else(|| Status::invalid_argument("the call names no model in mm-model-id"))?;
    let there = models.has(&id);
    misbehave(models, &parts.headers, &id).await?;
    if !there {
        return Err(models.unknown(&id));
    }
    let body = match call {
        Call::Inference(request) => inferred(request),
        Call::Other(body) if parts.uri.path() == INFER => inferred(message(body).await?),
        Call::Other(body) => echo(body),
    };
    let mut response = grpc(body);
    let headers = response.headers_mut();
    for (name, value) in &parts.headers {
        if name.as_str().starts_with("x-") {
            headers.append(name.clone(), value.clone());
        }
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(MODEL, id);
    }
    Ok(response)
}

/// Answers a call of TensorFlow Serving's own services; the body of any other call comes back.
async fn tensorflow(
    models: &Models,
    parts: &Parts,
    body: Incoming,
) -> Result<Result<Response<Body>, Status>, Incoming> {
    let path = parts.uri.path();
    if models.stands_for() != StandsFor::TensorFlow {
        return Err(body);
    }
    if let Some(method) = path.strip_prefix(listed::MODEL_SERVICE) {
        return Ok(listed::model_service(models, method, body).await.map(grpc));
    }
    if !path.starts_with(listed::PREDICTION_SERVICE) {
        return Err(body);
    }
    if parts.headers.get("testing").is_some_and(|asked| asked == "lose=1") {
        models.loses(1);
    }
    Ok(listed::predicted(models, body).await.map(|(body, id)| {
        let mut response = grpc(body);
        if let Ok(id) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(MODEL, id);
        }
        response
    }))
}

/// Does what the caller asks for in the header `testing`: loses models, is slow, or fails.
async fn misbehave(models: &Models, headers: &HeaderMap, id: &str) -> Result<(), Status> {
    let Some(asked) = headers.get("testing").and_then(|value| value.to_str().ok()) else { return Ok(()) };
    match asked.split_once('=') {
        None if asked == "purge" => models.purge(),
        Some(("delay", millis)) => tokio::time::sleep(Duration::from_millis(number(millis)?)).await,
        Some(("lose", times)) if models.loses(number(times)?) => return Err(models.unknown(id)),
        Some(("lose", _)) => {}
        Some(("error", error)) => return Err(error_of(error)),
        _ => {
            return Err(Status::invalid_argument(format!(
                "testing: {asked:?} is purge, lose=TIMES, delay=MS or error=CODE:TEXT"
            )));
        }
    }
    Ok(())
}

fn number(text: &str) -> Result<u64, Status> {
    text.parse().map_err(|_| Status::invalid_argument(format!("{text:?} is no number")))
}

/// `CODE:text`, or a code alone: its number or its name.
fn error_of(text: &str) -> Status {
    let (code, message) = text.split_once(':').unwrap_or((text, ""));
    let named = (0..=16).map(Code::from).find(|known| {
        let name = format!("{known:?}").to_uppercase();
        name == code.replace('_', "").to_uppercase()
    });
    Status::new(code.parse().map(Code::from_i32).ok().or(named).unwrap_or(Code::Unknown), message)
}

fn id(headers: &HeaderMap) -> Option<String> {
    if let Some(binary) = headers.get("mm-model-id-bin") {
        let bytes = STANDARD_NO_PAD.decode(binary.as_bytes().trim_ascii_end()).ok()?;
        return String::from_utf8(bytes).ok();
    }
    headers.get("mm-model-id")?.to_str().ok().map(str::to_owned)
}

fn trailers() -> Frame<Bytes> {
    let ok = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    Frame::trailers(HeaderMap::from_iter([ok]))
}

/// The request's messages as they come, then the end.
fn echo(body: Incoming) -> Body {
    // HTTP/2 clients take many empty pieces for an attack.
    let said = |frame: &Frame<Bytes>| frame.data_ref().is_some_and(|data| !data.is_empty());
    let pieces = BodyStream::new(body).try_filter(move |frame| std::future::ready(said(frame)));
    let end = stream::once(async { Ok(trailers()) });
    StreamBody::new(pieces.chain(end).map_err(Into::into)).boxed_unsync()
}

/// The bytes of the one message of a request.
pub(super) async fn whole(body: Incoming) -> Result<Bytes, Status> {
    let bytes =
        Limited::new(body, MAX_REQUEST_BYTES).collect().await.map_err(|error| Status::internal(error.to_string()))?;
    let mut message = bytes.to_bytes();
    if message.len() < PREFIX {
        return Err(Status::invalid_argument("the request has no message"));
    }
    Ok(message.split_off(PREFIX))
}

/// The one message of a request.
pub(super) async fn message<M: prost::Message + Default>(body: Incoming) -> Result<M, Status> {
    let read = M::decode(whole(body).await?).ok();
    read.ok_or_else(|| Status::invalid_argument("the request is not the message that the method takes"))
}

/// One message as a body, and the end.
pub(super) fn framed(message: &impl prost::Message) -> Body {
    framed_bytes(&message.encode_to_vec())
}

/// The same for the bytes of a message.
pub(super) fn framed_bytes(message: &[u8]) -> Body {
    let mut framed = BytesMut::with_capacity(PREFIX + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.extend_from_slice(message);
    let whole = Full::new(framed.freeze()).map_err(|never| match never {});
    whole.with_trailers(async { Some(Ok(trailers().into_trailers().unwrap_or_default())) }).boxed_unsync()
}

fn grpc(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// The inputs of one inference as its outputs.
fn inferred(request: ModelInferRequest) -> Body {
    let outputs = request.inputs.into_iter().map(|input| InferOutputTensor {
        name: input.name,
        datatype: input.datatype,
        shape: input.shape,
        parameters: input.parameters,
        contents: input.contents,
    });
    framed(&ModelInferResponse {
        model_name: request.model_name,
        id: request.id,
        outputs: outputs.collect(),
        raw_output_contents: request.raw_input_contents,
        ..ModelInferResponse::default()
    })
}
