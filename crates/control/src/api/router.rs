//! Routes each request to this node's controller or to the leader.
//!
//! ```text
//! request ─┬ /dashboard, /dashboard/… ──────────▶ this node, whoever leads
//!          ├ /healthz, /readyz, /version, /metrics of a node that follows ──▶ this node
//!          ├ this node leads ─────────▶ the router of this term
//!          ├ another leads ───────────▶ relay: the same request to the port of that node, once
//!          └ nobody is known to lead ─▶ 503 NoLeader
//! ```
//! A term has a controller of its own, and so a router of its own; watches of an earlier term end with it.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{Router, extract::Request, response::IntoResponse, response::Response};
use berth_audit::AuditLog;
use berth_peer::{
    Caller, PeerBody, Peers,
    joining::{Issued, RenewRequest},
    pki::NodeCertificate,
    port::{RequestBody, answer_whole},
};
use berth_spec::{Class, Epoch, WorkerId};
use berth_wire::{access::Access, api::ErrorInfo, request_id::RequestId};
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::{sync::watch, time::MissedTickBehavior};
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::ServiceExt;
use tracing::Instrument as _;

use super::{
    ApiDependencies, admit,
    certify::Certifier,
    dashboard,
    error::ApiError,
    named,
    peer_queries::{self, OWN, PeerQueries},
    recorder::{self, Recorder},
    relay::{self, RELAY},
    rest, revocations,
    service::Service,
    tokens,
    top::{Sampler, WINDOW},
    trail::{self, Trail},
};
use crate::{Handle, leadership::LeadershipView};

/// Connection to the leader.
#[derive(Clone)]
pub struct Relay {
    /// Connections to other nodes.
    pub peers: Peers,
    /// Leader found by this node's uplink, for nodes without the controller role.
    pub found: Option<watch::Receiver<Option<(WorkerId, Epoch)>>>,
}

/// Answers requests of the control API, here or elsewhere. Cheap to clone; clones are one.
#[derive(Clone)]
pub struct ApiRouter(Arc<Inner>);

struct Inner {
    leadership: watch::Receiver<LeadershipView>,
    relay: Option<Relay>,
    dependencies: ApiDependencies,
    /// Recent activity of this node's gateway.
    sampler: Arc<Sampler>,
    /// Figures of the last day.
    recorder: Arc<Recorder>,
    /// Ends watches, which would not end by themselves.
    stop: CancellationToken,
    term: Mutex<Option<TermRouter>>,
}

struct TermRouter {
    epoch: Epoch,
    router: Router,
    _over: DropGuard,
}

impl ApiRouter {
    /// `relay` is `None` for a process that is alone.
    #[must_use]
    pub fn new(
        leadership: watch::Receiver<LeadershipView>,
        relay: Option<Relay>,
        dependencies: ApiDependencies,
    ) -> Self {
        let sampler = Arc::new(Sampler::new(Arc::clone(&dependencies.top), WINDOW));
        let recorder = Arc::new(Recorder::new(Arc::clone(&dependencies.top)));
        let (stop, term) = (CancellationToken::new(), Mutex::new(None));
        Self(Arc::new(Inner { leadership, relay, dependencies, sampler, recorder, stop, term }))
    }

    /// The API of a process that is alone: it always answers itself.
    #[must_use]
    pub fn alone(handle: Handle, dependencies: ApiDependencies) -> Self {
        Self::new(LeadershipView::alone(handle), None, dependencies)
    }

    /// Ends all watches: the port is closing.
    pub(super) fn stop(&self) {
        self.0.stop.cancel();
    }

    /// Answers a request of a client.
    pub async fn answer(&self, mut request: Request) -> Response {
        if let Some(file) = dashboard::answer(request.uri().path()).filter(|_| request.method().is_safe()) {
            return file;
        }
        if let Some(router) = self.router() {
            return self.decided(router, request).await;
        }
        let trail = Trail::begin(&self.0.dependencies.audit, &mut request);
        let response = self.elsewhere(request).await;
        // The leader records what it answered; here is only what did not get there.
        if let Some(trail) = trail.filter(|_| response.extensions().get::<ErrorInfo>().is_some()) {
            let outcome = trail::outcome(&response);
            trail.end(&self.0.dependencies.audit, outcome).await;
        }
        response
    }

    /// Answers a request where another node leads, or none.
    async fn elsewhere(&self, request: Request) -> Response {
        let leader = self.leader();
        if let Some(local) = relay::local(request.uri().path(), &self.0.dependencies, leader.is_some()).await {
            return local;
        }
        match (leader, &self.0.relay) {
            (Some((leader, _)), Some(relay)) => relay::send(&relay.peers, &leader, request).await,
            _ => relay::nobody(),
        }
    }

