//! Runs loads and validation inferences on threads that may block, and bounds what one that does not end can cost.
//!
//! ```text
//! run ──▶ thread ──result──▶ Ok | Err
//!   └─ time is up ─▶ cancel ─▶ ends in time (a process is killed, a library looks up): Err(Timeout), no thread is left
//!                        └───▶ does not: abandoned and counted
//! ```
//! A result that comes late is dropped by the thread that made it: unloading a model blocks.
//! A runtime with [`MOST_ABANDONED`] abandoned threads gets no further work until one of them has ended.

use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_spec::FailureCategory;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::fault::Fault;

/// Threads of one runtime that may be abandoned. Each holds the memory of a model that nobody counts; two leave room for
/// one bad model beside a good one.
pub(super) const MOST_ABANDONED: usize = 2;

/// The time in which work must end after it was cancelled: a process that is killed is gone within seconds, and most steps of a
/// load in a library are shorter.
const CANCEL_GRACE: Duration = Duration::from_secs(30);

/// One piece of blocking work.
pub(super) struct Job {
    /// Name of the runtime that does it, for which abandoned threads are counted.
    pub(super) runtime: String,
    /// Names it in messages: `loading`.
    pub(super) what: &'static str,
    /// The time after which it is cancelled.
    pub(super) limit: Duration,
    /// Cancelled when the time is up.
    pub(super) cancel: CancellationToken,
    /// True if it ends soon after it was cancelled.
    pub(super) interruptible: bool,
    /// The error where it took too long.
    pub(super) too_long: Fault,
}

/// The abandoned threads of each runtime.
#[derive(Debug, Clone, Default)]
pub(super) struct LoadThreads(Arc<Mutex<BTreeMap<String, usize>>>);

/// One thread's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    Running,
    /// Its time is up.
    Late,
    Abandoned,
    Ended,
}

/// The end of a piece of work at which its thread runs it.
pub(super) struct Task<T> {
    threads: LoadThreads,
    runtime: String,
    state: Arc<Mutex<ThreadState>>,
    result: oneshot::Sender<Option<Result<T, Fault>>>,
}

/// The end at which its result is waited for.
pub(super) struct Pending<T> {
    threads: LoadThreads,
    job: Job,
    state: Arc<Mutex<ThreadState>>,
    result: oneshot::Receiver<Option<Result<T, Fault>>>,
}

impl<T> Task<T> {
    /// Does the work on this thread; true if its result came in time and is waited for.
    pub(super) fn run(self, work: impl FnOnce() -> Result<T, Fault>) -> bool {
        let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)));
        let stood = std::mem::replace(&mut *locked(&self.state), ThreadState::Ended);
        if stood == ThreadState::Abandoned {
            self.threads.count(&self.runtime, |count| count.saturating_sub(1));
            let left = self.threads.abandoned(&self.runtime);
            tracing::warn!(event = "abandoned_call_ended", runtime = self.runtime, left);
        }
        let in_time = stood == ThreadState::Running;
        // What nobody takes is dropped here.
        self.result.send(in_time.then_some(result)).is_ok() && in_time
    }
}

impl<T> Pending<T> {
    /// Waits for the result, but no longer than its time; `None`: no thread has run it.
    pub(super) async fn outcome(self) -> Option<Result<T, Fault>> {
        let Self { threads, job, state, mut result } = self;
        let ended = match tokio::time::timeout(job.limit, &mut result).await {
            Ok(ended) => ended,
            // It ended at the last moment.
            Err(_) if !becomes_late(&state) => result.await,
            Err(_) => {
                job.cancel.cancel();
                // What it says of its cancellation is not the reason.
                if job.interruptible && tokio::time::timeout(CANCEL_GRACE, &mut result).await.is_ok() {
                    return Some(Err(job.too_long));
                }
                // Counted before it can end.
                let mut state = locked(&state);
                if *state == ThreadState::Late {
                    *state = ThreadState::Abandoned;
                    threads.count(&job.runtime, |count| count + 1);
                    let (runtime, abandoned) = (&job.runtime, threads.abandoned(&job.runtime));
                    tracing::error!(event = "call_abandoned", runtime, what = job.what, abandoned);
                }
                return Some(Err(job.too_long));
            }
        };
        ended.ok().map(|result| result.unwrap_or(Err(job.too_long)))
    }
}

