//! Reports use to the controller: coalesced, once a second, and at once for a miss.
//!
//! ```text
//! request ── first since the last word ──→ listed ──┬─ every second ──→ Demand batch ─→ controller
//! miss ───── listed, and all told at once ──────────┴───────────────→ Demand batch ─┘
//!                                          (still waiting or in flight: listed again)
//! ```
//! A miss is told by the thread of its request, with the other uses that are listed: what is evicted for it is the longest unused. Where
//! many are listed, or words are on their way already, the flusher is woken instead.
//!
//! A deployment is listed once however many requests come, so the lock is taken once per deployment and second, and the
//! list is bounded by the number of deployments.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use berth_spec::{Demand, DeploymentName, GatewayEvent, Time};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::deployment::DeploymentState;

/// The time between two reports: a second is fine enough for eviction, which looks at minutes.
const DEMAND_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two reports of results: they are compared over minutes.
const OUTCOMES_INTERVAL: Duration = Duration::from_secs(5);
/// The most deployments in one event, so that none holds the controller up for long.
const MAX_EVENT_ENTRIES: usize = 1_024;

/// The most deployments that the thread of a miss tells of: some microseconds.
const MAX_TOLD_BY_MISS: usize = 64;

/// The deployments that were used or waited for since the last report.
pub(crate) struct DemandTracker {
    listed: Mutex<Vec<Arc<DeploymentState>>>,
    /// Deployments whose results by revision were not reported yet.
    unreported: Mutex<Vec<Arc<DeploymentState>>>,
    /// Deployments that a client asked to page out.
    page_outs: Mutex<Vec<DeploymentName>>,
    /// A miss or a page-out: do not wait for the tick.
    urgent: Notify,
    /// The way to the controller, as long as the flusher runs.
    events: OnceLock<mpsc::WeakSender<GatewayEvent>>,
    /// True while the flusher has words that are not sent: a newer word must not overtake them.
    flushing: Mutex<bool>,
    /// The clocks at the same moment, so that one monotonic reading per request gives both its latency and its time.
    started: (Instant, u64),
}

impl DemandTracker {
    pub(crate) fn new() -> Arc<Self> {
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Arc::new(Self {
            listed: Mutex::default(),
            unreported: Mutex::default(),
            page_outs: Mutex::default(),
            urgent: Notify::new(),
            events: OnceLock::new(),
            flushing: Mutex::new(false),
            started: (Instant::now(), u64::try_from(epoch.as_nanos()).unwrap_or(u64::MAX)),
        })
    }

    /// Notes a request for a deployment at `now`: it is in the next report.
    pub(crate) fn touch(&self, entry: &Arc<DeploymentState>, now: Instant) {
        entry.hot().usage.requests.fetch_add(1, Relaxed);
        self.used(entry, now);
    }

    /// Notes that a request waits, which was noted before: the controller is told at once.
    pub(crate) fn demand(&self, entry: &Arc<DeploymentState>, now: Instant) {
        self.used(entry, now);
        if !self.tell() {
            self.urgent.notify_one();
        }
    }

    /// Tells the controller of what is listed; false if that is the flusher's, because it is much or other words go before.
    fn tell(&self) -> bool {
        let Some(events) = self.events.get().and_then(mpsc::WeakSender::upgrade) else { return false };
        let flushing = self.flushing();
        if *flushing || events.capacity() < events.max_capacity() {
            return false;
        }
        let Ok(room) = events.try_reserve() else { return false };
        let Some(entries) = self.few() else { return false };
        if !entries.is_empty() {
            room.send(GatewayEvent::Demand(entries.iter().map(|entry| self.word(entry)).collect()));
            Self::report_later(&mut self.unreported(), entries);
        }
        true
    }

