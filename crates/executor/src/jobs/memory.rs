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
    job_table::JobTable,
    queue::{Bounds, Cancelled, Completion, Depth, Kind, Lease, NewJob, Queue, QueueFuture, Submitted, Task},
};

/// Longest wait of one [`Queue::take`].
const WAIT: Duration = Duration::from_secs(1);

pub(crate) struct MemoryQueue {
    table: Mutex<JobTable>,
    started: Instant,
    runs: Notify,
    callbacks: Notify,
    ended: broadcast::Sender<JobId>,
}

impl MemoryQueue {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            table: Mutex::new(JobTable::new(bounds)),
            started: Instant::now(),
            runs: Notify::new(),
            callbacks: Notify::new(),
            ended: broadcast::Sender::new(1_024),
        }
    }

    fn table(&self) -> (MutexGuard<'_, JobTable>, Duration) {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        (table, self.started.elapsed())
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
                let (mut table, now) = self.table();
                if let Some(task) = table.take(kind, now) {
                    return Some(task);
                }
                table.wake_at().map_or(until, |at| until.min(self.started + at))
            };
            let woken = timeout_at(wake, self.notify(kind).notified()).await.is_ok();
            if !woken && Instant::now() >= until {
                return None;
            }
        }
    }
}

impl Queue for MemoryQueue {
    fn submit(&self, job: NewJob) -> QueueFuture<'_, Submitted> {
        let (mut table, now) = self.table();
        let submitted = table.submit(job, now);
        self.runs.notify_one();
        ready(submitted)
    }

    fn take(&self, kind: Kind) -> QueueFuture<'_, Option<Task>> {
        async move { Ok(self.next(kind).await) }.boxed()
    }

    fn extend<'a>(&'a self, lease: &'a Lease) -> QueueFuture<'a, bool> {
        let (mut table, now) = self.table();
        ready(table.extend(lease, now))
    }

    fn end<'a>(&'a self, lease: &'a Lease, end: Completion) -> QueueFuture<'a, bool> {
        let (mut table, now) = self.table();
        let ended = table.end(lease, end, now);
        if ended && lease.kind == Kind::Run {
            self.callbacks.notify_one();
            // Nobody may be waiting for it.
            let _ = self.ended.send(lease.id.clone());
        }
        ready(ended)
    }

    fn again<'a>(&'a self, lease: &'a Lease, after: Duration, why: &'a str) -> QueueFuture<'a, bool> {
        let (mut table, now) = self.table();
        let put_back = table.again(lease, after, why, now);
        self.notify(lease.kind).notify_one();
        ready(put_back)
    }

    fn cancel<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, Cancelled> {
        let (mut table, now) = self.table();
        let cancelled = table.cancel(id, now);
        if cancelled == Cancelled::Now {
            self.callbacks.notify_one();
            // Nobody may be waiting for it.
            let _ = self.ended.send(id.clone());
        }
        ready(cancelled)
    }

    fn status<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, Option<Status>> {
        let (mut table, now) = self.table();
        ready(table.status(id, now))
    }

    fn answer<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, Option<Answer>> {
        let (mut table, now) = self.table();
        ready(table.answer(id, now))
    }

    fn dead(&self) -> QueueFuture<'_, Vec<JobId>> {
        ready(self.table().0.dead())
    }

    fn revive<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, bool> {
        let revived = self.table().0.revive(id);
        self.runs.notify_one();
        ready(revived)
    }

    fn depth(&self) -> QueueFuture<'_, Depth> {
        ready(self.table().0.depth())
    }

    fn ends_with_process(&self) -> bool {
        true
    }

    fn ended(&self) -> broadcast::Receiver<JobId> {
        self.ended.subscribe()
    }
}

fn ready<T: Send + 'static>(value: T) -> QueueFuture<'static, T> {
    std::future::ready(Ok(value)).boxed()
}
