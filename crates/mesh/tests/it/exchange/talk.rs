//! A model that answers calls of its own, and a client that sends and reads piece by piece.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Instant,
};

use berth_mesh::{
    exchange::{self, Body},
    local::{Batching, Model, Statistics},
};
use berth_spec::{InferError, InferRequest, Signature, Tensor};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{StreamExt as _, future::BoxFuture, stream};
use http::{HeaderMap, HeaderValue, Request, Response, request, response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::{net::TcpStream, sync::Semaphore};

use crate::fixture::soon;

/// Bytes of one piece of a flood.
pub(super) const FLOOD_PIECE_BYTES: usize = 16 << 10;

/// One message with its frame.
pub(super) fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).expect("short"));
    framed.extend_from_slice(message);
    framed.freeze()
}

/// A look at the model from the test.
#[derive(Clone)]
pub(super) struct Talk(Arc<Inner>);

pub(super) struct Inner {
    signature: Arc<Signature>,
    /// Gated messages take a permit each.
    pub(super) gate: Semaphore,
    /// Messages that were made.
    pub(super) produced: AtomicU64,
    pub(super) calls: AtomicU64,
    /// A permit for each call that was dropped before its end.
    pub(super) cancelled: Semaphore,
    pub(super) timeouts: Mutex<Vec<String>>,
}

impl std::ops::Deref for Talk {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// Tells when it is dropped.
struct CancelGuard(Talk);

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.0.cancelled.add_permits(1);
    }
}

impl Talk {
    pub(super) fn new() -> Self {
        Self(Arc::new(Inner {
            signature: Arc::default(),
            gate: Semaphore::new(0),
            produced: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            cancelled: Semaphore::new(0),
            timeouts: Mutex::default(),
        }))
    }

    pub(super) fn model(&self) -> Arc<dyn Model> {
        Arc::new(self.clone())
    }

    /// Messages without an end, each with a permit of the gate if it is `gated`.
    fn endless(&self, message: Bytes, gated: bool) -> Body {
        let pieces = stream::unfold(CancelGuard(self.clone()), move |guard| {
            let message = message.clone();
            async move {
                if gated {
                    guard.0.gate.acquire().await.expect("open").forget();
                }
                guard.0.produced.fetch_add(1, SeqCst);
                Some((Ok(Frame::data(message)), guard))
            }
        });
        StreamBody::new(pieces).boxed_unsync()
    }

    /// The answers to one request of `ModelStreamInfer`, and then a status.
    fn inferences(&self, answers: Vec<Bytes>, status: &'static str) -> Body {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static(status));
        trailers.insert("grpc-message", HeaderValue::from_static("asked to"));
        let pieces = answers.into_iter().map(Frame::data).chain([Frame::trailers(trailers)]).map(Ok);
        StreamBody::new(stream::iter(pieces)).boxed_unsync()
    }
}

fn trailers() -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers.insert("x-end", HeaderValue::from_static("1"));
    Frame::trailers(trailers)
}

