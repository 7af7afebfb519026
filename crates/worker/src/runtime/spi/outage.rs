//! The outage of a runtime that calls or loads did not reach, or that answers nothing.
//!
//! ```text
//!             ┌─ every 10 s without an answer: is it there? ─┐
//!             ▼                                              │
//! reached ──a call, a load or that question fails──▶ watched ──for 20 s──▶ gone: its models are lost, and a program
//!    ▲                                   │                    │            that hangs is started again
//!    └───────────── it answers ◀─────────┴────────────────────┘
//! ```
//! The times are those of [`HealthCheck`].
//!
//! One that is started again before that keeps its models: calls that find them missing have them loaded again. One that is silent
//! while calls or loads are under way may be at work, and has longer. Silence counts only of a runtime that has answered such a question before.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use berth_spec::FailureCategory;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    HealthCheck, Process,
    reach::RETRY_INTERVAL,
    thread_connections::{HealthCheckError, ThreadConnections},
};
use crate::runtime::{Health, LoadError};

/// The state of the watch, and the models that are lost with the runtime.
pub(super) struct Outage {
    watched: AtomicBool,
    gone: watch::Sender<bool>,
    models: Mutex<Vec<Weak<watch::Sender<Health>>>>,
    /// True once it has answered a health check.
    answers: AtomicBool,
    /// True if a call was answered since this was looked at.
    heard: AtomicBool,
    /// Calls that wait for the runtime.
    calls: AtomicUsize,
}

/// A call whose answer has not ended. It counts while its caller waits for the runtime, and not while the runtime would wait for a
/// caller who leaves an answer unread.
pub(super) struct CallUnderWay {
    outage: Arc<Outage>,
    counts: bool,
}

