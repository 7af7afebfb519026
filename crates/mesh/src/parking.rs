//! The queue of requests that wait for a deployment that has no ready replica.
//!
//! ```text
//!            enter (queue not full)          route changed
//! request ─────────────────────────→ parked ───────────────→ lease? ── yes ──→ goes on
//!    │ full: queue_full                │  ↑                     │
//!    ▼                                 │  └──── still a miss ───┤
//!  shed                 deadline: loading                       └─ refused: no_capacity, load_failed, …
//! ```
//!
//! Any number of waiters is one demand: the first makes the controller be told at once, and as long as somebody waits
//! it is told again with every flush (`demand`). Every waiter keeps its own deadline. A wake-up is no promise: the
//! woken request asks for a lease, and parks again if another change came between.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use berth_spec::{InferError, Time, inference::Shed, routes::OnMiss};
use tokio::time::{Instant, timeout_at};

use crate::{
    accounts::Key,
    calls::Calls,
    demand::DemandTracker,
    deployment::{DeploymentState, VersionLease},
    fair::Pool,
    local::LocalReplicas,
    resolved::{NoLease, RevisionSelector},
};

/// When to try again after a queue was full or a load took too long, until loads were seen: about a small model's load.
const RETRY_LOADING: Duration = Duration::from_secs(2);
/// The part of the average wait for loads that the latest one makes: the last ten or so count.
const SMOOTHING_DIVISOR: u64 = 8;
/// When to try again if one version is not ready: after the plan may have changed.
const RETRY_VERSION: Duration = Duration::from_secs(15);
/// The shortest and the longest wait that the plan's next try is told as. Below the first, clients come before it is
/// done; beyond the second, somebody may have changed something meanwhile.
const RETRY_BOUNDS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Parks requests that find no ready replica.
pub(crate) struct Parking {
    pub(crate) replicas: Arc<LocalReplicas>,
    pub(crate) demand: Arc<DemandTracker>,
    /// Places of all queues together.
    pub(crate) places: Pool,
    /// Counts of calls; `None`: they are not wanted.
    pub(crate) calls: Option<Arc<Calls>>,
    /// Waits of requests whose model came.
    pub(crate) waits: Waits,
}

/// The average time that requests waited for loads that came, in milliseconds; 0: none did yet.
#[derive(Debug, Default)]
pub(crate) struct Waits(AtomicU64);

impl Waits {
    /// Takes one more. Two at once may count as one: it is an average.
    fn add(&self, waited: Duration) {
        let millis = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX).clamp(1, u64::MAX / SMOOTHING_DIVISOR);
        let known = self.0.load(Relaxed);
        let next = if known == 0 {
            millis
        } else {
            (known * (SMOOTHING_DIVISOR - 1)).saturating_add(millis) / SMOOTHING_DIVISOR
        };
        self.0.store(next.max(1), Relaxed);
    }

    /// When to try again for a model that is being loaded.
    fn retry_in(&self) -> Duration {
        let (shortest, longest) = RETRY_BOUNDS;
        match self.0.load(Relaxed) {
            0 => RETRY_LOADING,
            millis => Duration::from_millis(millis).clamp(shortest, longest),
        }
    }
}

/// The pause after which a waiter looks again though nothing was said, where other nodes are asked: a line that can be
/// made again is announced by nobody. A quarter of a second is short beside a node that restarts.
const RECHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A request that needs a replica, until it has one or is refused.
#[derive(Clone, Copy)]
pub(crate) struct ReplicaRequest<'a> {
    pub(crate) entry: &'a Arc<DeploymentState>,
    /// The key of its place in the queue.
    pub(crate) key: &'a Arc<Key>,
    /// `None`: whichever version the route says.
    pub(crate) version: Option<&'a str>,
    /// The end of its wait.
    pub(crate) deadline: Instant,
}

/// A look of a waiter for a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The first look, before any wait.
    First,
    /// Something may have changed.
    Repeated,
}

impl Parking {
    /// A lease now, or as soon as one can be had before the deadline; requests with the same `sticky` key go to the same
    /// revision. Anything else is an error of the right kind.
    pub(crate) async fn lease(
        &self,
        request: ReplicaRequest<'_>,
        sticky: Option<u64>,
    ) -> Result<VersionLease, InferError> {
        let wanted = RevisionSelector { version: request.version, key: sticky };
        self.find(request, |_| request.entry.lease(wanted, &self.replicas)).await
    }

