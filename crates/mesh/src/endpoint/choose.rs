//! Chooses the endpoint for a request: of two drawn at random the one where it is likely to be answered sooner.
//!
//! ```text
//!  1. an endpoint whose time out is over gets one request as its probe
//!  2. good ones in the own region, the own replica among them
//!  3. good ones in the region that is nearest by measured time
//!  4. what is left: ejected, suspected, unreachable just now (the last endpoint is never ejected)
//! ```
//!
//! Likely sooner: smoothed latency × (requests under way + 1). Where nothing was measured yet only the second counts.
//! Two choices come close to the best of all, and do not send every gateway to the same endpoint at once.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use crate::endpoint::{Endpoint, EndpointHealth, Endpoints, fleet::NodeInstance, tick::Tick};

/// The replica that [`Endpoints::choose`] gives a request to.
pub(crate) enum Choice {
    /// The replica of this process.
    Local,
    /// A replica on another node, by the start of that node that was seen.
    Remote(Arc<Endpoint>, Arc<NodeInstance>),
}

/// The endpoints that were tried in this round, and are not tried again in it. A request goes to few endpoints: a list
/// is enough.
#[derive(Default)]
pub(crate) struct TriedEndpoints {
    endpoints: Vec<Arc<Endpoint>>,
    /// The own replica.
    here: bool,
}

impl TriedEndpoints {
    pub(crate) fn add(&mut self, endpoint: Arc<Endpoint>) {
        self.endpoints.push(endpoint);
    }

    /// The own replica was tried.
    pub(crate) fn add_here(&mut self) {
        self.here = true;
    }

    pub(crate) fn has_here(&self) -> bool {
        self.here
    }

    pub(crate) fn clear(&mut self) {
        self.endpoints.clear();
        self.here = false;
    }

    fn has(&self, endpoint: &Endpoint) -> bool {
        self.endpoints.iter().any(|tried| std::ptr::eq(Arc::as_ptr(tried), endpoint))
    }
}

/// An endpoint that may be chosen.
struct Candidate<'a> {
    endpoint: &'a Arc<Endpoint>,
    known: Arc<NodeInstance>,
}

impl Endpoints {
    /// Chooses for one request. `local` is how many requests the own replica has, if there is one that takes more.
    pub(crate) fn choose(&self, local: Option<u32>, tried: &TriedEndpoints, now: Tick) -> Option<Choice> {
        let mut rng = Rng(self.draws.fetch_add(1, Relaxed));
        if let Some(probe) = self.probe(tried, now) {
            return Some(probe);
        }
        let good_near = self.two(&mut rng, tried, now, |known, health| health == EndpointHealth::Healthy && known.near);
        if let Some(busy) = local {
            return Some(match good_near.0.or(good_near.1) {
                Some(other) if self.is_local_worse(busy, other.endpoint, now) => other.into(),
                _ => Choice::Local,
            });
        }
        let choice = sooner(good_near, now).or_else(|| self.far(&mut rng, tried, now));
        let choice = choice.or_else(|| sooner(self.two(&mut rng, tried, now, |_, _| true), now));
        choice.map(Choice::from)
    }

    /// True if there is another endpoint that is well.
    pub(crate) fn others(&self, than: &Endpoint, tried: &TriedEndpoints, now: Tick) -> bool {
        let mut good = self.eligible(tried, now, |_, health| health == EndpointHealth::Healthy);
        good.any(|candidate| !std::ptr::eq(Arc::as_ptr(candidate.endpoint), than))
    }

    /// True if there is any endpoint that is well.
    pub(crate) fn any_well(&self) -> bool {
        self.eligible(&TriedEndpoints::default(), self.now(), |_, health| health == EndpointHealth::Healthy)
            .next()
            .is_some()
    }

    /// The time that the model takes, by the endpoint where it takes longest; `None`: nothing was measured.
    pub(crate) fn expected(&self, now: Tick) -> Option<Duration> {
        let scores = self.list.iter().map(|endpoint| &endpoint.score).chain([&self.local]);
        scores.filter_map(|score| score.read(now)).max().map(Duration::from_nanos)
    }

