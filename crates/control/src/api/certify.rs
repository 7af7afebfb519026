//! Certificates for nodes: a first one for whoever has a join token or is attested, the next one for whoever shows the present one.
//!
//! ```text
//! POST /certify/join   JoinRequest   ─┬ the leader: the token holds, the name is free ──────▶ counted, then signed: Issued
//!                                     └ any controller: a proof of its name (`attestation`) ─▶ signed: Issued
//! POST /certify/renew  RenewRequest  ── any controller: the caller's own name and roles ────▶ signed: Issued
//! ```
//! A use of a token is counted before its certificate is signed. The same request again, from a node that lost the answer,
//! counts once. The CA's files are read again as they change; nodes ask for what they hold by now (`GET /own/authority`).

mod attestation;

use std::{net::IpAddr, sync::Arc, time::Duration};

use berth_audit::AuditLog;
use berth_peer::{
    Caller, PeerBody,
    joining::{DialledFrom, Issued, JoinRequest, NotIssued, RenewRequest},
    pki::{Authority, NodeCertificate, NodeSubject, PkiError, Revocations, certifies},
    port::RequestBody,
};
use berth_spec::{Health, Member, Roles, WorkerId};
use berth_wire::{
    access::{Action, Secret, sha256},
    api::{AuditOutcome, AuditPort, AuditResource},
};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, time::sleep};

pub use self::attestation::{Attestation, AttestedNode, NotAttested};
use super::tokens::now;
use crate::{
    Handle,
    store::join_tokens::{JoinTokenRecord, JoinedNode},
};

/// Largest request: a secret, a name, and a request for a certificate.
const BODY: usize = 16 << 10;

/// Limit for the body to come: it is small, and who sends it has no certificate yet.
const BODY_WITHIN: Duration = Duration::from_secs(5);

/// Attempts to count a use while others use the same token: one of them gets through each time.
const ATTEMPTS: usize = 16;

/// The most members that a new node is told of: some may be away, and gossip tells the rest.
const MEMBERS: usize = 8;

/// Interval between checks of the CA's files: as for those of a node.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Message of a controller that has no CA.
pub(super) const ISSUES_NOTHING: &str = "the node that leads issues no certificates: start the controllers with --authority DIR, \
     the folder that `berth pki init` made; or `berth pki issue` the node's folder there, and copy it";

/// The CA of a node that issues certificates to nodes.
#[derive(Debug)]
pub struct Issuing {
    /// As its files are; [`Issuing::follow`] writes it.
    authority: watch::Sender<Arc<Authority>>,
    life: Duration,
    /// `None`: nodes come by join tokens alone.
    attestation: Option<Attestation>,
}

/// An answer that is no certificate, with its status.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    pub(super) error: String,
    elsewhere: bool,
}

impl Issuing {
    /// A CA that issues certificates to nodes, each valid for `life`.
    #[must_use]
    pub fn new(authority: Authority, life: Duration) -> Self {
        Self { authority: watch::Sender::new(Arc::new(authority)), life, attestation: None }
    }

    /// Gives first certificates also to nodes that are attested.
    #[must_use]
    pub fn with_attestation(self, attestation: Attestation) -> Self {
        Self { attestation: Some(attestation), ..self }
    }

    /// The CA as it is now.
    pub(super) fn authority(&self) -> Arc<Authority> {
        Arc::clone(&self.authority.borrow())
    }

    /// Uses the CA's files as they change, for as long as it is polled. A change that is not usable is warned of once, and the CA stays
    /// as it was.
    pub(super) async fn follow(&self) {
        let mut told = String::new();
        loop {
            sleep(POLL_INTERVAL).await;
            let authority = self.authority();
            let Ok(read) = tokio::task::spawn_blocking(move || authority.reread()).await else { continue };
            match read {
                Ok(Some(authority)) => {
                    let fingerprint = authority.fingerprint();
                    tracing::info!(
                        event = "authority_changed",
                        fingerprint,
                        "the CA's files have changed, and nodes follow"
                    );
                    self.authority.send_replace(Arc::new(authority));
                    told.clear();
                }
                Ok(None) => told.clear(),
                Err(error) => {
                    let error = error.to_string();
                    if told != error {
                        tracing::warn!(event = "authority_unusable", %error, "the changed files of the CA are not used; it stays as it was");
                        told = error;
                    }
                }
            }
        }
    }