    /// The result of `look`, now, or as soon as there is one before the deadline.
    pub(crate) async fn find<T: Send>(
        &self,
        request: ReplicaRequest<'_>,
        mut look: impl FnMut(Lookup) -> Result<T, NoLease> + Send,
    ) -> Result<T, InferError> {
        match look(Lookup::First) {
            Ok(found) => Ok(found),
            Err(NoLease::Miss(OnMiss::Park)) => Box::pin(self.park(request, look)).await,
            Err(no) => {
                if matches!(no, NoLease::Miss(_)) {
                    request.entry.hot().stats.miss();
                }
                Err(refusal(request.entry, request.version, no))
            }
        }
    }

    async fn park<T: Send>(
        &self,
        request: ReplicaRequest<'_>,
        look: impl FnMut(Lookup) -> Result<T, NoLease> + Send,
    ) -> Result<T, InferError> {
        let entry = request.entry;
        let hot = entry.hot();
        hot.stats.miss();
        let queue = entry.route().terms.concurrency.queue;
        let Some(place) = hot.queue.enter(queue, &self.places, request.key) else {
            let message =
                format!("model {:?} is loading and {queue} requests wait for it already", entry.name.as_str());
            return Err(InferError::shed(Shed::QueueFull, message, self.waits.retry_in()));
        };
        let began = Instant::now();
        self.demand.demand(entry, began);
        let waited = wait(request, &self.waits, look).await;
        drop(place);
        if waited.is_ok() {
            self.waits.add(began.elapsed());
        }
        // The counts of a deleted model have gone with it, and are not made again.
        if let Some(calls) = self.calls.as_ref().filter(|_| !entry.route().terms.gone) {
            calls.missed(&entry.name, began.elapsed());
        }
        if hot.queue.waiting() == 0 {
            self.demand.released();
        }
        waited
    }
}

/// Waits for a replica, or for the word that there will be none.
async fn wait<T: Send>(
    request: ReplicaRequest<'_>,
    waits: &Waits,
    mut look: impl FnMut(Lookup) -> Result<T, NoLease> + Send,
) -> Result<T, InferError> {
    let ReplicaRequest { entry, version, deadline, .. } = request;
    let hot = entry.hot();
    let mut why = Lookup::First;
    loop {
        // Listen first, look second: a change between the two must not be slept through.
        let mut changed = std::pin::pin!(hot.queue.changed());
        changed.as_mut().enable();
        match look(why) {
            Ok(found) => return Ok(found),
            Err(NoLease::Miss(OnMiss::Park)) => {}
            Err(no) => return Err(refusal(entry, version, no)),
        }
        why = Lookup::Repeated;
        let relook = entry.route().has_places().then(|| Instant::now() + RECHECK_INTERVAL);
        let until = relook.map_or(deadline, |relook| relook.min(deadline));
        if timeout_at(until, changed).await.is_err() && until == deadline {
            let message = format!("model {:?} is still loading; try again", entry.name.as_str());
            return Err(InferError::shed(Shed::Loading, message, waits.retry_in()));
        }
    }
}

