//! From an HTTP request to an answer, whichever protocol it speaks.
//!
//! `application/grpc` goes to the gRPC service, everything else to REST; both on one port, over HTTP/1.1 and HTTP/2. A
//! panic anywhere below fails its own request and nothing else.

pub(crate) mod access;
mod error_response;
pub(crate) mod grpc;
mod model_name;
mod path;
pub(crate) mod peer;
mod rest;
mod settings;
mod trail;

use std::{
    future::ready,
    net::IpAddr,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, OnceLock},
    time::Duration,
};

use berth_peer::port::discard;
use berth_spec::{InferError, id::DEFAULT_NAMESPACE, inference::Shed};
use berth_wire::{
    access::{Arrival, Resource},
    api::AuditPort,
    guard::Guard,
    oip::grpc_inference_service_server::GrpcInferenceServiceServer,
    request_id::RequestId,
};
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderName, Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::{sync::Semaphore, time::Instant};
use tower_service::Service as _;
use tracing::Instrument as _;

use self::{
    error_response::{ErrorResponse, named, panicked},
    grpc::{GrpcFace, infer, introspection, introspection::Introspection, opaque, stream},
    rest::Rest,
};
use crate::{
    body::{
        read::{self, Pace},
        reply::{ReplyBody, counted_message},
        timeout::BodyTimeout,
        watched::watched,
    },
    config::{BesideHook, BesideService, FunctionHook, SpanHook},
    oip::grpc::{
        frame::FRAME_PREFIX,
        methods::{INFER, SERVICE, STREAM_INFER},
    },
    stack::Stack,
    sticky::Client,
};

/// The server's name in its metadata.
pub(crate) const SERVER: &str = "berth";

/// Calls of a service beside at once. Some wait for a model to be loaded, others for a leader.
const BESIDE_CALLS: usize = 512;

/// The most bytes of such a call: a management call has a few KiB.
const BESIDE_BODY: usize = (1 << 20) + FRAME_PREFIX;

/// The longest until such a call, or one that is no inference, has come. Allows for bad links.
const BESIDE_TIMEOUT: Duration = Duration::from_secs(20);

/// The most bytes of a call that is no inference, as over REST. Some need no token.
const SMALL_CALL: usize = 64 << 10;

/// Answers requests. One per gateway, shared by all connections.
pub(crate) struct Ingress {
    rest: Rest,
    grpc: GrpcInferenceServiceServer<GrpcFace>,
    introspection: Introspection,
    spans: Option<SpanHook>,
    /// The longest pause inside the body of a call that is no stream.
    body_idle: Duration,
    guard: Guard,
    beside: Option<BesideService>,
    /// Places of calls to it.
    beside_calls: Semaphore,
}

impl Ingress {
    pub(crate) fn new(
        stack: Arc<Stack>,
        version: Arc<str>,
        spans: Option<SpanHook>,
        guard: Guard,
        functions: Arc<OnceLock<FunctionHook>>,
        beside: Option<BesideService>,
    ) -> Arc<Self> {
        // Answers are never compressed: most gRPC clients say that they accept gzip without wanting it, and tensors
        // hardly shrink. Compressed requests are taken.
        let grpc = GrpcInferenceServiceServer::new(GrpcFace::new(Arc::clone(&stack), Arc::clone(&version)))
            .max_decoding_message_size(SMALL_CALL)
            .max_encoding_message_size(usize::MAX)
            .accept_compressed(tonic::codec::CompressionEncoding::Gzip)
            .accept_compressed(tonic::codec::CompressionEncoding::Deflate);
        let (body_idle, introspection) = (stack.limits.body_idle, Introspection::new(Arc::clone(&stack)));
        let rest = Rest::new(stack, version, guard, functions);
        let beside_calls = Semaphore::new(BESIDE_CALLS);
        Arc::new(Self { rest, grpc, introspection, spans, body_idle, guard, beside, beside_calls })
    }

    /// Notes the client's address where an alias asks for it, and that it is on this machine where that is of use.
    pub(crate) fn note_client(&self, request: &mut Request<Incoming>, client: IpAddr) {
        if let Some(regions) = self.rest.stack().regions.as_ref().filter(|_| client.to_canonical().is_loopback()) {
            regions.allow(request.extensions_mut());
        }
        if self.rest.stack().routes.any_sticky_client() {
            request.extensions_mut().insert(Client(client));
        }
    }