    /// Empties the demand, if it is a few deployments and nothing else.
    fn few(&self) -> Option<Vec<Arc<DeploymentState>>> {
        if !self.page_outs.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return None;
        }
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        (listed.len() <= MAX_TOLD_BY_MISS).then(|| mem::take(&mut *listed))
    }

    fn unreported(&self) -> MutexGuard<'_, Vec<Arc<DeploymentState>>> {
        self.unreported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report_later(unreported: &mut Vec<Arc<DeploymentState>>, entries: Vec<Arc<DeploymentState>>) {
        unreported.extend(entries.into_iter().filter(|entry| !entry.hot().usage.unreported.swap(true, Relaxed)));
    }

    fn flushing(&self) -> MutexGuard<'_, bool> {
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that nobody waits for a deployment any more: it is listed still, and others may be waiting for its room.
    pub(crate) fn released(&self) {
        self.urgent.notify_one();
    }

    fn used(&self, entry: &Arc<DeploymentState>, now: Instant) {
        let since = u64::try_from((now - self.started.0).as_nanos()).unwrap_or(u64::MAX);
        entry.hot().usage.last_used.store(self.started.1.saturating_add(since), Relaxed);
        self.list(entry);
    }

    /// Passes a client's wish on: page this deployment out.
    pub(crate) fn page_out(&self, name: &DeploymentName) {
        let mut page_outs = self.page_outs.lock().unwrap_or_else(PoisonError::into_inner);
        if !page_outs.contains(name) {
            page_outs.push(name.clone());
        }
        drop(page_outs);
        self.urgent.notify_one();
    }

    /// The deployments that somebody waits for (and some that were used lately).
    pub(crate) fn listed(&self) -> Vec<Arc<DeploymentState>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sees to it that the controller is told of this deployment; one relaxed load when it will be anyway.
    pub(crate) fn list(&self, entry: &Arc<DeploymentState>) {
        let listed = &entry.hot().usage.listed;
        if !listed.load(Relaxed) && !listed.swap(true, Relaxed) {
            self.listed.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(entry));
        }
    }

    /// Empties the demand. What is still waited for or in flight is listed again, so that its end is told, too.
    fn take(&self, report: bool) -> Vec<GatewayEvent> {
        let entries = mem::take(&mut *self.listed.lock().unwrap_or_else(PoisonError::into_inner));
        let page_outs = mem::take(&mut *self.page_outs.lock().unwrap_or_else(PoisonError::into_inner));
        let mut events = Vec::new();
        for batch in entries.chunks(MAX_EVENT_ENTRIES) {
            let demands = batch.iter().map(|entry| self.word(entry)).collect();
            events.push(GatewayEvent::Demand(demands));
        }
        // After the uses that came before them: a use takes an earlier wish back.
        events.extend(page_outs.into_iter().map(GatewayEvent::PageOut));
        let mut unreported = self.unreported();
        Self::report_later(&mut unreported, entries);
        if report {
            events.extend(outcomes(&mut unreported));
        }
        events
    }

    fn word(&self, entry: &Arc<DeploymentState>) -> Demand {
        let hot = entry.hot();
        // Unlisted first: a request that comes now lists it again rather than being forgotten.
        hot.usage.listed.store(false, Relaxed);
        let demand = Demand {
            deployment: entry.name.clone(),
            waiting: hot.queue.waiting(),
            in_flight: hot.usage.in_flight.load(Relaxed),
            last_used: Time(hot.usage.last_used.load(Relaxed)),
            requests: hot.usage.requests.swap(0, Relaxed),
        };
        if demand.waiting > 0 || demand.in_flight > 0 {
            self.list(entry);
        }
        demand
    }

    /// Tells the controller until the gateway stops; the last word is told after that. A slow controller slows only
    /// this down: what happens meanwhile is coalesced.
    pub(crate) async fn run(&self, events: mpsc::Sender<GatewayEvent>, stopped: CancellationToken) {
        let (mut tick, mut report_at) = (interval(DEMAND_INTERVAL), Instant::now() + OUTCOMES_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // There is one flusher in the life of a gateway.
        let _ = self.events.set(events.downgrade());
        loop {
            let last = tokio::select! {
                () = self.urgent.notified() => false,
                _ = tick.tick() => false,
                () = stopped.cancelled() => true,
            };
            let now = Instant::now();
            let report = last || now >= report_at;
            if report {
                report_at = now + OUTCOMES_INTERVAL;
            }
            *self.flushing() = true;
            for event in self.take(report) {
                if events.send(event).await.is_err() {
                    tracing::debug!("nobody listens to demand any more");
                    return;
                }
            }
            *self.flushing() = false;
            if last {
                return;
            }
        }
    }
}

/// The results of these deployments since the last report. One that had some is asked once more the next time: a request may
/// end just after it was asked.
fn outcomes(unreported: &mut Vec<Arc<DeploymentState>>) -> Vec<GatewayEvent> {
    let mut outcomes = Vec::new();
    unreported.retain(|entry| {
        let before = outcomes.len();
        outcomes.extend(entry.hot().outcomes.take());
        let had_some = outcomes.len() > before;
        if !had_some {
            entry.hot().usage.unreported.store(false, Relaxed);
        }
        had_some
    });
    outcomes.chunks(MAX_EVENT_ENTRIES).map(|some| GatewayEvent::Outcomes(some.to_vec())).collect()
}
