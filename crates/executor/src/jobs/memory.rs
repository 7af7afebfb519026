//! The queue in this process's memory. Its jobs end with the process.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::FutureExt as _;
use tokio::{
    sync::{Notify, broadcast},
    time::{Instant, timeout_at},
};

use super::{
    job::{Answer, JobId, Status},
    ledger::Ledger,
    queue::{Asked, Bounds, Cancelled, Depth, End, Kind, Lease, NewJob, Queue, Submitted, Task},
};

/// Longest wait of one [`Queue::take`].
const WAIT: Duration = Duration::from_secs(1);

pub(crate) struct MemoryQueue {
    ledger: Mutex<Ledger>,
    started: Instant,
    runs: Notify,
    callbacks: Notify,
    ended: broadcast::Sender<JobId>,
}

impl MemoryQueue {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            ledger: Mutex::new(Ledger::new(bounds)),
            started: Instant::now(),
            runs: Notify::new(),
            callbacks: Notify::new(),
            ended: broadcast::Sender::new(1_024),
        }
    }

    fn ledger(&self) -> (MutexGuard<'_, Ledger>, Duration) {
        let ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        (ledger, self.started.elapsed())
    }

    const fn notify(&self, kind: Kind) -> &Notify {
        match kind {
            Kind::Run => &self.runs,
            Kind::Callback => &self.callbacks,
        }
    }

    async fn next(&self, kind: Kind) -> Option<Task> {
        let until = Instant::now() + WAIT;
        loop {
            let wake = {
                let (mut ledger, now) = self.ledger();
                if let Some(task) = ledger.take(kind, now) {
                    return Some(task);
                }
                ledger.wake_at().map_or(until, |at| until.min(self.started + at))
            };
            let woken = timeout_at(wake, self.notify(kind).notified()).await.is_ok();
            if !woken && Instant::now() >= until {
                return None;
            }
        }
    }
}

impl Queue for MemoryQueue {
    fn submit(&self, job: NewJob) -> Asked<'_, Submitted> {
        let (mut ledger, now) = self.ledger();
        let submitted = ledger.submit(job, now);
        self.runs.notify_one();
        ready(submitted)
    }

    fn take(&self, kind: Kind) -> Asked<'_, Option<Task>> {
        async move { Ok(self.next(kind).await) }.boxed()
    }

    fn extend<'a>(&'a self, lease: &'a Lease) -> Asked<'a, bool> {
        let (mut ledger, now) = self.ledger();
        ready(ledger.extend(lease, now))
    }

    fn end<'a>(&'a self, lease: &'a Lease, end: End) -> Asked<'a, bool> {
        let (mut ledger, now) = self.ledger();
        let ended = ledger.end(lease, end, now);
        if ended && lease.kind == Kind::Run {
            self.callbacks.notify_one();
            // Nobody may be waiting for it.
            let _ = self.ended.send(lease.id.clone());
        }
        ready(ended)
    }

    fn again<'a>(&'a self, lease: &'a Lease, after: Duration, why: &'a str) -> Asked<'a, bool> {
        let (mut ledger, now) = self.ledger();
        let put_back = ledger.again(lease, after, why, now);
        self.notify(lease.kind).notify_one();
        ready(put_back)
    }

    fn cancel<'a>(&'a self, id: &'a JobId) -> Asked<'a, Cancelled> {
        let (mut ledger, now) = self.ledger();
        let cancelled = ledger.cancel(id, now);
        if cancelled == Cancelled::Now {
            self.callbacks.notify_one();
            // Nobody may be waiting for it.
            let _ = self.ended.send(id.clone());
        }
        ready(cancelled)
    }

    fn status<'a>(&'a self, id: &'a JobId) -> Asked<'a, Option<Status>> {
        let (mut ledger, now) = self.ledger();
        ready(ledger.status(id, now))
    }

    fn answer<'a>(&'a self, id: &'a JobId) -> Asked<'a, Option<Answer>> {
        let (mut ledger, now) = self.ledger();
        ready(ledger.answer(id, now))
    }

    fn dead(&self) -> Asked<'_, Vec<JobId>> {
        ready(self.ledger().0.dead())
    }

    fn revive<'a>(&'a self, id: &'a JobId) -> Asked<'a, bool> {
        let revived = self.ledger().0.revive(id);
        self.runs.notify_one();
        ready(revived)
    }

    fn depth(&self) -> Asked<'_, Depth> {
        ready(self.ledger().0.depth())
    }

    fn ends_with_process(&self) -> bool {
        true
    }

    fn ended(&self) -> broadcast::Receiver<JobId> {
        self.ended.subscribe()
    }
}

fn ready<T: Send + 'static>(value: T) -> Asked<'static, T> {
    std::future::ready(Ok(value)).boxed()
}