/// An answer with as many bytes in its head and in its trailers as the call asks for.
fn long(asked: &HeaderMap) -> Response<Body> {
    let bytes = |name: &str| {
        let bytes =
            asked.get(name).map_or(0, |bytes| bytes.to_str().expect("text").parse::<usize>().expect("a number"));
        HeaderValue::from_str(&"x".repeat(bytes)).expect("a value")
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers.insert("x-long", bytes("x-trailers"));
    let pieces = [Frame::data(framed(b"long")), Frame::trailers(trailers)];
    let mut response = Response::new(StreamBody::new(stream::iter(pieces.map(Ok))).boxed_unsync());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert("x-long", bytes("x-head"));
    response
}

impl Model for Talk {
    fn signature(&self) -> &Arc<Signature> {
        &self.0.signature
    }

    fn platform(&self) -> &'static str {
        "talk"
    }

    fn infer(&self, _: InferRequest, _: Instant) -> BoxFuture<'_, Result<Vec<Tensor>, InferError>> {
        Box::pin(async { Err(InferError::Unsupported("it talks".to_owned())) })
    }

    fn streams(&self) -> bool {
        true
    }

    fn exchange(&self, parts: request::Parts, body: Body) -> BoxFuture<'_, Result<Response<Body>, InferError>> {
        Box::pin(async move {
            self.calls.fetch_add(1, SeqCst);
            assert!(parts.extensions.get::<exchange::Deadline>().is_some_and(|at| at.0 > Instant::now()));
            let timeout = parts.headers["grpc-timeout"].to_str().expect("text").to_owned();
            self.timeouts.lock().expect("no panic").push(timeout);
            let answer = match parts.uri.path() {
                "/talk.Talk/Echo" => {
                    let pieces = body.into_data_stream().map(|piece| piece.map(Frame::data));
                    StreamBody::new(pieces.chain(stream::once(async { Ok(trailers()) }))).boxed_unsync()
                }
                "/talk.Talk/Count" => {
                    let bytes = body.collect().await.map_err(|_| InferError::Cancelled)?.to_bytes().len();
                    let count = framed(bytes.to_string().as_bytes());
                    StreamBody::new(stream::iter([Ok(Frame::data(count)), Ok(trailers())])).boxed_unsync()
                }
                "/talk.Talk/Gated" => self.endless(framed(b"token"), true),
                "/talk.Talk/Flood" => self.endless(Bytes::from_static(&[0; FLOOD_PIECE_BYTES]), false),
                "/talk.Talk/Long" => return Ok(long(&parts.headers)),
                "/talk.Talk/Hang" => {
                    let _guard = CancelGuard(self.clone());
                    std::future::pending().await
                }
                "/inference.GRPCInferenceService/ModelStreamInfer" => {
                    let asked = body.collect().await.map_err(|_| InferError::Cancelled)?.to_bytes();
                    let (answers, status) = super::streamed_inference::answers(&asked);
                    self.inferences(answers, status)
                }
                _ => return Ok(exchange::unimplemented()),
            };
            let mut response = Response::new(answer);
            response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
            if let Some(mine) = parts.headers.get("x-mine") {
                response.headers_mut().insert("x-mine", mine.clone());
            }
            Ok(response)
        })
    }

    fn statistics(&self) -> Statistics {
        Statistics::default()
    }

    fn batching(&self) -> Batching {
        Batching::OFF
    }
}

/// One call of a client. Dropping it cancels the call.
pub(super) struct Call {
    send: h2::SendStream<Bytes>,
    response: Option<h2::client::ResponseFuture>,
    body: Option<h2::RecvStream>,
}

impl Call {
    pub(super) async fn begin(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Self {
        let stream = TcpStream::connect(address).await.expect("it listens");
        let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
        // It ends with its last stream.
        tokio::spawn(async move { drop(connection.await) });
        let mut client = client.ready().await.expect("ready");
        let mut request = Request::post(format!("http://{address}{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (response, send) = client.send_request(request.body(()).expect("a request"), false).expect("sent");
        Self { send, response: Some(response), body: None }
    }

    pub(super) fn send(&mut self, bytes: Bytes, last: bool) {
        self.send.send_data(bytes, last).expect("sent");
    }

    pub(super) async fn head(&mut self) -> response::Parts {
        let response = self.response.take().expect("the first time");
        let (head, body) = soon("an answer", response).await.expect("an answer").into_parts();
        self.body = Some(body);
        head
    }

    /// The next piece; `None` at the end.
    pub(super) async fn piece(&mut self) -> Option<Bytes> {
        let body = self.body.as_mut().expect("after the head");
        let piece = soon("a piece", body.data()).await?.expect("a piece");
        body.flow_control().release_capacity(piece.len()).expect("it was taken");
        Some(piece)
    }

    pub(super) async fn rest(&mut self) -> Bytes {
        let mut rest = BytesMut::new();
        while let Some(piece) = self.piece().await {
            rest.extend_from_slice(&piece);
        }
        rest.freeze()
    }

    pub(super) async fn trailers(&mut self) -> HeaderMap {
        let body = self.body.as_mut().expect("after the head");
        soon("trailers", body.trailers()).await.expect("an end").expect("trailers")
    }
}