impl CallUnderWay {
    /// Notes that its caller waits for more.
    pub(super) fn awaits(&mut self) {
        if !std::mem::replace(&mut self.counts, true) {
            self.outage.calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that its caller has all that came.
    pub(super) fn rests(&mut self) {
        if std::mem::take(&mut self.counts) {
            self.outage.calls.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notes that a part of its answer came.
    pub(super) fn heard(&self) {
        // Read first: all threads that call share it.
        if !self.outage.heard.load(Ordering::Relaxed) {
            self.outage.heard.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for CallUnderWay {
    fn drop(&mut self) {
        self.rests();
    }
}

/// The time for which a runtime answered no health check.
struct OutageClock {
    since: Instant,
    /// The end of the silence that it may have spent at work.
    worked: Instant,
    health: HealthCheck,
}

impl OutageClock {
    fn start(now: Instant, health: HealthCheck) -> Self {
        Self { since: now, worked: now, health }
    }

    /// Notes another attempt in vain. Returns true if the runtime is gone; work has at most `longest`.
    fn is_over(&mut self, now: Instant, at_work: bool, longest: Duration) -> bool {
        if at_work {
            self.worked = now;
        }
        now.saturating_duration_since(self.worked) >= self.health.lost_after
            || now.saturating_duration_since(self.since) >= longest
    }
}

impl Outage {
    pub(super) fn new() -> Self {
        Self {
            watched: AtomicBool::new(false),
            gone: watch::Sender::new(false),
            models: Mutex::default(),
            answers: AtomicBool::new(false),
            heard: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
        }
    }

    /// Adds a model, as long as its health is kept.
    pub(super) fn concerns(&self, health: &Arc<watch::Sender<Health>>) {
        let mut models = self.models();
        models.retain(|model| model.strong_count() > 0);
        models.push(Arc::downgrade(health));
    }

    /// Begins a call, whose caller waits for the runtime.
    pub(super) fn call(self: &Arc<Self>) -> CallUnderWay {
        self.calls.fetch_add(1, Ordering::Relaxed);
        CallUnderWay { outage: Arc::clone(self), counts: true }
    }

    /// Returns once the runtime is gone.
    pub(super) async fn gone(&self) {
        let mut gone = self.gone.subscribe();
        drop(gone.wait_for(|gone| *gone).await);
    }

    /// True if a health check is due: it has models, and nothing was heard of it since the last look.
    fn is_quiet(&self) -> bool {
        let heard = self.was_heard();
        !heard && !self.watched.load(Ordering::Acquire) && self.models().iter().any(|model| model.strong_count() > 0)
    }

    fn was_heard(&self) -> bool {
        self.heard.swap(false, Ordering::Relaxed)
    }

    /// Notes that the runtime is gone. Returns true for the first time.
    fn goes_on(&self, why: &LoadError) -> bool {
        for health in self.models().iter().filter_map(Weak::upgrade) {
            health.send_if_modified(|health| {
                let is_new = health.lost.is_none();
                if is_new {
                    health.lost = Some(why.clone());
                }
                is_new
            });
        }
        !self.gone.send_replace(true)
    }

    fn ends(&self) {
        self.gone.send_replace(false);
        self.watched.store(false, Ordering::Release);
    }

    fn models(&self) -> MutexGuard<'_, Vec<Weak<watch::Sender<Health>>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Sends the runtime health checks as long as it lasts.
    pub(super) fn check_health(self: &Arc<Self>) {
        self.handle().spawn(check_health(Arc::downgrade(self), Arc::clone(&self.connections), self.health));
    }

    /// Watches a runtime that a call or a load did not reach, until it can be reached.
    pub(super) fn missed(self: &Arc<Self>) {
        if !self.outage.watched.swap(true, Ordering::AcqRel) {
            self.handle().spawn(watch_outage(Arc::downgrade(self), Arc::clone(&self.connections), self.health));
        }
    }

    /// The error of a load in a runtime that is gone.
    pub(super) fn unreached(&self) -> LoadError {
        LoadError::new(FailureCategory::Network, format!("the runtime {} cannot be reached", self.name))
    }

    /// True while calls or loads wait for it.
    fn is_at_work(&self) -> bool {
        self.outage.calls.load(Ordering::Relaxed) > 0 || self.loading.available_permits() < self.limits.loads
    }

    /// Notes another health check in vain.
    fn is_absent(&self, clock: &mut OutageClock, error: &HealthCheckError) {
        let is_silent = matches!(error, HealthCheckError::Silent { .. });
        let at_work = is_silent && self.is_at_work();
        if !at_work {
            // Loads need not wait as well.
            self.absence.goes_on();
        }
        let nobody =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound);
        if matches!(error, HealthCheckError::Unreached(error) if nobody(error)) {
            // The next process has answered nothing yet, and may take connections long before it does.
            self.outage.answers.store(false, Ordering::Release);
        }
        // A load may take as long as the runtime says.
        let HealthCheck { busy_timeout, lost_after, .. } = self.health;
        let longest = busy_timeout.max(self.limits.load_timeout + lost_after);
        if !clock.is_over(Instant::now(), at_work, longest) {
            return;
        }
        let why = match is_silent {
            true => LoadError::new(FailureCategory::Network, format!("the runtime {} does not answer", self.name)),
            false => self.unreached(),
        };
        if self.outage.goes_on(&why) {
            let (runtime, after_s) = (self.name.as_str(), clock.since.elapsed().as_secs());
            tracing::warn!(event = "runtime_lost", runtime, after_s, %error, "{why}: its models are lost");
            if is_silent {
                self.restart();
            }
        }
    }

    /// Has a program that hangs started again. One that somebody else started is left alone.
    fn restart(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = &running.program {
            program.restart();
        }
    }
}

/// Sends a runtime health checks: at once, and whenever nothing was heard of it for a while.
async fn check_health(of: Weak<Process>, connections: Arc<ThreadConnections>, health: HealthCheck) {
    loop {
        let answered = connections.check(health.timeout).await;
        let Some(process) = of.upgrade() else { return };
        match answered {
            Ok(()) => process.outage.answers.store(true, Ordering::Release),
            Err(_) if process.outage.answers.load(Ordering::Acquire) => process.missed(),
            Err(_) => {}
        }
        drop(process);
        loop {
            sleep(health.interval).await;
            match of.upgrade() {
                None => return,
                Some(process) if process.outage.is_quiet() => break,
                Some(_) => {}
            }
        }
    }
}

async fn watch_outage(of: Weak<Process>, connections: Arc<ThreadConnections>, health: HealthCheck) {
    let mut clock = OutageClock::start(Instant::now(), health);
    while let Some(process) = of.upgrade() {
        let answers = process.outage.answers.load(Ordering::Acquire);
        process.outage.was_heard();
        // It may end meanwhile.
        drop(process);
        let found = if answers { connections.check(health.timeout).await } else { connections.reach().await };
        let Some(process) = of.upgrade() else { return };
        match found {
            Ok(()) => return process.outage.ends(),
            // It takes no new connections, and serves those that it has.
            Err(HealthCheckError::Silent { .. }) if process.outage.was_heard() => return process.outage.ends(),
            Err(error) => process.is_absent(&mut clock, &error),
        }
        drop(process);
        sleep(RETRY_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn one_that_may_be_at_work_has_longer() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let over = |health: HealthCheck, silences: &[(u64, bool)]| {
            let mut clock = OutageClock::start(begin, health);
            silences.iter().map(|(n, work)| clock.is_over(at(*n), *work, health.busy_timeout)).collect::<Vec<_>>()
        };
        let usual = HealthCheck::default();
        assert_eq!(over(usual, &[(19, false), (20, false)]), [false, true]);
        let worked = [(30, true), (60, true), (79, false), (80, false)];
        assert_eq!(over(usual, &worked), [false, false, false, true], "it worked until the 60th second");
        assert_eq!(over(usual, &[(299, true), (300, true)]), [false, true], "nothing takes that long");
        let [lost_after, busy_timeout] = [5, 30].map(Duration::from_secs);
        let other = HealthCheck { lost_after, busy_timeout, ..usual };
        assert_eq!(over(other, &[(4, false), (5, false)]), [false, true]);
        assert_eq!(over(other, &[(29, true), (30, true)]), [false, true]);
    }

    #[test]
    fn a_check_is_due_when_it_has_models_and_no_call_was_answered() {
        let (outage, health) = (Arc::new(Outage::new()), Arc::new(watch::Sender::new(Health::default())));
        assert!(!outage.is_quiet(), "nothing would be lost");
        outage.concerns(&health);
        assert!(outage.is_quiet());
        outage.call().heard();
        assert!(!outage.is_quiet() && outage.is_quiet(), "that was before the last look");
        let waiting = || outage.calls.load(Ordering::Relaxed);
        let mut call = outage.call();
        assert_eq!(waiting(), 1);
        for _ in 0..2 {
            call.rests();
        }
        assert_eq!(waiting(), 0, "its caller leaves the answer unread");
        for _ in 0..2 {
            call.awaits();
        }
        assert_eq!(waiting(), 1, "it asks for more");
        drop(call);
        assert_eq!(waiting(), 0);
        outage.watched.store(true, Ordering::Release);
        assert!(!outage.is_quiet(), "it is checked all the time");
    }

    #[test]
    fn models_are_lost_once_and_loads_fail_until_the_runtime_is_back() {
        let (outage, health) = (Arc::new(Outage::new()), Arc::new(watch::Sender::new(Health::default())));
        let mut changes = health.subscribe();
        outage.concerns(&health);
        assert!(outage.gone().now_or_never().is_none());
        let why = LoadError::new(FailureCategory::Network, "it cannot be reached");
        assert!(outage.goes_on(&why) && !outage.goes_on(&why));
        assert!(changes.has_changed().expect("it is there"));
        assert_eq!(changes.borrow_and_update().lost, Some(why.clone()));
        assert!(!outage.goes_on(&why) && !changes.has_changed().expect("it is there"), "told once");
        assert!(outage.gone().now_or_never().is_some());
        outage.ends();
        assert!(outage.gone().now_or_never().is_none());
        drop((health, changes));
        outage.concerns(&Arc::new(watch::Sender::new(Health::default())));
        assert_eq!(outage.models().len(), 1, "the first one has ended");
    }
}
