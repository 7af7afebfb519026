//! The endpoints where a revision is ready on other nodes, and what a gateway remembers of each.

pub(crate) mod budget;
pub(crate) mod choose;
pub(crate) mod fleet;
pub(crate) mod forwarding;
pub(crate) mod outlier;
pub(crate) mod score;
pub(crate) mod target;
pub(crate) mod tick;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_spec::{RevisionId, WorkerId};
use http::HeaderValue;

use crate::{
    endpoint::{
        fleet::{NodeInstance, Remote, Remotes},
        outlier::{Outlier, OutlierState},
        score::Score,
        tick::Tick,
    },
    local::ReplicaChange,
};

/// The time for which an endpoint is left alone that said that the replica is not there, unless a hint or a route says
/// otherwise. Replicas that come back are announced; this is for those that were not.
const ABSENCE_TTL: Duration = Duration::from_millis(500);

/// The time for which a hint holds against routes that do not know of it yet: a busy controller's routes come within
/// it.
const HINT_TTL: Duration = Duration::from_secs(2);

/// The other places of one revision.
pub(crate) struct Endpoints {
    /// The header values that name it, made once.
    pub(crate) revision: HeaderValue,
    pub(crate) version: HeaderValue,
    /// The latency of the own replica: measured while there are others to compare it with.
    pub(crate) local: Score,
    pub(crate) draws: AtomicU32,
    pub(crate) list: Box<[Arc<Endpoint>]>,
}

/// A replica on another node: the record of how it answers, and what is known of its being there.
pub(crate) struct Endpoint {
    pub(crate) remote: Arc<Remote>,
    pub(crate) score: Score,
    pub(crate) in_flight: AtomicU32,
    /// Told by requests that were not answered in time: that is as often the model's fault as the node's, and must not
    /// count against the other models there.
    pub(crate) late: Outlier,
    /// The replica is not there until then, it said.
    absent: AtomicU64,
    /// A hint made the endpoint, and holds until then.
    hinted: AtomicU64,
    /// A route has come since that does not know of it: it counts no longer than the hint holds.
    doubted: AtomicBool,
}

/// The health of an endpoint, by which it is chosen for the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointHealth {
    /// In order: preferred to all others.
    Healthy,
    /// Its time out is over: it may be tried.
    Due,
    /// Gets requests if there is no better one.
    Unhealthy,
}

impl Endpoint {
    fn new(remote: Arc<Remote>) -> Arc<Self> {
        Arc::new(Self {
            remote,
            score: Score::default(),
            in_flight: AtomicU32::new(0),
            late: Outlier::default(),
            absent: AtomicU64::new(0),
            hinted: AtomicU64::new(0),
            doubted: AtomicBool::new(false),
        })
    }

    /// The node behind it, and its health; `None` when nothing can be sent there.
    pub(crate) fn look(&self, now: Tick) -> Option<(Arc<NodeInstance>, EndpointHealth)> {
        let outlived = self.doubted.load(Relaxed) && self.hinted.load(Relaxed) <= now.0;
        if outlived || self.absent.load(Relaxed) > now.0 {
            return None;
        }
        let known = self.remote.known()?;
        let health = match (self.remote.outlier.standing(now), self.late.standing(now)) {
            (OutlierState::In, OutlierState::In) if known.is_well() => EndpointHealth::Healthy,
            (OutlierState::Out, _) | (_, OutlierState::Out) => EndpointHealth::Unhealthy,
            (OutlierState::Due, _) | (_, OutlierState::Due) => EndpointHealth::Due,
            _ => EndpointHealth::Unhealthy,
        };
        Some((known, health))
    }

    /// A time out of it is over. Cheap: asked of every endpoint by every request.
    pub(crate) fn is_due(&self, now: Tick) -> bool {
        self.remote.outlier.standing(now) == OutlierState::Due || self.late.standing(now) == OutlierState::Due
    }

