//! The seam of queues: what every queue does. `memory`, `redis` and `jetstream` pass one conformance suite (`conformance`).
//!
//! ```text
//! submit ──▶ waits ──take──▶ leased ──end──▶ ended (answer or dead letter) ──▶ its callback waits ──take──▶ … ──end──▶ told
//!              ▲               │ again, or the lease ran out
//!              └───────────────┘
//! ```
//! A task is leased, never removed: where its executor is killed, the lease runs out and another one takes it. So a request may be
//! run more than once, but a job ends once.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::broadcast;

use super::job::{Answer, JobId, Priority, State, Status, StoredRequest};

/// The lease of tasks: short enough that a job of a killed executor does not wait for long.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// Times that a task may be taken. More than any policy asks for: this ends a request that kills its executor each time.
pub(crate) const MOST_TAKEN: u32 = 50;

/// A job that is handed in.
#[derive(Debug, Clone)]
pub(crate) struct NewJob {
    pub(crate) id: JobId,
    pub(crate) priority: Priority,
    /// The client's name for it: of two submissions with one key the second is the first.
    pub(crate) key: Option<String>,
    pub(crate) callback: Option<String>,
    pub(crate) request: StoredRequest,
}

/// Outcome of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Submitted {
    New,
    /// Its key is known, with the same request.
    Known(JobId),
    /// Its key is known, with another request.
    Conflict,
    /// As many jobs as may be are waiting.
    Full,
}

/// The two kinds of tasks of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// To ask the model server.
    Run,
    /// To tell the callback's receiver of the end.
    Callback,
}

/// Proof that a task is with its taker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) id: JobId,
    pub(crate) kind: Kind,
    /// Counts from 1, and tells leases of one task apart.
    pub(crate) attempt: u32,
    /// The queue's own name for it.
    pub(crate) entry: String,
}

/// A task that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) lease: Lease,
    pub(crate) request: StoredRequest,
    pub(crate) callback: Option<String>,
}

/// The end of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Completion {
    /// A run: the model server answered.
    Answered(Answer),
    /// A callback: the receiver has taken it.
    Delivered,
    /// Given up, and why. Of a run there may be the last answer.
    Dead { why: String, answer: Option<Answer> },
}

/// Outcome of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// The job has ended by it.
    Now,
    /// The job had ended before, and nothing was changed.
    Ended(State),
    /// There is no such job.
    Unknown,
}

/// Bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Jobs that have not ended.
    pub(crate) most: usize,
    /// Bytes of requests and answers that a queue in memory holds. Ended jobs are forgotten early for it.
    pub(crate) memory: u64,
    /// Time that a job is kept after its end.
    pub(crate) keep: Duration,
    /// Time that a taken task stays with its taker when that does not [`Queue::extend`] it.
    pub(crate) lease: Duration,
}

/// Numbers of tasks that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Depth {
    /// By priority, those that run among them.
    pub(crate) jobs: [u64; 3],
    pub(crate) callbacks: u64,
    pub(crate) dead: u64,
}

/// The queue cannot be asked.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the queue cannot be used: {0}")]
pub(crate) struct QueueError(pub(crate) String);

pub(crate) type QueueFuture<'a, T> = BoxFuture<'a, Result<T, QueueError>>;

/// A queue of jobs.
pub(crate) trait Queue: Send + Sync + 'static {
    fn submit(&self, job: NewJob) -> QueueFuture<'_, Submitted>;

    /// The next task of a kind: the oldest of the highest priority. Waits a second at most. Has one caller for each kind.
    fn take(&self, kind: Kind) -> QueueFuture<'_, Option<Task>>;

    /// Renews a lease. False: it has run out and somebody else has the task, or the task has ended.
    fn extend<'a>(&'a self, lease: &'a Lease) -> QueueFuture<'a, bool>;

    /// Ends a task. False: it had ended before, and nothing was changed. The end of a run makes its callback a task.
    fn end<'a>(&'a self, lease: &'a Lease, end: Completion) -> QueueFuture<'a, bool>;

    /// Puts a task back for a later attempt. False: the lease has run out, or the task has ended.
    fn again<'a>(&'a self, lease: &'a Lease, after: Duration, why: &'a str) -> QueueFuture<'a, bool>;

    /// Ends a job that was not answered yet. Whoever runs it is told by [`ended`](Self::ended), or when it renews its lease.
    fn cancel<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, Cancelled>;

    fn status<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, Option<Status>>;

    fn answer<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, Option<Answer>>;

    /// Dead letters, the latest first, 100 at most.
    fn dead(&self) -> QueueFuture<'_, Vec<JobId>>;

    /// Makes a dead letter a job again, with new attempts. False: it is none.
    fn revive<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, bool>;

    fn depth(&self) -> QueueFuture<'_, Depth>;

    /// True if its jobs end with this process.
    fn ends_with_process(&self) -> bool;

    /// Jobs that have ended, from now on. Some may be missing: look again from time to time.
    fn ended(&self) -> broadcast::Receiver<JobId>;
}
