//! Queries all nodes in parallel: recent gateway activity, and settings that controllers must share. The answer lists
//! nodes that timed out.
//!
//! ```text
//! GET /own/top?limit=N ──▶ GatewayTop        GET /own/rules ──▶ Rules
//! GET /own/log?deployment=NAME&after=N&limit=N ──▶ NodeLog
//! GET /own/history?range=hour&deployment=NAME ──▶ GatewayHistory
//! GET /own/audit?after=N&limit=N ──▶ NodeAudit
//! GET /own/tokens ──▶ Snapshot, of hashes      GET /own/uses ──▶ last uses of tokens
//! GET /own/revocations ──▶ Revocations          GET /own/authority ──▶ Trust
//! ```

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use berth_peer::{Identity, Peer, Peers, full, pki::Revocations};
use berth_spec::{Roles, Time, WorkerId, id};
use berth_wire::{
    access::Snapshot,
    api::{NodeAudit, NodeLog, NodeView},
};
use futures::{StreamExt, stream::FuturesUnordered};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    ApiDependencies, audit,
    error::ApiError,
    history::ModelFigures,
    log::{self, Cursor, LogQuery, MOST_LINES},
    query::Query,
    recorder::{GatewayHistory, Recorder},
    top::{GatewayTop, Sampler},
};

/// Path prefix of such requests.
pub const OWN: &str = "/own/";

/// Limit for the answer of another node. Allows for one lost packet across an ocean.
const ANSWER_WITHIN: Duration = Duration::from_millis(750);

/// Largest answer in bytes. A thousand models take half of it.
const ANSWER: usize = 2 << 20;

/// The most models in one answer of `top`; the phase of each is asked for.
pub(super) const MOST_MODELS: usize = 1_000;

/// Asks the leader for all tokens. Fails in words if it does not answer in time.
pub(super) async fn tokens(peers: &Peers, leader: &WorkerId) -> Result<Snapshot, String> {
    let peer = peers.leader_peer(leader).ok_or_else(|| format!("the members do not know {leader}"))?;
    ask(&peer, &format!("{OWN}tokens")).await
}

/// Asks the leader for all revocations. Fails in words if it does not answer in time.
pub(super) async fn revocations(peers: &Peers, leader: &WorkerId) -> Result<Revocations, String> {
    let peer = peers.leader_peer(leader).ok_or_else(|| format!("the members do not know {leader}"))?;
    ask(&peer, &format!("{OWN}revocations")).await
}

/// Digest of the CAs and keys of gossip that nodes are to have by the leader's CA.
pub(super) async fn trust(peers: &Peers, leader: &WorkerId) -> Result<String, String> {
    let peer = peers.leader_peer(leader).ok_or_else(|| format!("the members do not know {leader}"))?;
    // What it claims of itself is held against its certificate when it is dialled.
    if !peer.member().roles.controller {
        return Err(format!("{leader} is no controller"));
    }
    ask(&peer, &format!("{OWN}authority")).await.map(|Trust { trust }| trust)
}

/// The CAs and keys of gossip that nodes are to have, as comparable text.
#[derive(Debug, Serialize, Deserialize)]
struct Trust {
    trust: String,
}

/// Settings that all controllers must share, as comparable text.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Rules {
    rules: Option<String>,
}

/// Connections to the other nodes; `None` for a single node.
#[derive(Clone)]
pub(super) struct PeerQueries(pub(super) Option<Peers>);

impl PeerQueries {
    /// Activity of the other gateways, and the nodes that did not answer.
    pub(super) async fn tops(&self, limit: usize) -> (Vec<GatewayTop>, Vec<WorkerId>) {
        self.gateways(&format!("{OWN}top?limit={limit}")).await
    }

    /// History of the other gateways by this query, and the nodes that did not answer.
    pub(super) async fn histories(&self, query: &str) -> (Vec<Vec<ModelFigures>>, Vec<WorkerId>) {
        let (histories, missing) = self.gateways::<GatewayHistory>(&format!("{OWN}history?{query}")).await;
        (histories.into_iter().map(GatewayHistory::points).collect(), missing)
    }

    /// Last uses of tokens that the other gateways have seen, in seconds since the Unix epoch.
    pub(super) async fn uses(&self) -> Vec<HashMap<String, u64>> {
        self.gateways(&format!("{OWN}uses")).await.0
    }

    /// Recent records of the audit logs of the other nodes, and the nodes that did not answer.
    pub(super) async fn audits(&self, query: &berth_audit::Query, cursor: &Cursor) -> (Vec<NodeAudit>, Vec<String>) {
        let path = |peer: &Peer| format!("{OWN}audit?{}", audit::to_ask(query, cursor.of(peer.name().as_str())));
        self.each(self.of(|_| true), path).await
    }