    /// An endpoint whose time out is over, if this request may probe it.
    fn probe(&self, tried: &TriedEndpoints, now: Tick) -> Option<Choice> {
        let endpoint = self.list.iter().find(|endpoint| endpoint.is_due(now) && !tried.has(endpoint))?;
        let (known, health) = endpoint.look(now)?;
        (health == EndpointHealth::Due && endpoint.claim(now)).then(|| Choice::Remote(Arc::clone(endpoint), known))
    }

    /// One of the good endpoints of the nearest other region.
    fn far(&self, rng: &mut Rng, tried: &TriedEndpoints, now: Tick) -> Option<Candidate<'_>> {
        let good = self.eligible(tried, now, |_, health| health == EndpointHealth::Healthy);
        let nearest = good.min_by_key(|candidate| candidate.known.peer.rtt().unwrap_or(std::time::Duration::MAX))?;
        let region = nearest.known.region.clone();
        sooner(
            self.two(rng, tried, now, |known, health| health == EndpointHealth::Healthy && known.region == region),
            now,
        )
    }

    fn eligible(
        &self,
        tried: &TriedEndpoints,
        now: Tick,
        which: impl Fn(&NodeInstance, EndpointHealth) -> bool,
    ) -> impl Iterator<Item = Candidate<'_>> {
        self.list.iter().filter(|endpoint| !tried.has(endpoint)).filter_map(move |endpoint| {
            let (known, health) = endpoint.look(now)?;
            which(&known, health).then_some(Candidate { endpoint, known })
        })
    }

    /// Two of the eligible ones, every pair as likely as any other; fewer where there are fewer.
    fn two(
        &self,
        rng: &mut Rng,
        tried: &TriedEndpoints,
        now: Tick,
        which: impl Fn(&NodeInstance, EndpointHealth) -> bool,
    ) -> (Option<Candidate<'_>>, Option<Candidate<'_>>) {
        let mut drawn = [None, None];
        for (seen, candidate) in self.eligible(tried, now, which).enumerate() {
            if let Some(slot) = reservoir(seen, rng) {
                drawn[slot] = Some(candidate);
            }
        }
        let [first, second] = drawn;
        // Of equals the first wins: which one that is must not be the order of the route.
        if rng.below(2) == 0 { (first, second) } else { (second, first) }
    }

    fn is_local_worse(&self, busy: u32, other: &Endpoint, now: Tick) -> bool {
        match (self.local.read(now), other.score.read(now)) {
            (Some(mine), Some(its)) => cost(its, other.busy()) < cost(mine, u64::from(busy)),
            // A hop is only worth it where there is something to gain.
            _ => u64::from(busy) > other.busy() + UNMEASURED_LEAD,
        }
    }
}

/// Requests that the own replica may have more before one goes to an endpoint that was never measured: a few, so that
/// a new copy is taken up soon and not for nothing.
const UNMEASURED_LEAD: u64 = 4;

/// The place of the `seen`-th candidate in a sample of two, if any.
fn reservoir(seen: usize, rng: &mut Rng) -> Option<usize> {
    match seen {
        0 | 1 => Some(seen),
        _ => Some(rng.below(seen + 1)).filter(|slot| *slot < 2),
    }
}

/// The one of two that is likely to answer sooner.
fn sooner<'a>(two: (Option<Candidate<'a>>, Option<Candidate<'a>>), now: Tick) -> Option<Candidate<'a>> {
    let (first, second) = match two {
        (Some(first), Some(second)) => (first, second),
        (one, none) => return one.or(none),
    };
    // Where there is nothing to compare, the load alone says.
    let scores = first.endpoint.score.read(now).zip(second.endpoint.score.read(now));
    let (a, b) = scores.unwrap_or((1, 1));
    Some(if cost(b, second.endpoint.busy()) < cost(a, first.endpoint.busy()) { second } else { first })
}