    /// Signs beside the runtime, since the key may be in a token that blocks. Nodes get what the same CA says.
    async fn issue(
        &self,
        request: String,
        name: WorkerId,
        roles: Roles,
        hosts: Vec<String>,
        earliest: u64,
    ) -> Result<Issued, Refusal> {
        let (authority, life) = (self.authority(), self.life);
        let (authorities, gossip) = (authority.authorities().to_owned(), authority.gossip().to_owned());
        let sign = move || {
            let subject = NodeSubject { name: &name, roles, hosts: &hosts };
            authority.sign(&request, subject, life, earliest)
        };
        match tokio::task::spawn_blocking(sign).await {
            Ok(Ok(certificate)) => Ok(Issued { certificate, authorities, gossip: Some(gossip), members: Vec::new() }),
            Ok(Err(error @ PkiError::Name { .. })) => Err(Refusal::of(StatusCode::BAD_REQUEST, error.to_string())),
            Ok(Err(error)) => {
                tracing::error!(event = "certificate_unsigned", %error, "a certificate could not be signed");
                Err(Refusal::later("the CA did not sign: the log of the controller says why"))
            }
            Err(_) => Err(Refusal::later("signing failed: the log of the controller says why")),
        }
    }
}

impl Refusal {
    fn of(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, error: error.into(), elsewhere: false }
    }

    fn later(error: impl Into<String>) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, error: error.into(), elsewhere: true }
    }
}

/// Everything that answering needs.
pub(super) struct Certifier {
    pub(super) issuing: Option<Arc<Issuing>>,
    /// `None`: this node does not lead.
    pub(super) handle: Option<Handle>,
    pub(super) members: Vec<(Arc<Member>, Health)>,
    pub(super) revocations: Arc<Revocations>,
    pub(super) audit: AuditLog,
}

impl Certifier {
    /// Answers a node that has no certificate.
    pub(super) async fn join(self, request: Request<RequestBody>) -> Response<PeerBody> {
        let from = request.extensions().get().map(|DialledFrom(address)| *address);
        let asked: JoinRequest = match read(request).await {
            Ok(asked) => asked,
            Err(refusal) => return answer(Err(refusal)),
        };
        let node = asked.node.clone();
        let principal = match self.attestation(&asked.secret) {
            Some(_) => format!("pod:{node}"),
            None => {
                let token = Secret::parse(&asked.secret).map(|secret| secret.id().to_owned());
                format!("join-token:{}", token.unwrap_or_default())
            }
        };
        let issued = self.first(asked).await;
        self.record(&principal, from, &node, "POST /certify/join", &issued).await;
        answer(issued)
    }

    /// Answers a node that shows its present certificate.
    pub(super) async fn renew(self, caller: Caller, request: Request<RequestBody>) -> Response<PeerBody> {
        let issued = match read::<RenewRequest>(request).await {
            Ok(asked) => self.next(&caller.certificate, asked).await,
            Err(refusal) => Err(refusal),
        };
        let principal = format!("node:{}", caller.name);
        self.record(&principal, None, &caller.name, "POST /certify/renew", &issued).await;
        answer(issued)
    }

    async fn first(&self, asked: JoinRequest) -> Result<Issued, Refusal> {
        let Some(issuing) = &self.issuing else { return Err(Refusal::later(ISSUES_NOTHING)) };
        let JoinRequest { secret, node, request } = asked;
        let (roles, token) = match self.attestation(&secret) {
            Some(attestation) => (self.attested(attestation, secret, &node).await?, String::new()),
            None => {
                let Some(handle) = &self.handle else { return Err(Refusal::later("it does not lead")) };
                let record = self.count(handle, &secret, &node, &request).await?;
                (record.roles, record.id)
            }
        };
        let earliest = self.revocations.earliest(&node);
        let issued = issuing.issue(request, node.clone(), roles, Vec::new(), earliest).await?;
        let there = self.members.iter().filter(|(_, health)| health.is_there());
        tracing::info!(event = "node_joined", %node, %roles, token, "a node was given its first certificate");
        let members = there.take(MEMBERS).map(|(member, _)| member.gossip.to_string()).collect();
        Ok(Issued { members, ..issued })
    }