    /// Takes the right to try it after its time out.
    pub(crate) fn claim(&self, now: Tick) -> bool {
        let (remote, late) = (self.remote.outlier.claim(now), self.late.claim(now));
        remote || late
    }

    /// The replica is not there, it said.
    pub(crate) fn lacks(&self, now: Tick) {
        self.absent.store(now.after(ABSENCE_TTL).0, Relaxed);
    }

    /// Requests that are under way there.
    pub(crate) fn busy(&self) -> u64 {
        u64::from(self.in_flight.load(Relaxed))
    }
}

/// A request that is under way to an endpoint.
pub(crate) struct InFlight(Arc<Endpoint>);

impl InFlight {
    pub(crate) fn to(endpoint: &Arc<Endpoint>) -> Self {
        endpoint.in_flight.fetch_add(1, Relaxed);
        Self(Arc::clone(endpoint))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Endpoints {
    /// The number of other nodes that have it.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The endpoints of a route; what is known of them from `before` is kept. `None` where there are none.
    pub(crate) fn of<'a>(
        revision: &RevisionId,
        version: &str,
        ready: impl Iterator<Item = &'a WorkerId>,
        before: Option<&Self>,
        remotes: &Remotes,
    ) -> Option<Arc<Self>> {
        let known = before.map_or(&[][..], |before| &before.list);
        let mut list: Vec<Arc<Endpoint>> = ready.map(|worker| kept(known, worker, remotes)).collect();
        list.iter().for_each(|endpoint| endpoint.doubted.store(false, Relaxed));
        let now = remotes.clock().now();
        for hinted in known.iter().filter(|endpoint| endpoint.hinted.load(Relaxed) > now.0) {
            if !list.iter().any(|endpoint| Arc::ptr_eq(endpoint, hinted)) {
                hinted.doubted.store(true, Relaxed);
                list.push(Arc::clone(hinted));
            }
        }
        Self::from(list, || Names::of(revision, version), before)
    }

    /// The same, with what a worker said of itself.
    pub(crate) fn hinted(
        revision: &RevisionId,
        version: &str,
        worker: &WorkerId,
        change: ReplicaChange,
        before: Option<&Self>,
        remotes: &Remotes,
    ) -> Option<Arc<Self>> {
        let known = before.map_or(&[][..], |before| &before.list);
        let mut list: Vec<_> = known.iter().filter(|endpoint| endpoint.remote.name != *worker).cloned().collect();
        if change == ReplicaChange::Ready {
            let endpoint = kept(known, worker, remotes);
            endpoint.absent.store(0, Relaxed);
            endpoint.hinted.store(remotes.clock().now().after(HINT_TTL).0, Relaxed);
            endpoint.doubted.store(false, Relaxed);
            list.push(endpoint);
        }
        Self::from(list, || Names::of(revision, version), before)
    }

    fn from(list: Vec<Arc<Endpoint>>, names: impl FnOnce() -> Names, before: Option<&Self>) -> Option<Arc<Self>> {
        if list.is_empty() {
            return None;
        }
        let names = before.map_or_else(names, |b| Names { revision: b.revision.clone(), version: b.version.clone() });
        Some(Arc::new(Self {
            revision: names.revision,
            version: names.version,
            local: before.map_or_else(Score::default, |before| before.local.copied()),
            draws: AtomicU32::new(before.map_or(0, |before| before.draws.load(Relaxed))),
            list: list.into(),
        }))
    }

    /// This moment, as its endpoints count time.
    pub(crate) fn now(&self) -> Tick {
        // There is at least one endpoint.
        self.list.first().map_or(Tick(1), |endpoint| endpoint.remote.clock.now())
    }

    /// A request could be sent to one of them now.
    pub(crate) fn any(&self) -> bool {
        let now = self.now();
        self.list.iter().any(|endpoint| endpoint.look(now).is_some())
    }

    /// The names of nodes that requests could be sent to now.
    pub(crate) fn answering(&self) -> impl Iterator<Item = &WorkerId> {
        let now = self.now();
        let answering = self.list.iter().filter(move |endpoint| endpoint.look(now).is_some());
        answering.map(|endpoint| &endpoint.remote.name)
    }

    /// One of them that requests could be sent to now is in the gateway's own region.
    pub(crate) fn any_near(&self) -> bool {
        let now = self.now();
        self.list.iter().any(|endpoint| endpoint.look(now).is_some_and(|(known, _)| known.near))
    }

    /// The names of their nodes.
    pub(crate) fn workers(&self) -> impl Iterator<Item = &WorkerId> {
        self.list.iter().map(|endpoint| &endpoint.remote.name)
    }
}

fn kept(known: &[Arc<Endpoint>], worker: &WorkerId, remotes: &Remotes) -> Arc<Endpoint> {
    let old = known.iter().find(|endpoint| endpoint.remote.name == *worker);
    old.map_or_else(|| Endpoint::new(remotes.get(worker)), Arc::clone)
}

struct Names {
    revision: HeaderValue,
    version: HeaderValue,
}

impl Names {
    fn of(revision: &RevisionId, version: &str) -> Self {
        // Coded, it is printable ASCII.
        let revision = HeaderValue::try_from(revision.coded()).unwrap_or_else(|_| HeaderValue::from_static(""));
        // A version may be named in any script; control characters, which headers cannot carry, are not sent.
        let version = HeaderValue::from_bytes(version.as_bytes()).unwrap_or_else(|_| {
            let printable: String = version.chars().filter(|c| !c.is_control()).collect();
            HeaderValue::from_bytes(printable.as_bytes()).expect("no control characters are left")
        });
        Self { revision, version }
    }
}

#[cfg(test)]
mod tests {
    use berth_peer::{Identity, Peers, pki::Authority};
    use berth_spec::DeploymentName;