/// The cost of an endpoint for one more request: its own run, and those before it.
pub(super) fn cost(latency: u64, busy: u64) -> u64 {
    latency.saturating_mul(busy + 1)
}

impl From<Candidate<'_>> for Choice {
    fn from(candidate: Candidate<'_>) -> Self {
        Self::Remote(Arc::clone(candidate.endpoint), candidate.known)
    }
}

/// Draws without state of its own: the number of the request, mixed (splitmix64).
struct Rng(u32);

impl Rng {
    /// A number of `0..n`, evenly distributed but for a negligible bias.
    fn below(&mut self, n: usize) -> usize {
        let mut mixed = (u64::from(self.0) << 32 | n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        self.0 = self.0.wrapping_add(0x9e37_79b9);
        (((mixed >> 32) * n as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use berth_peer::{Identity, Peers, pki::Authority};
    use berth_spec::{DeploymentName, RevisionId, WorkerId};
    use proptest::prelude::*;

    use super::*;
    use crate::endpoint::{
        InFlight,
        fleet::{Fleet, Remotes},
        tick::Clock,
    };

    /// Endpoints on this many nodes that nobody dials.
    fn endpoints(count: u16) -> Arc<Endpoints> {
        let pki = tempfile::tempdir().expect("a folder");
        let authority = Authority::create(pki.path()).expect("a CA");
        let worker = |name: &str| WorkerId::new(name).expect("a name");
        let identity = Identity::load(authority.issue(&worker("me"), &[]).expect("issued")).expect("an identity");
        let names: Vec<_> = (0..count).map(|n| worker(&format!("w{n}"))).collect();
        let peers = Peers::fixed(identity, names.iter().map(|name| (name.clone(), ([127, 0, 0, 1], 9).into())));
        let remotes = Remotes::new(Fleet { peers, members: None, region: None }, Clock::start());
        let revision = RevisionId::of(DeploymentName::new("iris").expect("a name"), b"1");
        let endpoints = Endpoints::of(&revision, "1", names.iter(), None, &remotes).expect("there are some");
        // Who is behind a name is looked up by the first request, and begins with a clean record.
        assert!(endpoints.list.iter().all(|endpoint| endpoint.look(Tick(1)).is_some()));
        endpoints
    }

    fn chosen(endpoints: &Endpoints, local: Option<u32>, tried: &TriedEndpoints, now: Tick) -> Option<usize> {
        match endpoints.choose(local, tried, now) {
            Some(Choice::Remote(endpoint, _)) => endpoints.list.iter().position(|one| Arc::ptr_eq(one, &endpoint)),
            Some(Choice::Local) => Some(usize::MAX),
            None => None,
        }
    }

    fn eject(endpoint: &Endpoint, now: Tick) {
        while !endpoint.remote.outlier.bad(now) {}
    }

    #[tokio::test]
    async fn what_was_tried_is_not_tried_again_and_the_last_is_never_ejected() {
        let (endpoints, now) = (endpoints(3), Tick(1_000));
        let mut tried = TriedEndpoints::default();
        endpoints.list.iter().for_each(|endpoint| eject(endpoint, now));
        for left in (0..3).rev() {
            let at = chosen(&endpoints, None, &tried, now).expect("one is left");
            tried.add(Arc::clone(&endpoints.list[at]));
            assert_eq!(endpoints.list.iter().filter(|endpoint| !tried.has(endpoint)).count(), left);
        }
        assert_eq!(chosen(&endpoints, None, &tried, now), None);
        assert_eq!(chosen(&endpoints, Some(9), &tried, now), Some(usize::MAX), "the own replica is always there");
    }

    #[tokio::test]
    async fn an_ejected_place_gets_nothing_and_then_one_probe() {
        let (endpoints, now) = (endpoints(3), Tick(1_000));
        eject(&endpoints.list[1], now);
        assert!((0..1_000).all(|_| chosen(&endpoints, None, &TriedEndpoints::default(), now) != Some(1)));
        let later = now.after(Duration::from_secs(1));
        let probes =
            (0..1_000).filter(|_| chosen(&endpoints, None, &TriedEndpoints::default(), later) == Some(1)).count();
        assert_eq!(probes, 1);
        endpoints.list[1].remote.outlier.good();
        assert!((0..1_000).any(|_| chosen(&endpoints, None, &TriedEndpoints::default(), later) == Some(1)));
    }

    #[tokio::test]
    async fn the_own_replica_is_left_only_for_something_better() {
        let (endpoints, now) = (endpoints(2), Tick(1_000));
        let none = TriedEndpoints::default();
        assert_eq!(chosen(&endpoints, Some(0), &none, now), Some(usize::MAX));
        assert_ne!(chosen(&endpoints, Some(9), &none, now), Some(usize::MAX), "it is busy, and nothing was measured");
        endpoints.local.record(Duration::from_micros(100), now);
        endpoints.list.iter().for_each(|endpoint| endpoint.score.record(Duration::from_micros(150), now));
        assert_eq!(chosen(&endpoints, Some(0), &none, now), Some(usize::MAX));
        assert_ne!(chosen(&endpoints, Some(1), &none, now), Some(usize::MAX));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// In a closed loop work goes to who does it: nobody idles while others queue, and slow ones get less.
        #[test]
        fn work_is_spread_by_speed(speeds in proptest::collection::vec(1_u64..20, 2..5)) {
            let endpoints = endpoints(u16::try_from(speeds.len()).expect("few"));
            let (mut done, mut running) = (vec![0_u64; speeds.len()], Vec::new());
            let mut now = 1_000_u64;
            for _ in 0..64 * speeds.len() {
                while running.len() < 4 * speeds.len() {
                    let at = chosen(&endpoints, None, &TriedEndpoints::default(), Tick(now)).expect("all are well");
                    let load = running.iter().filter(|(_, on, _, _)| *on == at).count() as u64;
                    // An endpoint does one thing after the other.
                    running.push((now + (load + 1) * speeds[at] * 100, at, now, InFlight::to(&endpoints.list[at])));
                }
                running.sort_by_key(|(ends, ..)| *ends);
                let (ends, at, began, in_flight_guard) = running.remove(0);
                now = now.max(ends);
                endpoints.list[at].score.record(Duration::from_micros(now - began), Tick(now));
                drop(in_flight_guard);
                done[at] += 1;
            }
            prop_assert!(done.iter().all(|done| *done > 0), "{speeds:?} {done:?}");
            let (fast, slow) = (speeds.iter().min().expect("some"), speeds.iter().max().expect("some"));
            if *slow >= 4 * fast {
                let at = |speed| speeds.iter().position(|one| one == speed).expect("it is one");
                prop_assert!(done[at(fast)] > done[at(slow)], "{speeds:?} {done:?}");
            }
        }

        /// Every candidate is in a sample of two about equally often.
        #[test]
        fn samples_are_fair(count in 2_usize..12, start in any::<u32>()) {
            let mut drawn = vec![0_u32; count];
            for draw in 0..4_000_u32 {
                let mut rng = Rng(start.wrapping_add(draw));
                let mut sample = [0, 0];
                for seen in 0..count {
                    if let Some(slot) = reservoir(seen, &mut rng) {
                        sample[slot] = seen;
                    }
                }
                prop_assert_ne!(sample[0], sample[1]);
                sample.iter().for_each(|at| drawn[*at] += 1);
            }
            let fair = 8_000 / u32::try_from(count).expect("few");
            prop_assert!(drawn.iter().all(|times| times.abs_diff(fair) < fair / 4 + 60), "{drawn:?}");
        }

        /// More load or more latency never makes an endpoint cheaper.
        #[test]
        fn cost_is_monotonic(latency in 1_u64..1 << 40, busy in 0_u64..1 << 20, more in 1_u64..1 << 20) {
            prop_assert!(cost(latency, busy + more) > cost(latency, busy));
            prop_assert!(cost(latency + more, busy) > cost(latency, busy));
        }
    }
}
