//! A model's own JSON, at the path that its deployment declares.
//!
//! ```text
//! path ─▶ who answers there? ─▶ GET: what it is
//!                            └▶ POST: the order of every inference (limits, parking, deadline, lease or forwarding) ─▶ Model::call
//! ```
//! Several deployments may declare one path, one for each region. The first of these answers: one with a ready replica in
//! this gateway's region; one with a ready replica; one that requests load; by name. The header `berth-deployment` says
//! which it was.

use std::sync::Arc;

use berth_spec::{InferError, routes::OnMiss};
use berth_wire::access::{Action, Resource};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header, request::Parts};
use hyper::body::Incoming;
use serde_json::json;

use crate::{
    body::{
        memory::RequestMemory,
        reply::{ReplyBody, described},
        upload::Upload,
    },
    deployment::DeploymentState,
    forward::{
        buffered::Failure,
        head::Head,
        run::Codec,
        runner::{LocalOutcome, Runner},
    },
    ingress::{
        DEPLOYMENT,
        access::asker,
        error_response::ErrorResponse,
        rest::{ask, infer},
    },
    offload,
    oip::{
        Encoded,
        content::{Coding, decompress},
    },
    stack::Stack,
};

/// The methods of such a path.
const ALLOWED_METHODS: &str = "GET, HEAD, POST";

/// Paths that the answer to an unknown one names: a line or two.
const MAX_NAMED_PATHS: usize = 10;

/// `body` is left where nobody has touched it, to be discarded.
pub(super) async fn answer(stack: &Stack, head: &Arc<Parts>, body: &mut Option<Incoming>) -> Response<ReplyBody> {
    let path = head.uri.path();
    let path = path.strip_suffix('/').unwrap_or(path);
    let asker = asker(&stack.access, &head.extensions);
    let action = if head.method == Method::POST { Action::Infer } else { Action::ReadModels };
    let known = |entry: &Arc<DeploymentState>| asker.may(action, Resource::Model(entry.name.key())).is_ok();
    let entries: Option<Vec<_>> =
        stack.routes.at(path).map(|entries| entries.iter().filter(|entry| known(entry)).cloned().collect());
    let Some(entries) = entries.filter(|entries| !entries.is_empty()) else {
        return match stack.told() {
            Err(error) => ErrorResponse::from(error).into_response(),
            // The paths of others are none of the sender's business.
            Ok(()) if !asker.is_open() => ErrorResponse::no_such_path().into_response(),
            Ok(()) => {
                ErrorResponse::no_path_but(&stack.routes.paths(MAX_NAMED_PATHS).unwrap_or_default()).into_response()
            }
        };
    };
    let Some(entry) = choose(&entries) else { return ErrorResponse::no_such_path().into_response() };
    let reply = match head.method {
        Method::POST => ask(stack, head, body, entry.name.key(), None, |head, coding| Document { head, coding }).await,
        Method::GET | Method::HEAD => Ok(describe(&entries, entry)),
        _ => Err(ErrorResponse::wrong_verb(ALLOWED_METHODS)),
    };
    let mut response = reply.unwrap_or_else(ErrorResponse::into_response);
    if let Ok(name) = HeaderValue::from_str(&entry.name.coded()) {
        response.headers_mut().insert(DEPLOYMENT, name);
    }
    response
}

/// The deployment that answers at a path, of those that declare it; they come in the order of their names.
fn choose(entries: &[Arc<DeploymentState>]) -> Option<&Arc<DeploymentState>> {
    if let [only] = entries {
        return Some(only);
    }
    entries.iter().min_by_key(|entry| {
        let route = entry.route();
        let wakes = matches!(route.terms.on_miss, OnMiss::Park);
        (!route.any_near(), !route.any_ready(), !wakes)
    })
}

/// The description of a path. A model that is not loaded stays so.
fn describe(entries: &[Arc<DeploymentState>], entry: &DeploymentState) -> Response<ReplyBody> {
    let route = entry.route();
    let target = route.main_version();
    let model = target.and_then(|target| target.replica.as_ref()).map(|replica| Arc::clone(replica.model()));
    let schemas = model.as_ref().and_then(|model| model.schemas());
    let mut described_as = json!({
        "deployment": entry.name.as_str(),
        "version": target.map(|target| &*target.version),
        "ready": route.any_ready(),
    });
    if let Some(schemas) = schemas {
        described_as["input_schema"] = schemas.input.clone();
        described_as["output_schema"] = schemas.output.clone();
    }
    if entries.len() > 1 {
        described_as["deployments"] = entries.iter().map(|entry| entry.name.as_str()).collect();
    }
    described(&described_as)
}

/// A JSON document of the model's own: the head of its request, and how the body is coded.
pub(in crate::ingress) struct Document {
    pub(in crate::ingress) head: Arc<Parts>,
    pub(in crate::ingress) coding: Coding,
}

impl Codec for Document {
    type Answer = Response<ReplyBody>;

    /// A deployment's own path may be one that the nodes use between themselves: a document has a path of its own there.
    fn head(&self, stack: &Stack, _: &DeploymentState) -> Result<Head, InferError> {
        Ok(stack.head(&self.head).at(Uri::from_static("/v2/models/-/call")))
    }

    async fn local<R: Runner>(
        &mut self,
        runner: &mut R,
        upload: &mut Upload,
    ) -> Result<LocalOutcome<Response<ReplyBody>>, Failure> {
        let body = upload.bytes(runner.deadline()).await.map_err(|error| runner.failed(error))?;
        runner.received(body.len());
        let plain =
            plain(body, self.coding, upload.limit(), upload.memory()).await.map_err(|error| runner.failed(error))?;
        match runner.call(plain).await? {
            LocalOutcome::Moved(why) => Ok(LocalOutcome::Moved(why)),
            LocalOutcome::Answered(answer) => {
                runner.sent(answer.len());
                let answer = upload.memory().answer(answer);
                Ok(LocalOutcome::Answered(answered(&self.head.headers, answer).await))
            }
        }
    }

    fn came(&self) -> Option<&Parts> {
        Some(&self.head)
    }
}

/// A body as the model reads it. `limit` is in bytes, after decompression.
pub(super) async fn plain(
    body: Bytes,
    coding: Coding,
    limit: usize,
    memory: &Arc<RequestMemory>,
) -> Result<Bytes, InferError> {
    if coding == Coding::Identity {
        return Ok(body);
    }
    let mut charge = memory.charge();
    offload::run(offload::MIN_BYTES, move || {
        let body = decompress(body, coding, berth_spec::ByteSize(limit as u64), |bytes| charge.grow_to(bytes))?;
        Ok(charge.hold(body))
    })
    .await
}

/// The model's answer, compressed where the client takes that.
pub(super) async fn answered(headers: &HeaderMap, answer: Bytes) -> Response<ReplyBody> {
    let coding = Coding::accepted(headers.get(header::ACCEPT_ENCODING).map(HeaderValue::as_bytes));
    let encoded = Encoded { json: answer, blobs: Vec::new(), binary: false };
    let mut response = infer::response_of(encoded, coding).await;
    *response.status_mut() = StatusCode::OK;
    response
}