impl LoadThreads {
    /// Runs the work, or refuses it where too much of its runtime was abandoned.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: Job,
        work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let (task, pending) = self.begin(job)?;
        tokio::task::spawn_blocking(move || task.run(work));
        pending.outcome().await.unwrap_or_else(|| Err(Fault::internal("no thread ran it: the worker ends")))
    }

    /// The two ends of a piece of work, which is refused where too much of its runtime was abandoned. One thread may run several, one
    /// after the other.
    pub(super) fn begin<T>(&self, job: Job) -> Result<(Task<T>, Pending<T>), Fault> {
        let abandoned = self.abandoned(&job.runtime);
        if abandoned >= MOST_ABANDONED {
            let message = format!(
                "{abandoned} calls of the runtime {} took too long, cannot be interrupted and still run; it gets no \
                 further model until one of them ends: restart the worker to free them",
                job.runtime
            );
            return Err(Fault::new(FailureCategory::Runtime, message));
        }
        let (state, (sender, receiver)) = (Arc::new(Mutex::new(ThreadState::Running)), oneshot::channel());
        let (threads, runtime) = (self.clone(), job.runtime.clone());
        let task = Task { threads: threads.clone(), runtime, state: Arc::clone(&state), result: sender };
        Ok((task, Pending { threads, job, state, result: receiver }))
    }

    /// Threads of a runtime that were abandoned and still run.
    pub(super) fn abandoned(&self, runtime: &str) -> usize {
        locked(&self.0).get(runtime).copied().unwrap_or(0)
    }

    fn count(&self, runtime: &str, change: impl FnOnce(usize) -> usize) {
        let mut counts = locked(&self.0);
        let count = counts.entry(runtime.to_owned()).or_default();
        *count = change(*count);
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Fault {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Fault::internal(format!("the runtime panicked: {}", text.unwrap_or("it does not say why")))
}

/// Marks a thread that still runs when its time is up as late; false if it has ended.
fn becomes_late(standing: &Mutex<ThreadState>) -> bool {
    let mut standing = locked(standing);
    if *standing == ThreadState::Running {
        *standing = ThreadState::Late;
    }
    *standing == ThreadState::Late
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc,
        thread::{self, ThreadId},
    };

    use super::*;

    /// Tells which thread drops it.
    struct Model(mpsc::Sender<ThreadId>);

    impl Drop for Model {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().id());
        }
    }

    fn job(interruptible: bool, cancel: &CancellationToken) -> Job {
        Job {
            runtime: "onnx".to_owned(),
            what: "loading",
            limit: Duration::from_millis(20),
            cancel: cancel.clone(),
            interruptible,
            too_long: Fault::new(FailureCategory::Timeout, "too long"),
        }
    }

    #[tokio::test]
    async fn what_can_be_interrupted_leaves_no_thread() {
        let (threads, cancel) = (LoadThreads::default(), CancellationToken::new());
        let (told, stop) = (cancel.clone(), mpsc::channel::<()>());
        let work = move || {
            while !told.is_cancelled() {
                let _ = stop.1.recv_timeout(Duration::from_millis(1));
            }
            drop(stop.0);
            Ok(())
        };
        let failed = threads.run(job(true, &cancel), work).await.expect_err("it took too long");
        assert_eq!((failed.category, threads.abandoned("onnx")), (FailureCategory::Timeout, 0));
    }

    #[tokio::test]
    async fn a_model_that_comes_late_is_unloaded_where_that_may_block() {
        let (threads, cancel) = (LoadThreads::default(), CancellationToken::new());
        let (told, (dropped, dropped_on)) = (cancel.clone(), mpsc::channel());
        let work = move || {
            while !told.is_cancelled() {
                thread::yield_now();
            }
            Ok(Model(dropped))
        };
        let failed = threads.run(job(true, &cancel), work).await.map(drop).expect_err("it took too long");
        assert_eq!(failed.category, FailureCategory::Timeout);
        assert_ne!(dropped_on.try_recv().expect("it is dropped"), thread::current().id());
    }

    #[tokio::test]
    async fn what_cannot_is_counted_and_then_refused_until_it_ends() {
        let (threads, cancel) = (LoadThreads::default(), CancellationToken::new());
        let gates: Vec<_> = (0..MOST_ABANDONED).map(|_| mpsc::channel::<()>()).collect();
        let mut opens = Vec::new();
        for (open, gate) in gates {
            let failed = threads.run(job(false, &cancel), move || Ok(gate.recv().is_ok())).await.expect_err("stuck");
            assert_eq!(failed.category, FailureCategory::Timeout);
            opens.push(open);
        }
        assert_eq!(threads.abandoned("onnx"), MOST_ABANDONED);
        let refused = threads.run(job(false, &cancel), || Ok(())).await.expect_err("no more");
        assert_eq!(refused.category, FailureCategory::Runtime, "{refused}");
        assert!(refused.message.contains("restart the worker"), "{refused}");
        drop(opens);
        while threads.abandoned("onnx") > 0 {
            tokio::task::yield_now().await;
        }
        assert!(threads.run(job(false, &cancel), || Ok(())).await.is_ok(), "they have ended");
    }
}
