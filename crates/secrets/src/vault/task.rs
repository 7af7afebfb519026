//! The driver: carries out what the brain says, and tells it the time.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_spec::{Time, WorkerId};
use tokio::{sync::watch, task::JoinSet, time::Instant};

use super::{Call, Declared, Effect, Event, Http, Reply, UnrevokedLease, Vault, VaultSecrets};

/// Limit for revoking leases at shutdown. Leases left over expire by themselves.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Handle of the Vault task for the rest of the controller.
#[derive(Debug, Clone)]
pub struct Handle {
    wanted: watch::Sender<BTreeMap<WorkerId, Declared>>,
    found: watch::Receiver<Arc<VaultSecrets>>,
}

impl Handle {
    /// Says what all workers need, whole.
    pub fn want(&self, all: BTreeMap<WorkerId, Declared>) {
        self.wanted.send_if_modified(|wanted| {
            let changed = *wanted != all;
            *wanted = all;
            changed
        });
    }

    /// The newest secrets from Vault; changes with each new set.
    #[must_use]
    pub fn found(&self) -> watch::Receiver<Arc<VaultSecrets>> {
        self.found.clone()
    }
}

/// Drives a [`Vault`] until it is stopped.
#[derive(Debug)]
pub struct Task {
    brain: Vault,
    http: Http,
    wanted: watch::Receiver<BTreeMap<WorkerId, Declared>>,
    found: watch::Sender<Arc<VaultSecrets>>,
    /// The clock's time when `began` was: from there on the monotonic clock counts.
    epoch: Time,
    began: Instant,
}

/// A task, and what others hold of it. `seed` spreads its waits: any number that differs between controllers.
#[must_use]
pub fn build(brain: Vault, http: Http) -> (Handle, Task) {
    let (wanted, wants) = watch::channel(BTreeMap::new());
    let (tell, found) = watch::channel(Arc::new(VaultSecrets::default()));
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    let task = Task { brain, http, wanted: wants, found: tell, epoch, began: Instant::now() };
    (Handle { wanted, found }, task)
}

impl Task {
    /// Runs until `stop` is ready; then revokes what it can within five seconds. Dropped instead, leases live on to their end:
    /// that is for a leader that is followed by another.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let mut in_flight: JoinSet<(u64, Result<Reply, String>)> = JoinSet::new();
        let mut stop_by: Option<Instant> = None;
        let mut event = Event::Tick;
        loop {
            let now = self.now();
            for effect in self.brain.on(event, now) {
                match effect {
                    Effect::Call(call) => self.start(&mut in_flight, call),
                    Effect::VaultSecrets(found) => drop(self.found.send_replace(Arc::new(found))),
                    Effect::UnrevokedLease(left) => {
                        let UnrevokedLease { lease, worker, problem } = left;
                        tracing::warn!(event = "vault_lease_left", lease, worker, problem, "it ends by itself");
                    }
                    Effect::Stopped => return,
                }
            }
            let wake = self.brain.wake_at().map(|at| Instant::now() + at.since(self.now()));
            let wake = stop_by.or(wake);
            event = tokio::select! {
                () = &mut stop, if stop_by.is_none() => {
                    stop_by = Some(Instant::now() + STOP_TIMEOUT);
                    Event::Stop
                }
                Ok(()) = self.wanted.changed(), if stop_by.is_none() => {
                    Event::Wanted(self.wanted.borrow_and_update().clone())
                }
                Some(answered) = in_flight.join_next() => match answered {
                    Ok((call, reply)) => Event::Answered { call, reply },
                    // A call that panicked has no number: the brain would wait for it for good.
                    Err(error) => {
                        tracing::error!(%error, "vault_call_failed");
                        return;
                    }
                },
                () = sleep_until(wake) => {
                    if stop_by.is_some() {
                        tracing::warn!("vault_leases_left: Vault did not answer in time; they end by themselves");
                        return;
                    }
                    Event::Tick
                }
            };
        }
    }

    fn start(&self, in_flight: &mut JoinSet<(u64, Result<Reply, String>)>, call: Call) {
        let http = self.http.clone();
        in_flight.spawn(async move { (call.id, http.call(&call).await) });
    }

    fn now(&self) -> Time {
        self.epoch + self.began.elapsed()
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