    /// Answers one request; never fails.
    ///
    /// The future is small and its work boxed, because hyper and the executor move it.
    pub(crate) fn serve(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        from: Option<IpAddr>,
    ) -> impl Future<Output = Response<ReplyBody>> + Send + use<> {
        let id = RequestId::settle(request.headers_mut());
        let grpc = is_grpc(request.headers());
        let span = self.span(request.headers(), &id);
        let answer = catch_unwind(AssertUnwindSafe(|| self.answer(request, grpc, from)));
        let answer = answer.unwrap_or_else(|panic| Box::pin(async { resume_unwind(panic) }));
        let answer = match span {
            None => answer,
            Some(span) => traced(answer, grpc, id.clone(), span),
        };
        AssertUnwindSafe(answer)
            .catch_unwind()
            .map(move |ended| named(ended.unwrap_or_else(|_| crashed(grpc, &id)), id))
    }

    fn span(&self, headers: &HeaderMap, id: &RequestId) -> Option<tracing::Span> {
        match &self.spans {
            Some(hook) => {
                let traced = self.rest.stack().traces.as_ref().is_none_or(|traces| traces.takes(headers));
                if traced { hook(headers) } else { None }
            }
            None => tracing::enabled!(tracing::Level::DEBUG)
                .then(|| tracing::debug_span!("request", request_id = id.as_str())),
        }
    }

    fn admit(&self, request: &mut Request<Incoming>, grpc: bool, from: Option<IpAddr>) -> Result<(), ErrorResponse> {
        let path = request.uri().path();
        let need = match grpc {
            true => match introspection::action(path, request.headers()) {
                Some(action) => (action, Resource::Somewhere),
                None => access::of_grpc(path, self.beside.as_ref().map_or(&[][..], |beside| beside.prefixes)),
            },
            false => access::of_rest(request.method(), path),
        };
        let stack = self.rest.stack();
        let admitted = access::admit(&stack.access, request, need);
        if let Err(error) = &admitted {
            trail::refused(&stack.audit, request, need.0, from, error);
        }
        admitted
    }

    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        grpc: bool,
        from: Option<IpAddr>,
    ) -> BoxFuture<'static, Response<ReplyBody>> {
        if self.rest.stack().access.is_required() {
            Box::pin(self.checked(request, grpc, from))
        } else {
            self.admitted(request, grpc, from)
        }
    }

    /// Answers whom the access rules let in, and refuses others.
    async fn checked(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        grpc: bool,
        from: Option<IpAddr>,
    ) -> Response<ReplyBody> {
        if let Err(error) = self.admit(&mut request, grpc, from) {
            if grpc {
                return tonic::Status::from(error).into_http();
            }
            let (head, body) = request.into_parts();
            Box::pin(discard(&head.headers, body)).await;
            return error.into_response();
        }
        let stack = Arc::clone(self.rest.stack());
        let asker = access::asker(&stack.access, request.extensions());
        let response = self.admitted(request, grpc, from).await;
        response.map(|body| watched(body, &stack.access, asker, grpc))
    }

    /// A call of a service beside. It is read here, within the bounds of the port: the service may wait for a leader, and keeps
    /// the request until there is one.
    async fn call_beside(&self, hook: &BesideHook, request: Request<Incoming>) -> Response<ReplyBody> {
        let Ok(_place) = self.beside_calls.try_acquire() else {
            let message = format!("{BESIDE_CALLS} calls of this service are being answered: try again in a second");
            let busy = InferError::shed(Shed::QueueFull, message, Duration::from_secs(1));
            return tonic::Status::from(ErrorResponse::from(busy)).into_http();
        };
        let (head, mut body) = request.into_parts();
        let pace = Pace { pause: self.body_idle, deadline: Instant::now() + BESIDE_TIMEOUT };
        match read::read(&mut body, BESIDE_BODY, pace, &self.rest.stack().memory).await {
            Ok(whole) => {
                let answer = hook(Request::from_parts(head, whole)).await;
                answer.map(|body| ReplyBody::Grpc(tonic::body::Body::new(body)))
            }
            Err(error) => tonic::Status::from(ErrorResponse::from(error)).into_http(),
        }
    }

    /// Answers a request that was let in. Each kind has a future of its own size: an inference does not pay for the state of others.
    fn admitted(
        self: Arc<Self>,
        request: Request<Incoming>,
        grpc: bool,
        from: Option<IpAddr>,
    ) -> BoxFuture<'static, Response<ReplyBody>> {
        let stack = self.rest.stack();
        if !grpc {
            return Box::pin(async move { self.rest.answer(request, from).await });
        }
        if opaque::takes(stack, &request) {
            return Box::pin(async move { opaque::answer(self.rest.stack(), request).await });
        }
        if let Some(coding) = infer::unary_coding(&request) {
            return infer::answer(Arc::clone(stack), request, coding);
        }
        if stream::takes(&request) {
            return Box::pin(ready(stream::answer(Arc::clone(stack), request)));
        }
        Box::pin(async move { self.other(request, from).await })
    }

    /// Answers a gRPC call that is no inference.
    async fn other(&self, mut request: Request<Incoming>, from: Option<IpAddr>) -> Response<ReplyBody> {
        let stack = self.rest.stack();
        if !request.uri().path().starts_with(SERVICE) {
            let path = request.uri().path();
            let ours = |prefixes: &[&str]| prefixes.iter().any(|prefix| path.starts_with(prefix));
            if let Some(beside) = self.beside.as_ref().filter(|beside| ours(beside.prefixes)) {
                request.extensions_mut().insert(arrival(from));
                return Box::pin(self.call_beside(&beside.hook, request)).await;
            }
            if introspection::action(path, request.headers()).is_some() {
                let request = request.map(|body| BodyTimeout::new(body, self.body_idle));
                return self.introspection.call(request).await.map(ReplyBody::Grpc);
            }
            return Box::pin(opaque::answer(stack, request)).await;
        }
        if grpc::changes(request.uri().path()) {
            if let Err(foreign) = self.guard.check(request.uri(), request.headers()) {
                return tonic::Status::from(ErrorResponse::from(foreign)).into_http();
            }
            request.extensions_mut().insert(arrival(from));
        }
        let path = request.uri().path().to_owned();
        let (head, mut body) = request.into_parts();
        let whole = match &*path {
            // In a coding that is not there: the service says so from the head alone.
            INFER | STREAM_INFER => Bytes::new(),
            _ => {
                let pace = Pace { pause: self.body_idle, deadline: Instant::now() + BESIDE_TIMEOUT };
                match read::read(&mut body, SMALL_CALL + FRAME_PREFIX, pace, &stack.memory).await {
                    Ok(whole) => whole,
                    Err(error) => return tonic::Status::from(ErrorResponse::from(error)).into_http(),
                }
            }
        };
        let Ok(response) = self.grpc.clone().call(Request::from_parts(head, Full::new(whole))).await;
        // The generated service says no more than the code.
        if response.headers().get("grpc-status").is_some_and(|code| code == "12")
            && !response.headers().contains_key("grpc-message")
        {
            return tonic::Status::unimplemented(format!("no such method: {path}")).into_http();
        }
        counted_message(response, &stack.memory).await
    }
}