/// The error for people and machines of a request that got no lease and will not wait.
pub(crate) fn refusal(entry: &DeploymentState, version: Option<&str>, no: NoLease) -> InferError {
    let name = entry.name.as_str();
    match no {
        NoLease::Gone => InferError::NotFound(format!("model {name:?} was deleted")),
        NoLease::NoSuchVersion => {
            let version = version.unwrap_or_default();
            let known: Vec<_> = entry.route().targets.iter().map(|target| target.version.to_string()).collect();
            InferError::NotFound(format!("model {name:?} has no version {version:?}; it has {known:?}"))
        }
        NoLease::VersionNotReady => {
            let version = version.unwrap_or_default();
            let message = format!("version {version:?} of model {name:?} is not ready; leave the version out");
            InferError::shed(Shed::Unavailable, message, RETRY_VERSION)
        }
        NoLease::Miss(OnMiss::NoCapacity { message: why, retry_at }) => {
            let message = format!("no worker can hold model {name:?}: {why}");
            InferError::Shed { reason: Shed::NoCapacity, message, retry_in: retry_in(retry_at, now()) }
        }
        NoLease::Miss(OnMiss::Failed { message: why, retry_at }) => {
            let message = format!("model {name:?} could not be loaded: {why}");
            InferError::Shed { reason: Shed::LoadFailed, message, retry_in: retry_in(retry_at, now()) }
        }
        NoLease::Miss(OnMiss::Restarting { message: why, again_at }) => {
            let message = format!("model {name:?} does not answer for a while: {why}");
            InferError::Shed { reason: Shed::Unavailable, message, retry_in: retry_in(Some(again_at), now()) }
        }
        NoLease::Miss(OnMiss::ScaledDown) => {
            let message = format!(
                "model {name:?} is disabled: it is declared with no replicas, and answers nobody until that is changed \
                 (replicas.max above 0, or enabled: true in the registry)"
            );
            InferError::Shed { reason: Shed::ScaledDown, message, retry_in: None }
        }
        NoLease::Miss(OnMiss::Park) => {
            InferError::shed(Shed::Loading, format!("model {name:?} is loading; try again"), RETRY_LOADING)
        }
    }
}

/// The time until the plan tries again; `None`: only a change of the spec or of the workers helps.
fn retry_in(retry_at: Option<Time>, now: Time) -> Option<Duration> {
    let (shortest, longest) = RETRY_BOUNDS;
    retry_at.map(|at| at.since(now).clamp(shortest, longest))
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use crate::fair::Shape;
    use berth_spec::{DeploymentName, GatewayEvent};
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn cold(name: &str) -> Arc<DeploymentState> {
        Arc::new(DeploymentState::cold(DeploymentName::new(name).expect("a name")))
    }

    /// The clock goes on only when nothing else can be done: what happens at one moment of it has waited for no tick.
    #[tokio::test(start_paused = true)]
    async fn a_miss_is_told_at_once_and_again_with_each_tick() {
        let (entry, demand) = (cold("iris"), DemandTracker::new());
        let parking = Parking {
            replicas: Arc::default(),
            demand: Arc::clone(&demand),
            places: Pool::new(1, 0, Shape::new(false)),
            calls: None,
            waits: Waits::default(),
        };
        let key = Arc::default();
        let (events, mut heard) = mpsc::channel(1);
        let story = async {
            // The first tick comes at once: the miss is between two others.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let missed = Instant::now();
            let deadline = missed + Duration::from_secs(60);
            let request = ReplicaRequest { entry: &entry, key: &key, version: None, deadline };
            let words = async {
                let mut at = Vec::new();
                while at.len() < 2 {
                    let Some(GatewayEvent::Demand(demands)) = heard.recv().await else { panic!("it is told") };
                    assert_eq!((demands.len(), demands[0].waiting), (1, 1));
                    at.push(missed.elapsed());
                }
                at
            };
            tokio::select! {
                at = words => at,
                _ = parking.lease(request, None) => panic!("nothing is ready"),
            }
        };
        tokio::select! {
            at = story => assert_eq!(at, [Duration::ZERO, Duration::from_millis(700)]),
            () = demand.run(events, CancellationToken::new()) => panic!("it goes on"),
        }
    }

    #[test]
    fn who_is_sent_away_is_told_how_long_loads_take() {
        let waits = Waits::default();
        assert_eq!(waits.retry_in(), RETRY_LOADING);
        waits.add(Duration::from_secs(40));
        assert_eq!(waits.retry_in(), Duration::from_secs(40));
        (0..100).for_each(|_| waits.add(Duration::from_millis(20)));
        assert_eq!(waits.retry_in(), RETRY_BOUNDS.0);
        (0..100).for_each(|_| waits.add(Duration::MAX));
        assert_eq!(waits.retry_in(), RETRY_BOUNDS.1);
    }

    #[test]
    fn the_next_try_of_the_plan_is_when_to_come_again() {
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        for (retry_at, seconds) in
            [(None, None), (Some(at(142)), Some(42)), (Some(at(50)), Some(1)), (Some(at(100_000)), Some(300))]
        {
            assert_eq!(retry_in(retry_at, at(100)), seconds.map(Duration::from_secs), "{retry_at:?}");
        }
    }
}
