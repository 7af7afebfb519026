//! From an HTTP request to an answer, whichever protocol it speaks.
//!
//! `application/grpc` goes to the gRPC service, everything else to REST; both on one port, over HTTP/1.1 and HTTP/2. A
//! panic anywhere below fails its own request and nothing else.

pub(crate) mod access;
mod fault;
pub(crate) mod grpc;
mod model_name;
mod path;
pub(crate) mod peer;
mod rest;

use std::{
    net::IpAddr,
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Duration,
};

use berth_spec::id::DEFAULT_NAMESPACE;
use berth_wire::{guard::Guard, oip::grpc_inference_service_server::GrpcInferenceServiceServer};
use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderName, Request, Response, header};
use hyper::body::Incoming;
use tower_service::Service as _;
use tracing::Instrument as _;

use self::{
    fault::{Fault, panicked},
    grpc::{GrpcFace, infer, opaque, stream},
    rest::Rest,
};
use crate::{
    body::{read, reply::ReplyBody, timeout::BodyTimeout},
    config::{BesideService, FunctionHook, SpanHook},
    oip::grpc::methods::SERVICE,
    stack::Stack,
    sticky::Client,
};

/// The extensions of the Open Inference Protocol that work here, as the server metadata tells them.
pub(crate) const EXTENSIONS: &[&str] = &[
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "parameters",
    "statistics",
];

/// The server's name in its metadata.
pub(crate) const SERVER: &str = "berth";

/// Answers requests. One per gateway, shared by all connections.
pub(crate) struct Ingress {
    rest: Rest,
    grpc: GrpcInferenceServiceServer<GrpcFace>,
    spans: Option<SpanHook>,
    /// The longest pause inside the body of a call that is no stream.
    body_idle: Duration,
    guard: Guard,
    beside: Option<BesideService>,
}

impl Ingress {
    pub(crate) fn new(
        stack: Arc<Stack>,
        version: Arc<str>,
        spans: Option<SpanHook>,
        (guard, functions, beside): (Guard, Arc<OnceLock<FunctionHook>>, Option<BesideService>),
    ) -> Arc<Self> {
        // Answers are never compressed: most gRPC clients say that they accept gzip without wanting it, and tensors
        // hardly shrink. Compressed requests are taken.
        let grpc = GrpcInferenceServiceServer::new(GrpcFace::new(Arc::clone(&stack), Arc::clone(&version)))
            .max_decoding_message_size(stack.limits.body)
            .max_encoding_message_size(usize::MAX)
            .accept_compressed(tonic::codec::CompressionEncoding::Gzip)
            .accept_compressed(tonic::codec::CompressionEncoding::Deflate);
        let body_idle = stack.limits.body_idle;
        Arc::new(Self { rest: Rest::new(stack, version, guard, functions), grpc, spans, body_idle, guard, beside })
    }

    /// Notes the client's address where an alias asks for it.
    pub(crate) fn note_client(&self, request: &mut Request<Incoming>, client: IpAddr) {
        if self.rest.stack().routes.any_sticky_client() {
            request.extensions_mut().insert(Client(client));
        }
    }

    /// Answers one request; never fails.
    ///
    /// The future is boxed because its callers move it several times: hyper into a stream, that into its executor.
    pub(crate) fn serve(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Response<ReplyBody>> {
        match self.span(request.headers()) {
            None => Box::pin(async move { self.caught(request).await }),
            Some(span) => Box::pin(async move { self.caught(request).instrument(span).await }),
        }
    }

    fn span(&self, headers: &HeaderMap) -> Option<tracing::Span> {
        match &self.spans {
            Some(hook) => hook(headers),
            None => tracing::enabled!(tracing::Level::DEBUG).then(|| tracing::debug_span!("request")),
        }
    }

    async fn caught(&self, request: Request<Incoming>) -> Response<ReplyBody> {
        let grpc = is_grpc(request.headers());
        match AssertUnwindSafe(self.answer(request, grpc)).catch_unwind().await {
            Ok(response) => response,
            Err(_) => {
                let fault = Fault::from(panicked());
                if grpc { tonic::Status::from(fault).into_http() } else { fault.into_response() }
            }
        }
    }

    fn admit(&self, request: &mut Request<Incoming>, grpc: bool) -> Result<(), Fault> {
        let path = request.uri().path();
        let need = match grpc {
            true => access::of_grpc(path, self.beside.as_ref().map_or(&[][..], |(paths, _)| paths)),
            false => access::of_rest(request.method(), path),
        };
        access::admit(&self.rest.stack().access, request, need)
    }

    async fn answer(&self, mut request: Request<Incoming>, grpc: bool) -> Response<ReplyBody> {
        let stack = self.rest.stack();
        if stack.access.is_required()
            && let Err(fault) = self.admit(&mut request, grpc)
        {
            if grpc {
                return tonic::Status::from(fault).into_http();
            }
            Box::pin(read::discard(request.into_body())).await;
            return fault.into_response();
        }
        if !grpc {
            return self.rest.answer(request).await;
        }
        if infer::takes(&request) {
            return infer::answer(stack, request).await;
        }
        if stream::takes(&request) {
            return stream::answer(Arc::clone(stack), request);
        }
        if !request.uri().path().starts_with(SERVICE) {
            let path = request.uri().path();
            let ours = |paths: &[&str]| paths.iter().any(|prefix| path.starts_with(prefix));
            if let Some((_, hook)) = self.beside.as_ref().filter(|(paths, _)| ours(paths)) {
                return hook(request).await.map(|body| ReplyBody::Grpc(tonic::body::Body::new(body)));
            }
            return Box::pin(opaque::answer(stack, request)).await;
        }
        if grpc::changes(request.uri().path())
            && let Err(foreign) = self.guard.check(request.uri(), request.headers())
        {
            return tonic::Status::from(Fault::from(foreign)).into_http();
        }
        let Ok(response) = self.grpc.clone().call(request.map(|body| BodyTimeout::new(body, self.body_idle))).await;
        response.map(ReplyBody::Grpc)
    }
}

/// Says which deployment answered, where the client did not name one.
pub(crate) const DEPLOYMENT: HeaderName = HeaderName::from_static("berth-deployment");

/// Names the namespace of the models that a request is about.
const NAMESPACE: &str = "berth-namespace";

/// The namespace in the header of a request, else the default one. One that is not even text is none that there is.
fn namespace(headers: &HeaderMap) -> &str {
    match headers.get(NAMESPACE).map(|value| value.to_str().unwrap_or("?")) {
        None | Some("") => DEFAULT_NAMESPACE,
        Some(namespace) => namespace,
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let rest = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}