/// Says which deployment answered, where the client did not name one.
pub(crate) const DEPLOYMENT: HeaderName = HeaderName::from_static("berth-deployment");

/// Names the namespace of the models that a request is about.
static NAMESPACE: HeaderName = HeaderName::from_static("berth-namespace");

/// The namespace in the header of a request, else the default one. One that is not even text is none that there is.
fn namespace(headers: &HeaderMap) -> &str {
    match headers.get(&NAMESPACE).map(|value| value.to_str().unwrap_or("?")) {
        None | Some("") => DEFAULT_NAMESPACE,
        Some(namespace) => namespace,
    }
}

/// The answer to a request with a span, in which a panic is told, too.
fn traced(
    answer: BoxFuture<'static, Response<ReplyBody>>,
    grpc: bool,
    id: RequestId,
    span: tracing::Span,
) -> BoxFuture<'static, Response<ReplyBody>> {
    let caught = AssertUnwindSafe(answer).catch_unwind();
    Box::pin(caught.map(move |ended| ended.unwrap_or_else(|_| crashed(grpc, &id))).instrument(span))
}

/// The answer to a request whose code panicked.
fn crashed(grpc: bool, id: &RequestId) -> Response<ReplyBody> {
    let error = ErrorResponse::from(panicked(Some(id)));
    if grpc { tonic::Status::from(error).into_http() } else { error.into_response() }
}

/// The way by which a request of this client came.
fn arrival(address: Option<IpAddr>) -> Arrival {
    Arrival { port: AuditPort::Inference, address }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let rest = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}