    /// The recent lines of a model on the other workers, and the nodes that did not answer.
    pub(super) async fn logs(&self, query: &LogQuery, cursor: &Cursor) -> (Vec<NodeLog>, Vec<String>) {
        let name = id::percent_encode(query.deployment.as_str());
        let path = |peer: &Peer| {
            let after = cursor.of(peer.name().as_str());
            format!("{OWN}log?deployment={name}&after={after}&limit={}", query.limit)
        };
        self.each(self.of(|roles| roles.worker), path).await
    }

    /// The answers of these nodes, each to a question of its own, and the nodes that did not answer.
    async fn each<T: DeserializeOwned>(
        &self,
        peers: Vec<Arc<Peer>>,
        path: impl Fn(&Peer) -> String,
    ) -> (Vec<T>, Vec<String>) {
        let mut asked: FuturesUnordered<_> = peers
            .iter()
            .map(|peer| {
                let path = path(peer);
                async move { (peer.name().to_string(), ask::<T>(peer, &path).await) }
            })
            .collect();
        let (mut answers, mut missing) = (Vec::new(), Vec::new());
        while let Some((node, answer)) = asked.next().await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(why) => {
                    tracing::debug!(event = "node_silent", node, why);
                    missing.push(node);
                }
            }
        }
        missing.sort();
        (answers, missing)
    }

    /// The answers of the other gateways to one question, and the nodes that did not answer.
    async fn gateways<T: DeserializeOwned>(&self, path: &str) -> (Vec<T>, Vec<WorkerId>) {
        let peers = self.of(|roles| roles.gateway);
        let mut asked: FuturesUnordered<_> =
            peers.iter().map(|peer| async { (peer.name().clone(), ask::<T>(peer, path).await) }).collect();
        let (mut answers, mut missing) = (Vec::new(), Vec::new());
        while let Some((name, answer)) = asked.next().await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(why) => {
                    tracing::debug!(event = "gateway_silent", node = %name, why);
                    missing.push(name);
                }
            }
        }
        missing.sort();
        (answers, missing)
    }

    /// Says of nodes what is worth knowing: why they do not come to the leader, and where their rules are others than `rules`.
    pub(super) async fn remark(&self, nodes: &mut [NodeView], rules: Option<&str>) {
        let away = |node: &NodeView| matches!(node.status.state.as_str(), "Joining" | "Detached");
        let decides = |node: &NodeView| node.status.roles.iter().any(|role| role == "controller");
        let there = |node: &NodeView| matches!(node.status.health.as_str(), "Alive" | "Suspect");
        let asked = nodes.iter_mut().filter(|node| !node.status.leader && there(node) && (away(node) || decides(node)));
        let asked: FuturesUnordered<_> = asked
            .filter_map(|node| {
                let name = WorkerId::new(&node.metadata.name).ok()?;
                let peer = self.0.as_ref()?.get(&name)?;
                Some(async move {
                    let answer = ask::<Rules>(&peer, &format!("{OWN}rules")).await;
                    let said = match answer {
                        Ok(theirs) if decides(node) => differing(theirs.rules.as_deref(), rules),
                        Err(why) if away(node) => Some(why),
                        _ => None,
                    };
                    add(&mut node.status.message, said);
                })
            })
            .collect();
        asked.collect::<()>().await;
    }

    fn of(&self, has: impl Fn(Roles) -> bool) -> Vec<Arc<Peer>> {
        let mut peers = self.0.as_ref().map(Peers::all).unwrap_or_default();
        peers.retain(|peer| has(peer.member().roles) && peer.health().is_there());
        peers
    }
}

/// Says one thing more; what was said before (degraded, not named by the registry) stays.
fn add(message: &mut String, said: Option<String>) {
    let Some(said) = said else { return };
    if !message.is_empty() {
        message.push_str("; ");
    }
    message.push_str(&said);
}

/// Describes the difference between a controller's settings and the leader's. `None` if they agree or are unknown.
pub(crate) fn differing(theirs: Option<&str>, leaders: Option<&str>) -> Option<String> {
    let (theirs, leaders) = (theirs?, leaders?);
    let shown = |rules: &str| if rules.is_empty() { "none".to_owned() } else { format!("--model-type {rules}") };
    (theirs != leaders).then(|| {
        format!(
            "what it was told of model types ({}) is not what the leader was told ({}): models would move if it led; start \
             all controllers with the same",
            shown(theirs),
            shown(leaders)
        )
    })
}