    /// Answers a request that another node relayed here, because it takes this one for the leader; its path begins with
    /// [`RELAY`]. Only here: if this node does not lead, the other one is to ask again when it knows more.
    pub fn relayed(
        &self,
        caller: &Caller,
        request: http::Request<Incoming>,
    ) -> BoxFuture<'static, http::Response<PeerBody>> {
        let (router, caller) = (self.clone(), caller.clone());
        Box::pin(answer_whole(request, |request| router.answer_relayed(caller, request)))
    }

    async fn answer_relayed(self, caller: Caller, request: http::Request<RequestBody>) -> http::Response<PeerBody> {
        let mut request = request.map(axum::body::Body::new);
        let id = RequestId::settle(request.headers_mut());
        let request = relay::stripped(request).and_then(|mut request| {
            admit::relayed(&self.0.dependencies.access, &mut request)?;
            Ok(request)
        });
        let response = match (self.router(), request) {
            (Some(terms), Ok(request)) => self.decided(terms, request).instrument(named::span(&id)).await,
            (None, Ok(_)) => {
                tracing::debug!(event = "relay_refused", %caller, "a relayed request came to a node that does not lead");
                relay::nobody()
            }
            (_, Err(error)) => error.into_response(),
        };
        named::answered(response, id).map(|body| body.map_err(Into::into).boxed_unsync())
    }

    /// Answers a request where this node leads, and records what it changed.
    async fn decided(&self, router: Router, mut request: Request) -> Response {
        let audit = &self.0.dependencies.audit;
        let Some(trail) = Trail::begin(audit, &mut request) else { return routed(router, request).await };
        let response = match audit.check() {
            Ok(()) => routed(router, request).await,
            Err(why) => ApiError::new(Class::Stalled, why.to_string()).into_response(),
        };
        let handle = match &*self.0.leadership.borrow() {
            LeadershipView::Leading { handle, .. } => Some(handle.clone()),
            LeadershipView::Following { .. } => None,
        };
        let outcome = trail::outcome(&response);
        if let (Some(event), Some(handle)) = (trail.end(audit, outcome).await, handle)
            && let Err(error) = handle.note(event).await
        {
            tracing::debug!(event = "event_not_kept", %error);
        }
        response
    }

    /// Makes the router of each term as it begins, so that what stands beside the API goes on without a first request.
    pub(super) async fn follow_terms(self) {
        let mut leadership = self.0.leadership.clone();
        loop {
            drop(self.router());
            tokio::select! {
                changed = leadership.changed() => if changed.is_err() { return },
                () = self.0.stop.cancelled() => return,
            }
        }
    }

    /// Learns of tokens, for as long as it is polled.
    pub(super) async fn follow_tokens(self) {
        let inner = &*self.0;
        let peers = inner.relay.as_ref().map(|relay| relay.peers.clone());
        let leader = || self.leader().map(|(leader, _)| leader);
        let first = inner.dependencies.admin_token.as_deref();
        tokens::follow(Arc::clone(&inner.dependencies.access), inner.leadership.clone(), peers, leader, first).await;
    }

    /// Learns of revoked certificates, for as long as it is polled.
    pub(super) async fn follow_revocations(self) {
        let Some(relay) = &self.0.relay else { return };
        revocations::follow(&relay.peers, self.0.leadership.clone(), || self.leader().map(|(leader, _)| leader)).await;
    }

    /// The audit log.
    pub(super) fn audit(&self) -> AuditLog {
        self.0.dependencies.audit.clone()
    }

    /// Tokens, and if one is needed.
    pub(super) fn access(&self) -> Arc<Access> {
        Arc::clone(&self.0.dependencies.access)
    }

    /// True if [`ApiRouter::relayed`] answers this path on the peer port.
    #[must_use]
    pub fn is_relayed(path: &str) -> bool {
        path.strip_prefix(RELAY).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Answers what another node asks of this one; its path begins with [`OWN`].
    pub fn own(&self, request: &http::Request<Incoming>) -> BoxFuture<'static, http::Response<PeerBody>> {
        let (uri, Inner { sampler, recorder, dependencies, relay, .. }) = (request.uri(), &*self.0);
        let identity = relay.as_ref().map(|relay| relay.peers.identity());
        let response = peer_queries::answer(uri.path(), uri.query(), sampler, recorder, dependencies, identity);
        Box::pin(std::future::ready(response.map(|body| body.map_err(Into::into).boxed_unsync())))
    }

    /// True if this node issues certificates to nodes.
    #[must_use]
    pub fn issues(&self) -> bool {
        self.0.dependencies.issuing.is_some()
    }

    /// Uses the files of the CA as they change, for as long as it is polled. It ends where this node has none.
    pub async fn follow_authority(&self) {
        if let Some(issuing) = &self.0.dependencies.issuing {
            issuing.follow().await;
        }
    }

    /// Digest of the CAs and keys of gossip that this node is to have ([`Identity::trust`](berth_peer::Identity::trust)), and the leader that
    /// says so; none of it: this node, which has the CA. `None`: nobody says.
    pub async fn trust(&self) -> Option<(String, Option<WorkerId>)> {
        if let Some(issuing) = &self.0.dependencies.issuing {
            return Some((issuing.authority().trust(), None));
        }
        self.trust_of_leader().await.map(|(trust, leader)| (trust, Some(leader)))
    }

    /// The same digest by the leader's CA, and the leader. `None`: this node leads, or the leader does not say.
    pub async fn trust_of_leader(&self) -> Option<(String, WorkerId)> {
        let (leader, _) = self.leader()?;
        match peer_queries::trust(&self.0.relay.as_ref()?.peers, &leader).await {
            Ok(trust) => Some((trust, leader)),
            Err(why) => {
                tracing::debug!(event = "authority_unread", %leader, why);
                None
            }
        }
    }

    /// Answers a node that asks for a certificate: `caller` shows its present one; `None`: it has none yet.
    pub fn certify(
        &self,
        caller: Option<&Caller>,
        request: http::Request<Incoming>,
    ) -> BoxFuture<'static, http::Response<PeerBody>> {
        let certifier = self.certifier();
        let caller = caller.cloned();
        Box::pin(answer_whole(request, |request| async move {
            match caller {
                Some(caller) => certifier.renew(caller, request).await,
                None => certifier.join(request).await,
            }
        }))
    }

    /// Gives this node its own next certificate, where it has the CA.
    ///
    /// # Errors
    /// Problem and remedy.
    pub async fn certify_self(&self, present: &NodeCertificate, request: String) -> Result<Issued, String> {
        let certifier = self.certifier();
        certifier.next(present, RenewRequest { request }).await.map_err(|refusal| refusal.error)
    }

    fn certifier(&self) -> Certifier {
        let inner = &self.0;
        let handle = match &*inner.leadership.borrow() {
            LeadershipView::Leading { handle, .. } => Some(handle.clone()),
            LeadershipView::Following { .. } => None,
        };
        let revocations = inner.relay.as_ref().map(|relay| relay.peers.identity().revocations());
        Certifier {
            issuing: inner.dependencies.issuing.clone(),
            handle,
            members: (inner.dependencies.members)(),
            revocations: revocations.unwrap_or_default(),
            audit: inner.dependencies.audit.clone(),
        }
    }

    /// True if [`ApiRouter::own`] answers this path on the peer port.
    #[must_use]
    pub fn is_own(path: &str) -> bool {
        path.starts_with(OWN)
    }

    /// Samples figures for the history, for as long as it is polled.
    pub(super) async fn record(self) {
        let mut ticks = tokio::time::interval(recorder::SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let leading = match &*self.0.leadership.borrow() {
                LeadershipView::Leading { handle, .. } => Some(handle.clone()),
                LeadershipView::Following { .. } => None,
            };
            let workers = match leading {
                Some(handle) => handle.workers().await.unwrap_or_default(),
                None => Vec::new(),
            };
            // With many models that takes a while: not on a thread that answers.
            let recorder = Arc::clone(&self.0.recorder);
            let sample = move || recorder.sample(peer_queries::now(), &workers);
            if tokio::task::spawn_blocking(sample).await.is_err() {
                tracing::error!(event = "history_unsampled", "taking a sample for the history panicked");
            }
        }
    }

    fn leader(&self) -> Option<(WorkerId, Epoch)> {
        relay::later(&self.0.leadership.borrow(), self.0.relay.as_ref())
    }

    /// The router, where this node leads.
    fn router(&self) -> Option<Router> {
        let mut term = self.0.term.lock().unwrap_or_else(PoisonError::into_inner);
        let (handle, epoch) = match &*self.0.leadership.borrow() {
            LeadershipView::Leading { handle, epoch } => (handle.clone(), *epoch),
            LeadershipView::Following { .. } => {
                *term = None;
                return None;
            }
        };
        let current = term.as_ref().filter(|term| term.epoch == epoch);
        if let Some(current) = current {
            return Some(current.router.clone());
        }
        let over = self.0.stop.child_token();
        let peer_queries = PeerQueries(self.0.relay.as_ref().map(|relay| relay.peers.clone()));
        let beside = self.0.dependencies.beside.as_ref().map(|beside| beside(handle.clone()));
        let (sampler, recorder) = (Arc::clone(&self.0.sampler), Arc::clone(&self.0.recorder));
        let dependencies = self.0.dependencies.clone();
        let service = Service::new(handle, dependencies, sampler, recorder, peer_queries, over.clone());
        let mut router = rest::router(Arc::new(service));
        if let Some(beside) = beside {
            // Its paths come first; the fallback of the API answers the rest.
            router = router.merge(beside);
        }
        *term = Some(TermRouter { epoch, router: router.clone(), _over: over.drop_guard() });
        Some(router)
    }
}

async fn routed(router: Router, request: Request) -> Response {
    match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