    /// Asks for the facts of a node that shows this; `None`: it is a join token, or nobody attests anything here.
    fn attestation(&self, secret: &str) -> Option<&Attestation> {
        let attestation = self.issuing.as_ref()?.attestation.as_ref()?;
        Secret::parse(secret).is_none().then_some(attestation)
    }

    /// Roles of a node that is attested and may have the name that it says.
    async fn attested(&self, attestation: &Attestation, proof: String, node: &WorkerId) -> Result<Roles, Refusal> {
        let attested = attestation.ask(proof).await?;
        attested.check(node, self.known_revocations()?)?;
        check_free(node, &self.members)?;
        Ok(attested.roles)
    }

    /// Signs the next certificate of a node: its own name and roles, whatever the request says.
    pub(super) async fn next(&self, present: &NodeCertificate, asked: RenewRequest) -> Result<Issued, Refusal> {
        let Some(issuing) = &self.issuing else { return Err(Refusal::later(ISSUES_NOTHING)) };
        if present.until <= now() {
            // The connection is older than its end.
            let error = "the certificate has expired: give the node a new one by a join token or `berth pki issue`";
            return Err(Refusal::of(StatusCode::FORBIDDEN, error));
        }
        let (name, hosts) = (present.name.clone(), present.hosts.clone());
        let earliest = self.known_revocations()?.earliest(&present.name);
        let issued = issuing.issue(asked.request, name, present.roles, hosts, earliest).await?;
        tracing::info!(event = "certificate_renewed", node = %present.name, before = present.serial, "a node was given its next certificate");
        Ok(issued)
    }

    /// The revocations, once they are known: a controller that has just started takes every certificate for a moment, and what it
    /// issued then could be newer than the revocation.
    fn known_revocations(&self) -> Result<&Revocations, Refusal> {
        match self.revocations.revision {
            0 => Err(Refusal::later("it does not know yet which certificates are revoked")),
            _ => Ok(&self.revocations),
        }
    }

    /// Counts a use of a join token, or finds that this very request was counted.
    async fn count(
        &self,
        handle: &Handle,
        secret: &str,
        node: &WorkerId,
        request: &str,
    ) -> Result<JoinTokenRecord, Refusal> {
        let unread = |error: crate::handle::Error| Refusal::later(error.to_string());
        let request: String = sha256(request.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        for _ in 0..ATTEMPTS {
            let secret = Secret::parse(secret);
            let known = match &secret {
                Some(secret) => handle.join_token(secret.id()).await.map_err(unread)?,
                None => None,
            };
            let hash = secret.map(|secret| secret.hash());
            let known = known.filter(|(record, _)| Some(&record.hash) == hash.as_ref());
            let now = now();
            let Some((mut record, rev)) = known.filter(|(record, _)| record.expires > now) else {
                let error =
                    "the join token is not known, has expired, or was revoked: `berth join-token create` makes another";
                return Err(Refusal::of(StatusCode::UNAUTHORIZED, error));
            };
            let joined = JoinedNode { node: node.clone(), request: request.clone() };
            if record.joined.contains(&joined) {
                return Ok(record);
            }
            check(&record, node, &self.members)?;
            record.joined.push(joined);
            if handle.put_join_token(record.clone(), rev).await.map_err(unread)? {
                return Ok(record);
            }
        }
        Err(Refusal::later("others join with the same token at this moment"))
    }

    async fn record(
        &self,
        principal: &str,
        from: Option<IpAddr>,
        node: &WorkerId,
        operation: &str,
        issued: &Result<Issued, Refusal>,
    ) {
        let mut record = self.audit.begin(AuditPort::Peer, principal, Action::CertifyNodes.as_str(), operation);
        record.address = from;
        record.resources = vec![AuditResource { kind: "Node".to_owned(), namespace: None, name: node.to_string() }];
        let (status, reason) = match issued {
            Ok(_) => (StatusCode::OK, "OK"),
            Err(refusal) if refusal.status == StatusCode::UNAUTHORIZED => (refusal.status, "Unauthorized"),
            Err(refusal) => (refusal.status, "Refused"),
        };
        record.outcome = AuditOutcome { status: status.as_u16(), reason: reason.to_owned() };
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.audit.refuse(record),
            _ => self.audit.record(record).await,
        }
    }
}

