//! Keeps this node's certificate from ending: asks for the next one when a third of its life is left, and at once when the CAs or keys of
//! gossip that nodes are to have are others than its own.
//!
//! ```text
//! waiting ──due──▶ asking: this node if it has the CA, else the controllers
//!    ▲  │            │ issued: written, in use at once, connections stay
//!    │  │            └ none: a pause that grows, then again
//!    │  └─others──▶ asking: this node if it has the CA, else the leader alone, who says so
//!    └───────────────┘
//! ```
//! A controller that has the CA goes by its own folder, and compares it with the leader's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use berth_control::api::ApiRouter;
use berth_peer::{
    Identity, Peer, Peers, full,
    joining::{self, Issued, RENEW, RenewRequest},
    pki::NodeCertificate,
};
use berth_spec::WorkerId;
use http::Request;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::time::{Instant, sleep, timeout};

/// Limit for a controller to answer. Allows for a CA key in a token behind a network.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Longest sleep: a certificate may be replaced by hand, and clocks are set. A change of the CA reaches all nodes within it and some
/// seconds, and a thousand nodes ask the leader a hundred times a second.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Longest pause after a change of the CA could not be followed: whoever rotates it waits for all nodes.
const FOLLOW_AGAIN: Duration = Duration::from_secs(60);

/// Time for which the CAs of two controllers may differ: whoever rotates one changes a folder after the other.
const MAY_DIFFER: Duration = Duration::from_secs(60);

/// Shortest pause after nobody gave a certificate: an election takes as long.
const SHORTEST_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    outcome: &'static str,
}

/// Metrics of this node's certificate.
#[derive(Debug, Clone, Default)]
pub(super) struct Metrics {
    ends: Gauge,
    renewals: Family<ByOutcome, Counter>,
}

impl Metrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let ends = "End of the validity of this node's certificate, in seconds since the Unix epoch";
        registry.register("berth_node_certificate_expiry_timestamp_seconds", ends, metrics.ends.clone());
        let renewals = "Attempts to renew this node's certificate, by outcome";
        registry.register("berth_node_certificate_renewals", renewals, metrics.renewals.clone());
        metrics
    }

    fn count(&self, outcome: &'static str) {
        self.renewals.get_or_create(&ByOutcome { outcome }).inc();
    }
}

/// The renewal of one node's certificate.
pub(super) struct Renewal {
    pub(super) peers: Peers,
    pub(super) front: ApiRouter,
    pub(super) metrics: Metrics,
}

impl Renewal {
    /// Renews for as long as it is polled.
    pub(super) async fn run(self) {
        tokio::join!(self.front.follow_authority(), self.renew_on_time());
    }

    async fn renew_on_time(&self) {
        let (mut failures, mut unfollowed, mut difference) = (0, 0, AuthorityDifference::default());
        loop {
            let identity = self.peers.identity();
            let certificate = identity.certificate();
            self.metrics.ends.set(i64::try_from(certificate.until).unwrap_or(i64::MAX));
            let wait = wait(&certificate, now(), failures);
            if !wait.is_zero() {
                sleep(wait.min(POLL_INTERVAL)).await;
                self.compare(&mut difference).await;
                match self.follow(identity).await {
                    Ok(()) => unfollowed = 0,
                    Err(why) => {
                        unfollowed += 1;
                        self.metrics.count("failed");
                        tracing::warn!(
                            event = "authority_not_followed",
                            why,
                            failures = unfollowed,
                            "the CAs or keys of gossip have changed, and this node has no certificate with the new ones"
                        );
                        sleep(pause(&certificate, unfollowed).min(FOLLOW_AGAIN)).await;
                    }
                }
                continue;
            }
            match self.renew(identity, &certificate, None).await {
                Ok(()) => {
                    failures = 0;
                    self.metrics.count("renewed");
                }
                Err(why) => {
                    failures += 1;
                    self.metrics.count("failed");
                    let hours = certificate.until.saturating_sub(now()) / 3_600;
                    tracing::warn!(
                        event = "certificate_not_renewed",
                        why,
                        hours,
                        failures,
                        "this node's certificate ends, and nobody gives the next one"
                    );
                    sleep(pause(&certificate, failures)).await;
                }
            }
        }
    }

    /// Takes the CAs and keys of gossip into use that nodes are to have by now, with a certificate of the CA that issues.
    async fn follow(&self, identity: &Identity) -> Result<(), String> {
        let Some((trust, leader)) = self.front.trust().await else { return Ok(()) };
        if trust == identity.trust() {
            return Ok(());
        }
        self.renew(identity, &identity.certificate(), leader.as_ref()).await?;
        self.metrics.count("renewed");
        tracing::info!(event = "authority_followed", "the CAs and keys of gossip that have changed are in use");
        Ok(())
    }

    /// Compares the CA of this controller with the leader's. A folder that a rotation has forgotten keeps this node, and those that ask it
    /// for certificates, behind the others.
    async fn compare(&self, difference: &mut AuthorityDifference) {
        if !self.front.issues() {
            return;
        }
        let Some((own, None)) = self.front.trust().await else { return };
        let Some((leaders, leader)) = self.front.trust_of_leader().await else { return };
        if difference.lasts(own != leaders, Instant::now()) {
            tracing::warn!(
                event = "authority_differs",
                %leader,
                "this controller's CAs or keys of gossip are not the leader's: give the --authority folders of all controllers the same \
                 ca.pem, ca.key and gossip.key"
            );
        }
    }