/// Asks a node; in words where there is no answer.
async fn ask<T: DeserializeOwned>(peer: &Peer, path: &str) -> Result<T, String> {
    let name = peer.name();
    let answered = tokio::time::timeout(ANSWER_WITHIN, async {
        let request = Request::get(format!("https://{name}{path}")).body(full(Vec::new()));
        let request = request.map_err(|error| error.to_string())?;
        let response = peer.send(request).await.map_err(|error| trouble(&error.to_string()))?;
        if response.status() != StatusCode::OK {
            return Err(format!("{name} answers with {}: is it of an older version?", response.status()));
        }
        let body = Limited::new(response.into_body(), ANSWER).collect().await.map_err(|error| error.to_string())?;
        serde_json::from_slice(&body.to_bytes()).map_err(|error| format!("{name} sent an invalid answer: {error}"))
    });
    answered.await.unwrap_or_else(|_| Err(format!("{name} does not answer within {ANSWER_WITHIN:?}")))
}

/// Describes why a node is unreachable, with the remedy where it is known.
fn trouble(error: &str) -> String {
    if error.contains("another CA") {
        return format!("{error}; `berth pki issue` it a certificate of this cluster's authority");
    }
    error.to_owned()
}

/// Answers what another node asks of this one.
pub(super) fn answer(
    path: &str,
    query: Option<&str>,
    sampler: &Sampler,
    recorder: &Recorder,
    dependencies: &ApiDependencies,
    identity: Option<&Identity>,
) -> Response {
    match path.strip_prefix(OWN) {
        Some("top") => {
            let limit = Query::parse(query, &["limit"])
                .and_then(|query| query.number("limit", MOST_MODELS))
                .map(|limit| limit.unwrap_or(MOST_MODELS));
            match limit {
                Ok(limit) => Json(sampler.look(now(), limit)).into_response(),
                Err(error) => error.into_response(),
            }
        }
        Some("history") => recorder.answer(query, now()),
        Some("tokens") => match dependencies.access.snapshot() {
            Some(snapshot) => Json(snapshot).into_response(),
            None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        },
        Some("revocations") => match identity {
            Some(identity) => Json(&*identity.revocations()).into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        },
        Some("authority") => match &dependencies.issuing {
            Some(issuing) => Json(Trust { trust: issuing.authority().trust() }).into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        },
        Some("uses") => Json(dependencies.access.uses()).into_response(),
        Some("rules") => Json(Rules { rules: dependencies.rules.clone() }).into_response(),
        Some("audit") => match audit::own(&dependencies.audit, query) {
            Ok(log) => Json(log).into_response(),
            Err(error) => error.into_response(),
        },
        Some("log") => match log_query(query) {
            Ok(query) => {
                let log = dependencies.logs.as_ref().map(|logs| log::bounded(logs(&query)));
                Json(log.unwrap_or_default()).into_response()
            }
            Err(error) => error.into_response(),
        },
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

fn log_query(query: Option<&str>) -> Result<LogQuery, ApiError> {
    let query = Query::parse(query, &["deployment", "after", "limit"])?;
    Ok(LogQuery {
        deployment: super::service::name(query.text("deployment").unwrap_or_default())?,
        after: query.text("after").and_then(|after| after.parse().ok()).unwrap_or_default(),
        limit: query.number("limit", MOST_LINES)?.unwrap_or(MOST_LINES),
    })
}

/// Now, by the machine's clock.
pub(super) fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_another_authority_is_named_with_what_to_do() {
        let told = trouble(
            "nothing was sent to d: cannot reach d at 10.0.0.4:7947: its certificate is of another CA than those in ca.pem",
        );
        assert!(told.starts_with("nothing was sent to d") && told.contains("berth pki issue"), "{told}");
        assert_eq!(trouble("it is gone"), "it is gone");
    }

    #[test]
    fn a_remark_does_not_wipe_out_what_was_said_before() {
        for (before, said, after) in [
            ("the registry does not name it", None, "the registry does not name it"),
            ("", Some("it differs"), "it differs"),
            ("degraded", Some("it differs"), "degraded; it differs"),
        ] {
            let mut message = before.to_owned();
            add(&mut message, said.map(str::to_owned));
            assert_eq!(message, after);
        }
    }

    #[test]
    fn only_what_is_said_can_differ() {
        assert_eq!(
            (differing(None, Some("a")), differing(Some("a"), None), differing(Some(""), Some(""))),
            (None, None, None)
        );
        let told = differing(Some(""), Some("onnx:required:pool=a")).expect("they differ");
        assert!(told.contains("(none)") && told.contains("(--model-type onnx:required:pool=a)"), "{told}");
    }
}