/// Checks that a node may join with a token under this name.
fn check(record: &JoinTokenRecord, node: &WorkerId, members: &[(Arc<Member>, Health)]) -> Result<(), Refusal> {
    if let Some(only) = record.node.as_ref().filter(|only| *only != node) {
        let error = format!("the join token is for the node {only}, and this one says --name {node}");
        return Err(Refusal::of(StatusCode::FORBIDDEN, error));
    }
    let used = u32::try_from(record.joined.len()).unwrap_or(u32::MAX);
    if used >= record.uses {
        let error = format!("the join token was used {used} times, as often as it may be: make another");
        return Err(Refusal::of(StatusCode::FORBIDDEN, error));
    }
    check_free(node, members)
}

/// Checks that no node of this name is there.
fn check_free(node: &WorkerId, members: &[(Arc<Member>, Health)]) -> Result<(), Refusal> {
    // Its certificate would be good for that node, too. A node that was just stopped counts as there for some seconds.
    let taken = members.iter().find(|(member, health)| health.is_there() && certifies(node, &member.name));
    match taken {
        Some((member, _)) => Err(Refusal::later(format!(
            "the cluster has a node {} that answers: say --name with another name, or stop that node first",
            member.name
        ))),
        None => Ok(()),
    }
}

async fn read<T: DeserializeOwned>(request: Request<RequestBody>) -> Result<T, Refusal> {
    let body = Limited::new(request.into_body(), BODY).collect();
    let unread = |error: String| Refusal::of(StatusCode::BAD_REQUEST, format!("the request cannot be read: {error}"));
    let body: Bytes = match tokio::time::timeout(BODY_WITHIN, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => return Err(unread(error.to_string())),
        Err(_) => return Err(unread(format!("it did not come within {BODY_WITHIN:?}"))),
    };
    serde_json::from_slice(&body).map_err(|error| unread(error.to_string()))
}

fn answer(issued: Result<Issued, Refusal>) -> Response<PeerBody> {
    let (status, body) = match issued {
        Ok(issued) => (StatusCode::OK, serde_json::to_vec(&issued)),
        Err(Refusal { status, error, elsewhere }) => (status, serde_json::to_vec(&NotIssued { error, elsewhere })),
    };
    let mut response = Response::new(berth_peer::full(body.unwrap_or_default()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> WorkerId {
        WorkerId::new(text).expect("a name")
    }

    fn member(text: &str, health: Health) -> (Arc<Member>, Health) {
        let at = "10.0.0.1:1".parse().expect("an address");
        let member = Member {
            name: name(text),
            incarnation: 1,
            gossip: at,
            peer: at,
            roles: Roles::ALL,
            labels: Default::default(),
            version: String::new(),
            protocol: (1, 1),
        };
        (Arc::new(member), health)
    }

    #[test]
    fn a_node_takes_a_name_that_is_free_as_often_as_the_token_says() {
        let record = |node: Option<&str>, uses: u32, used: u32| JoinTokenRecord {
            id: String::new(),
            hash: String::new(),
            roles: Roles::ALL,
            node: node.map(name),
            uses,
            joined: (0..used).map(|at| JoinedNode { node: name("earlier"), request: at.to_string() }).collect(),
            description: String::new(),
            created_by: String::new(),
            created: 0,
            expires: 1,
        };
        let members = [member("a", Health::Alive), member("b", Health::Failed), member("c", Health::Suspect)];
        for (record, node, says) in [
            (record(None, 1, 0), "d", ""),
            (record(None, 2, 1), "d", ""),
            (record(None, 1, 1), "d", "used 1 times"),
            (record(Some("d"), 1, 0), "d", ""),
            (record(Some("d"), 1, 0), "e", "for the node d"),
            (record(None, 1, 0), "a", "a node a that answers"),
            (record(None, 1, 0), "node-a", "a node a that answers"),
            (record(None, 1, 0), "b", ""),
            (record(None, 1, 0), "c", "a node c that answers"),
        ] {
            let checked = check(&record, &name(node), &members);
            match says {
                "" => assert!(checked.is_ok(), "{node}: {checked:?}"),
                says => assert!(checked.as_ref().is_err_and(|no| no.error.contains(says)), "{node}: {checked:?}"),
            }
        }
    }
}
