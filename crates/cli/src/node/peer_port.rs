//! The port for other nodes: who is asked for what.
//!
//! ```text
//! /berth.fleet.v1.Fleet/…   streams of workers and gateways    ──▶ the controller, if it decides here
//! /relay/…                  calls of the control API           ──▶ the same
//! /own/…                    what this node tells of itself     ──▶ its gateway's counters, its rules
//! /certify/renew            the next certificate of a node     ──▶ the CA, if it is here
//! /certify/join             the first one, by a token          ──▶ the same; the only thing that needs no certificate
//! /functions/…, /namespaces/NAMESPACE/functions/…              ──▶ the functions of this node, if it leads
//! /functions-artifacts…     artifacts of functions            ──▶ the disk of this node, if it leads; for controllers only
//! everything else           inference that was forwarded here  ──▶ the replicas of this node
//! ```
//! What a node may ask is decided by the roles in its certificate: a worker relays no calls and forwards no requests. It learns which
//! certificates and tokens it must refuse itself.

use std::sync::{Arc, LazyLock};

use berth_control::{api::ApiRouter, fleet::FleetService};
use berth_mesh::PeerService;
use berth_peer::{
    Caller, PeerBody, PeerHandler,
    joining::{JOIN, RENEW},
    port::{Damped, answer_whole},
};
use berth_wire::api::{ErrorBody, ErrorInfo};
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::function_artifacts::ArtifactPort;

/// Paths that every node asks the leader for: it refuses revoked certificates on its peer port, and tokens that have ended on its control
/// API, and follows the CA. Tokens are told as hashes, CAs and keys as a digest.
const FOR_ALL: [&str; 3] = ["/own/revocations", "/own/tokens", "/own/authority"];

/// A node that asks for more than its certificate is for may ask again and again.
static ROLES_REFUSED: LazyLock<Damped> = LazyLock::new(Damped::default);

/// Handler of requests from other nodes.
pub(super) struct PeerPort {
    pub(super) fleet: FleetService,
    pub(super) front: ApiRouter,
    pub(super) inference: PeerService,
    /// `None`: this node runs no functions.
    pub(super) artifacts: Option<ArtifactPort>,
}

impl PeerHandler for PeerPort {
    fn serve(self: Arc<Self>, caller: &Caller, request: Request<Incoming>) -> BoxFuture<'static, Response<PeerBody>> {
        let path = request.uri().path();
        let is_of_all = path == RENEW || FOR_ALL.contains(&path) || path.starts_with(berth_control::fleet::PATH);
        let is_of_artifacts = ArtifactPort::is_for(path);
        let (may_ask, role) =
            if is_of_artifacts { (caller.roles.controller, "controller") } else { (may_ask(caller), "gateway") };
        if !is_of_all && !may_ask {
            if let Some(times) = ROLES_REFUSED.tell(Instant::now()) {
                tracing::warn!(event = "node_role_refused", node = %caller, role, certified = %caller.roles, times);
            }
            return unread(request, refused(caller));
        }
        if is_of_artifacts {
            return match &self.artifacts {
                Some(artifacts) => artifacts.answer(request),
                None => unread(request, nothing()),
            };
        }
        if path == RENEW {
            self.front.certify(Some(caller), request)
        } else if path.starts_with(berth_control::fleet::PATH) {
            self.fleet.serve(caller, request)
        } else if ApiRouter::is_relayed(path) {
            self.front.relayed(caller, request)
        } else if ApiRouter::is_own(path) {
            self.front.own(&request)
        } else {
            self.inference.serve(request)
        }
    }

    fn issues(&self) -> bool {
        self.front.issues()
    }

    fn join(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Response<PeerBody>> {
        match request.uri().path() {
            JOIN => self.front.certify(None, request),
            _ => unread(request, nothing()),
        }
    }
}

/// This answer, whatever the body of the request says.
fn unread(request: Request<Incoming>, response: Response<PeerBody>) -> BoxFuture<'static, Response<PeerBody>> {
    Box::pin(answer_whole(request, |_| std::future::ready(response)))
}

/// Answer where there is nothing: to a node without a certificate that asks for anything but one, and of a node without functions.
fn nothing() -> Response<PeerBody> {
    let mut response = Response::new(berth_peer::full(Vec::new()));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// Nodes that take requests of clients pass them on: those with the role gateway, or that may lead.
fn may_ask(caller: &Caller) -> bool {
    caller.roles.gateway || caller.roles.controller
}

fn refused(caller: &Caller) -> Response<PeerBody> {
    let message = format!(
        "the certificate of {caller} is for {}: only nodes with the role gateway or controller pass on requests and calls of the \
         control API, and only those with the role controller copy artifacts of functions; ask one of those",
        caller.roles
    );
    let code = StatusCode::FORBIDDEN;
    let error = ErrorInfo {
        code: code.as_u16(),
        reason: "Forbidden".to_owned(),
        message,
        request_id: None,
        details: Vec::new(),
    };
    let body = serde_json::to_vec(&ErrorBody { error }).unwrap_or_default();
    let mut response = Response::new(berth_peer::full(body));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