    use super::*;
    use crate::endpoint::{fleet::Fleet, tick::Clock};

    #[tokio::test]
    async fn what_only_a_hint_knew_is_forgotten_when_the_hint_is_over() {
        let pki = tempfile::tempdir().expect("a folder");
        let authority = Authority::create(pki.path()).expect("a CA");
        let worker = |name: &str| WorkerId::new(name).expect("a name");
        let identity = Identity::load(authority.issue(&worker("me"), &[]).expect("issued")).expect("an identity");
        let peers = Peers::fixed(identity, [(worker("b"), ([127, 0, 0, 1], 9).into())]);
        let remotes = Remotes::new(Fleet { peers, members: None, region: None }, Clock::start());
        let revision = RevisionId::of(DeploymentName::new("iris").expect("a name"), b"1");
        let hint = |before: Option<&Endpoints>| {
            Endpoints::hinted(&revision, "1", &worker("b"), ReplicaChange::Ready, before, &remotes)
                .expect("an endpoint")
        };
        let route = |ready: &[WorkerId], before: &Endpoints| {
            Endpoints::of(&revision, "1", ready.iter(), Some(before), &remotes).expect("an endpoint")
        };
        let later = |endpoints: &Endpoints| endpoints.now().after(HINT_TTL + Duration::from_secs(60));
        let there = |endpoints: &Endpoints, at: Tick| endpoints.list[0].look(at).is_some();
        let hinted = hint(None);
        assert!(there(&hinted, later(&hinted)), "no route has come: nobody knows better");
        // As fresh as can be, however long this test takes.
        hinted.list[0].hinted.store(u64::MAX, Relaxed);
        let doubted = route(&[], &hinted);
        assert!(there(&doubted, doubted.now()), "a fresh hint is ahead of the route");
        doubted.list[0].hinted.store(doubted.now().after(HINT_TTL).0, Relaxed);
        assert!(!there(&doubted, later(&doubted)), "the hint is over, and the route knew nothing of it");
        let again = hint(Some(&doubted));
        assert!(there(&again, later(&again)), "said again since");
        let known = route(&[worker("b")], &again);
        assert!(there(&known, later(&known)), "the route knows of it");
    }
}
