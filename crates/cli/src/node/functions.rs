//! The way of a request to a function: the node that leads runs functions, and every gateway answers for them.
//!
//! ```text
//! request ─┬ this node leads ─────────────────────▶ its functions
//!          ├ another leads ─┬ a client has sent it ─▶ the peer port of that node, once
//!          │                └ a node has sent it ───▶ 503: it asks again when it knows more
//!          └ nobody leads ──┬ this node did last ───▶ its functions: nobody has changed them since
//!                           └ else ─────────────────▶ 503
//! ```

use std::{sync::Arc, time::Duration};

use berth_control::{
    api::{NoAnswer, Relay},
    leadership::LeadershipView,
};
use berth_functions::source::Host;
use berth_mesh::{
    PropagateHook,
    config::{FunctionHook, FunctionSender},
};
use berth_peer::PeerBody;
use berth_spec::WorkerId;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use tokio::sync::watch;

/// Limit for the answer of another node. Waiting, the start of a process and the longest function together take less.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(780);

/// Nodes tell each other by it that nothing was run. Clients see the status.
const NOT_RUN: HeaderName = HeaderName::from_static("berth-not-run");

/// Parts that requests to functions go to.
pub(super) struct FunctionRoute {
    /// Name of this node.
    pub(super) me: WorkerId,
    /// Functions of this node; `None`: it runs none.
    pub(super) host: Option<Arc<Host>>,
    pub(super) leadership: watch::Receiver<LeadershipView>,
    /// `None`: the node is alone.
    pub(super) relay: Option<Relay>,
    /// Has functions continue the traces of requests.
    pub(super) propagate: Option<PropagateHook>,
}

/// The next place of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// The functions of this node.
    Here,
    Leader(WorkerId),
    /// Back to the node that has sent it: this one does not lead.
    Back(WorkerId),
    /// None: nobody leads.
    Nowhere,
}

impl FunctionRoute {
    /// Hook of the gateway and of the peer port.
    pub(super) fn hook(self) -> FunctionHook {
        let route = Arc::new(self);
        Arc::new(move |sender, mut request| {
            if let Some(propagate) = &route.propagate {
                propagate(request.headers_mut());
            }
            let route = Arc::clone(&route);
            Box::pin(async move { route.answer(sender, request).await })
        })
    }

    async fn answer(&self, sender: FunctionSender, request: Request<Bytes>) -> Response<PeerBody> {
        match (self.next(sender), &self.host) {
            (Next::Here, Some(host)) => Arc::clone(host).call(request).await.map(berth_peer::full),
            (Next::Here, None) => {
                let why =
                    format!("the node {} leads and runs no functions: give controllers the role gateway, too", self.me);
                refused(StatusCode::NOT_FOUND, &why)
            }
            (Next::Leader(leader), _) => self.forward(&leader, request).await,
            (Next::Back(leader), _) => again(&format!(
                "the node {} does not lead, {leader} does: nothing was run, try again in a second",
                self.me
            )),
            (Next::Nowhere, _) => {
                again("no controller leads at the moment, and the leader runs functions: try again in a second")
            }
        }
    }

    fn next(&self, sender: FunctionSender) -> Next {
        let view = self.leadership.borrow().clone();
        if view.leads().is_some() {
            return Next::Here;
        }
        let leader = self.relay.as_ref().and_then(|relay| relay.leader(&view)).map(|(leader, _)| leader);
        let is_current = self.host.as_ref().is_some_and(|host| host.is_current());
        next(sender, leader.filter(|leader| *leader != self.me), is_current)
    }

    /// Sends a request to the leader. Its answer is passed on as it comes.
    async fn forward(&self, leader: &WorkerId, request: Request<Bytes>) -> Response<PeerBody> {
        let Some(relay) = &self.relay else { return again("this node is alone and does not lead") };
        let request = request.map(berth_peer::full);
        match relay.ask(leader, request, ANSWER_TIMEOUT).await {
            Ok(mut answer) => {
                answer.headers_mut().remove(NOT_RUN);
                answer
            }
            Err(error @ NoAnswer::NotSent(_)) => again(&format!(
                "the node {leader}, which runs functions, {error}: nothing was run, try again in a second"
            )),
            // It may have been run: only the caller knows if it may be run twice.
            Err(error @ NoAnswer::Broken(_)) => {
                refused(StatusCode::BAD_GATEWAY, &format!("the node {leader}, which runs functions, {error}"))
            }
        }
    }
}

/// The place of a request to a node that does not lead. `is_current`: the functions of this node are those deployed last.
fn next(sender: FunctionSender, leader: Option<WorkerId>, is_current: bool) -> Next {
    match (leader, sender) {
        (Some(leader), FunctionSender::Client) => Next::Leader(leader),
        (Some(leader), FunctionSender::Node) => Next::Back(leader),
        (None, _) if is_current => Next::Here,
        (None, _) => Next::Nowhere,
    }
}

/// A refusal that passes: 503, to be tried again after a second.
fn again(why: &str) -> Response<PeerBody> {
    let mut response = refused(StatusCode::SERVICE_UNAVAILABLE, why);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// A refusal, in the form of those of functions.
fn refused(status: StatusCode, why: &str) -> Response<PeerBody> {
    let mut response = Response::new(berth_peer::full(serde_json::json!({ "error": why }).to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn node(name: &str) -> WorkerId {
        WorkerId::new(name).expect("a name")
    }

    #[test]
    fn a_request_goes_to_the_leader_once_and_without_one_to_who_led_last() {
        use FunctionSender::{Client, Node};
        for (sender, leader, is_current, expected) in [
            (Client, Some("b"), false, Next::Leader(node("b"))),
            (Client, Some("b"), true, Next::Leader(node("b"))),
            (Node, Some("b"), false, Next::Back(node("b"))),
            (Node, Some("b"), true, Next::Back(node("b"))),
            (Client, None, true, Next::Here),
            (Node, None, true, Next::Here),
            (Client, None, false, Next::Nowhere),
            (Node, None, false, Next::Nowhere),
        ] {
            assert_eq!(next(sender, leader.map(node), is_current), expected, "{sender:?} {leader:?} {is_current}");
        }
    }

    #[tokio::test]
    async fn a_node_that_knows_no_leader_says_so() {
        let (me, leadership) = (node("a"), LeadershipView::never());
        let hook = FunctionRoute { me, host: None, leadership, relay: None, propagate: None }.hook();
        let request = Request::post("/functions/words").body(Bytes::from_static(b"{}")).expect("a request");
        let answer = hook(FunctionSender::Client, request).await;
        assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].as_bytes()), (503, b"1".as_slice()));
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        assert!(String::from_utf8_lossy(&body).contains("no controller leads"), "{body:?}");
    }
}