    /// Takes the next certificate into use. `by`: from this controller alone.
    async fn renew(&self, identity: &Identity, present: &NodeCertificate, by: Option<&WorkerId>) -> Result<(), String> {
        let asking = identity.clone();
        let request = tokio::task::spawn_blocking(move || asking.request()).await.map_err(|error| error.to_string())?;
        let request = request.map_err(|error| error.to_string())?;
        let issued = self.ask(present, request, by).await?;
        let taking = identity.clone();
        let taken = tokio::task::spawn_blocking(move || taking.renewed(&issued)).await;
        taken.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let (serial, before) = (&identity.certificate().serial, &present.serial);
        tracing::info!(event = "certificate_renewed", serial, before, "this node's next certificate is in use");
        Ok(())
    }

    async fn ask(&self, present: &NodeCertificate, request: String, by: Option<&WorkerId>) -> Result<Issued, String> {
        if self.front.issues() {
            return self.front.certify_self(present, request).await;
        }
        let mut tried = Vec::new();
        for peer in self.peers.all() {
            let is_meant = by.is_none_or(|by| peer.name() == by);
            if !is_meant || !peer.member().roles.controller || !peer.health().is_there() {
                continue;
            }
            match timeout(ANSWER_WITHIN, ask(&peer, &request)).await {
                Ok(Ok(issued)) => return Ok(issued),
                Ok(Err(why)) => tried.push(format!("{}: {why}", peer.name())),
                Err(_) => tried.push(format!("{}: no answer within {ANSWER_WITHIN:?}", peer.name())),
            }
        }
        Err(if tried.is_empty() { "no controller is there".to_owned() } else { tried.join("; ") })
    }
}

/// Difference between this controller's CA and the leader's.
#[derive(Debug, Default)]
struct AuthorityDifference {
    since: Option<Instant>,
    is_told: bool,
}

impl AuthorityDifference {
    /// True once, when it is there for longer than a rotation takes.
    fn lasts(&mut self, differs: bool, now: Instant) -> bool {
        if !differs {
            *self = Self::default();
            return false;
        }
        let since = *self.since.get_or_insert(now);
        now.duration_since(since) >= MAY_DIFFER && !std::mem::replace(&mut self.is_told, true)
    }
}

async fn ask(peer: &Peer, request: &str) -> Result<Issued, String> {
    let body = serde_json::to_vec(&RenewRequest { request: request.to_owned() }).map_err(|error| error.to_string())?;
    let request = Request::post(format!("https://{}{RENEW}", peer.name())).body(full(body));
    let response = peer.send(request.map_err(|error| error.to_string())?).await.map_err(|error| error.to_string())?;
    joining::answer(response).await?.map_err(|refused| refused.error)
}

/// Time until a certificate is to be renewed: a third of its life before its end. After failures it is due at once.
fn wait(certificate: &NodeCertificate, now: u64, failures: u32) -> Duration {
    let due = certificate.until.saturating_sub(certificate.life().as_secs() / 3);
    Duration::from_secs(if failures > 0 { 0 } else { due.saturating_sub(now) })
}

/// Pause after nobody gave a certificate: some hundred attempts before it ends, and fewer while it is far.
fn pause(certificate: &NodeCertificate, failures: u32) -> Duration {
    let life = certificate.until.saturating_sub(certificate.from);
    let longest = Duration::from_secs(life / 300).max(SHORTEST_PAUSE);
    SHORTEST_PAUSE.saturating_mul(1 << failures.min(16)).min(longest)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use berth_spec::Roles;

    use super::*;

    fn certificate(from: u64, until: u64) -> NodeCertificate {
        let name = WorkerId::new("a").expect("a name");
        NodeCertificate { name, roles: Roles::ALL, hosts: Vec::new(), serial: "1".to_owned(), from, until }
    }

    #[test]
    fn a_certificate_is_renewed_when_a_third_of_its_life_is_left() {
        for (from, until, now, waits) in
            [(0, 90, 0, 60), (0, 90, 59, 1), (0, 90, 60, 0), (0, 90, 100, 0), (100, 100, 0, 100), (9, 3, 0, 3)]
        {
            let waits = Duration::from_secs(waits);
            assert_eq!(wait(&certificate(from, until), now, 0), waits, "{from} {until} {now}");
            assert_eq!(wait(&certificate(from, until), now, 1), Duration::ZERO);
        }
    }

    #[test]
    fn a_difference_that_stays_is_told_once() {
        let (mut difference, start) = (AuthorityDifference::default(), Instant::now());
        let told: Vec<u64> = [(0, true), (50, true), (59, false), (70, true), (120, true), (130, true), (140, true)]
            .into_iter()
            .chain([(150, false), (160, true), (220, true)])
            .filter(|(at, differs)| difference.lasts(*differs, start + Duration::from_secs(*at)))
            .map(|(at, _)| at)
            .collect();
        assert_eq!(told, [130, 220]);
    }

    #[test]
    fn pauses_grow_to_a_small_part_of_its_life() {
        let (short, long) = (certificate(0, 60), certificate(0, 90 * 86_400));
        assert_eq!(pause(&short, 1), SHORTEST_PAUSE);
        assert_eq!(pause(&short, 40), SHORTEST_PAUSE);
        assert_eq!(pause(&long, 3), Duration::from_secs(16));
        assert_eq!(pause(&long, 40), Duration::from_secs(25_920));
    }
}
