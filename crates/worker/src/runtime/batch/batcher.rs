//! Leads the requests of one model to the engine. See [`super`] for the picture and [`queue`](super::queue) for who
//! runs with whom.
//!
//! ```text
//!  LeaderToken:  gather ──▶ short runs: turn, turn, … until empty ─┐        ┌─▶ released
//!             │           └──── budget spent ──▶ pool: one turn ──▶ back of the queue
//!             └─ long or unknown ──────────────────▲         (dropped anywhere: passed to the pool)
//! ```

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use berth_spec::{InferError, Tensor, inference::Shed};
use tokio::{
    sync::{Notify, oneshot},
    time::timeout_at,
};

use super::{
    Engine, StopCondition,
    join::{RunTimings, run_alone, run_joined},
    pool::{Kind, RunQueue},
    queue::{PushOutcome, Queue, QueuedRequest, Share, Work},
    stop::Caller,
    tally::{Run, Tally},
};
use crate::runtime::metrics::ModelMetrics;

pub use super::queue::Limits;

/// The longest run that the thread of a connection may do itself: models of 100 to 200 µs save a thread switch (about
/// 30 µs) per batch, and the thread's other connections wait no longer than that.
const MAX_INLINE_RUN: Duration = Duration::from_micros(200);

/// The time that a leader goes on running batches of others before it hands them to the pool: few changes of thread,
/// and its own answer does not wait for long.
const BUDGET: Duration = Duration::from_micros(500);

/// A run that takes this long on the thread of a connection was expected to take [`MAX_INLINE_RUN`]: the model never runs there
/// again. Several time slices of a busy machine, so that a thread that merely had to wait is not taken for a long run.
const OVERSTAYED: Duration = Duration::from_millis(50);

/// A run on the thread of a connection is stopped after this, and done again on the pool: the connections of that thread
/// stand still meanwhile.
const MOST_HERE: Duration = Duration::from_secs(1);

/// The thread that runs a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunsOn {
    /// On the thread of a connection.
    Connection,
    /// On a thread of the pool.
    Pool,
}

/// The requests of one model on their way to its engine. Cheap to clone.
#[derive(Clone)]
pub struct Batcher {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Box<dyn Engine>,
    queue: Mutex<Queue>,
    /// Wakes the leader that gathers.
    complete: Notify,
    run_queue: Arc<RunQueue>,
    tally: Tally,
    metrics: Arc<ModelMetrics>,
    /// The sizes of the inputs decide how long a run takes, as far as is known.
    bounded: AtomicBool,
}

impl Batcher {
    /// A batcher that runs on `engine`, and on the pool of `run_queue` when runs are long.
    #[must_use]
    pub fn new(engine: Box<dyn Engine>, limits: Limits, run_queue: Arc<RunQueue>, metrics: Arc<ModelMetrics>) -> Self {
        let queue = Mutex::new(Queue::new(limits));
        let complete = Notify::new();
        let (tally, bounded) = (Tally::default(), AtomicBool::new(engine.is_bounded()));
        Self { shared: Arc::new(Shared { engine, queue, complete, run_queue, tally, metrics, bounded }) }
    }

    /// The engine, for runs outside of the queue.
    #[must_use]
    pub fn engine(&self) -> &dyn Engine {
        &*self.shared.engine
    }

    /// The model's counts and times since it was loaded.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.shared.tally
    }

    /// The bounds in force: those of the last [`set_limits`](Self::set_limits).
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.shared.queue().limits()
    }

    /// Changes the bounds from now on.
    pub fn set_limits(&self, limits: Limits) {
        self.shared.queue().set_limits(limits);
    }

    /// Runs one request, together with others where that is possible.
    ///
    /// # Errors
    /// [`InferError::TimedOut`] once `deadline` has passed, [`InferError::Shed`] where the queue is full, or what the
    /// engine says about this very request. Dropping the future takes the request out unless it is running.
    pub async fn infer(&self, work: Work, deadline: Instant) -> Result<Vec<Tensor>, InferError> {
        let since = Instant::now();
        if deadline <= since {
            return Err(too_late());
        }
        // Declared before the channel, so that it is dropped after it: a leader that is cancelled takes its own
        // request out before it passes the lead on.
        let token;
        let (reply, answer) = oneshot::channel();
        // Only a run that may last is worth the allocation.
        let caller = (!self.shared.bounded.load(Relaxed)).then(Caller::new);
        let entry = QueuedRequest { work, deadline, since, caller: caller.as_ref().map(Caller::downgrade), reply };
        let outcome = self.shared.queue().push(entry, self.shared.tally.run_time());
        match outcome {
            Ok(PushOutcome::Lead(delay)) => {
                token = LeaderToken { shared: Some(Arc::clone(&self.shared)), gathers: true };
                self.gather(delay).await;
                token.lead();
            }
            Ok(PushOutcome::Follow) => {}
            Ok(PushOutcome::Complete) => self.shared.complete.notify_one(),
            Err(_) => return Err(self.shared.full()),
        }
        match timeout_at(deadline.into(), answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(InferError::Internal("the run was given up; this is a fault of the server".to_owned())),
            Err(_) => Err(too_late()),
        }
    }

    /// Lets others push.
    async fn gather(&self, delay: Duration) {
        if delay.is_zero() {
            tokio::task::yield_now().await;
        } else {
            // Whether it is complete or time is up makes no difference.
            let _ = tokio::time::timeout(delay, self.shared.complete.notified()).await;
        }
    }
}

/// The lead over one lane of a model. Whoever holds it must run, pass it on, or drop it, which passes it on.
pub struct LeaderToken {
    /// `None` once it was passed on or released.
    shared: Option<Arc<Shared>>,
    gathers: bool,
}

impl LeaderToken {
    /// Runs what was gathered, or has the pool run it.
    fn lead(mut self) {
        let Some(shared) = &self.shared else { return };
        self.gathers = false;
        shared.queue().gathered();
        if shared.is_short() {
            self.turns_here(Instant::now() + BUDGET);
        } else {
            self.hand_over();
        }
    }

    /// Runs batches on this thread until nothing waits or `until` has passed.
    fn turns_here(mut self, until: Instant) {
        while self.turn(RunsOn::Connection) {
            let short = self.shared.as_ref().is_some_and(|shared| shared.is_short());
            if !short || Instant::now() >= until {
                return self.hand_over();
            }
        }
    }

    /// One batch, then to the back of the queue.
    pub(super) fn turn_on_pool(mut self) {
        if self.turn(RunsOn::Pool) {
            self.hand_over();
        }
    }

    /// One batch. `false`: nothing was left to run and the lead is released.
    fn turn(&mut self, runs_on: RunsOn) -> bool {
        let Some(shared) = &self.shared else { return false };
        let now = Instant::now();
        let share = if shared.tally.run_time() < MAX_INLINE_RUN { Share::All } else { Share::Lane };
        let taken = shared.queue().take(now, share);
        for entry in taken.expired {
            // Nobody may be waiting any more.
            let _ = entry.reply.send(Err(too_late()));
        }
        if taken.batch.is_empty() {
            self.shared = None;
            return false;
        }
        shared.run(taken.batch, now, runs_on);
        true
    }

    /// Lets the pool go on; where it has stopped, goes on here.
    fn hand_over(self) {
        let run_queue = self.shared.as_ref().map(|shared| Arc::clone(&shared.run_queue));
        if let Some(run_queue) = run_queue
            && let Err(mut token) = run_queue.join(self)
        {
            while token.turn(RunsOn::Pool) {}
        }
    }

    /// The threads of the pool that run it.
    pub(super) fn kind(&self) -> Kind {
        match &self.shared {
            Some(shared) if !shared.bounded.load(Relaxed) => Kind::Unbounded,
            _ => Kind::Bounded,
        }
    }
}

impl Drop for LeaderToken {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let needed = {
            let mut queue = shared.queue();
            if self.gathers {
                queue.gathered();
            }
            queue.abandon()
        };
        if needed {
            Self { shared: Some(shared), gathers: false }.hand_over();
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the next run is so short that the thread of a connection may do it. Its rows count: the average is of
    /// runs that may have had fewer. A model that never ran may take any time.
    fn is_short(&self) -> bool {
        if !self.bounded.load(Relaxed) {
            return false;
        }
        let rows = self.queue().next_rows();
        self.tally.expected(rows).is_some_and(|time| time < MAX_INLINE_RUN)
    }

    /// Runs what was taken and answers it.
    fn run(&self, batch: Vec<QueuedRequest>, started: Instant, runs_on: RunsOn) {
        let finish = Finish { shared: self, count: batch.len() };
        let mut timings = RunTimings::default();
        let works: Vec<&Work> = batch.iter().map(|entry| &entry.work).collect();
        let rows = works.iter().map(|work| u64::from(work.counted_rows())).sum();
        let (answers, executions) = self.answers(&batch, &works, runs_on, &mut timings);

        let done = Instant::now();
        if runs_on == RunsOn::Connection && done - started > OVERSTAYED && self.bounded.swap(false, Relaxed) {
            tracing::info!(
                event = "model_runs_aside",
                deployment_id = %self.metrics.deployment(),
                took_ms = u64::try_from((done - started).as_millis()).unwrap_or(u64::MAX),
                "a run took long where short ones were expected: the model runs on threads of its own from now on"
            );
        }
        let mut run =
            Run { requests: 0, succeeded: 0, rows, executions, timings, queued: Duration::ZERO, total: Duration::ZERO };
        for (entry, answer) in batch.iter().zip(&answers) {
            let (queued, total) = (started - entry.since, done - entry.since);
            run.requests += 1;
            run.queued += queued;
            self.metrics.queued(queued);
            if answer.is_ok() {
                run.succeeded += 1;
                run.total += total;
                self.metrics.took(total);
            }
        }
        self.metrics.batch(rows);
        self.tally.ran(&run);
        if executions == 1 {
            self.queue().learn(rows, timings.infer);
        }
        drop(finish);
        let mut again = Vec::new();
        for (entry, answer) in batch.into_iter().zip(answers) {
            if runs_on == RunsOn::Connection && matches!(answer, Err(InferError::TimedOut(_))) && entry.deadline > done
            {
                again.push(entry);
            } else {
                // Nobody may be waiting any more.
                let _ = entry.reply.send(answer);
            }
        }
        if !again.is_empty() {
            self.queue().put_back(again);
        }
    }

    /// Runs what was taken, together where that works, and says how often the engine was called.
    fn answers(
        &self,
        batch: &[QueuedRequest],
        works: &[&Work],
        runs_on: RunsOn,
        timings: &mut RunTimings,
    ) -> (Vec<Result<Vec<Tensor>, InferError>>, u64) {
        let mut executions = 0;
        if works.len() > 1 {
            executions += 1;
            match run_joined(&*self.engine, works, &stop(batch, runs_on), timings) {
                Ok(answers) => return (answers.into_iter().map(Ok).collect(), executions),
                // What ended the run was none of its requests' own; or which one it was is not to be tried out.
                Err(error @ (InferError::TimedOut(_) | InferError::Lost(_) | InferError::Shed { .. })) => {
                    return (works.iter().map(|_| Err(error.clone())).collect(), executions);
                }
                Err(error) => {
                    tracing::debug!(requests = works.len(), %error, "a batch failed, its requests are run one by one");
                }
            }
        }
        executions += works.len() as u64;
        let alone = |entry: &QueuedRequest| {
            run_alone(&*self.engine, &entry.work, &stop(std::slice::from_ref(entry), runs_on), timings)
        };
        (batch.iter().map(alone).collect(), executions)
    }

    /// The answer where the queue is full.
    fn full(&self) -> InferError {
        let (limits, waiting) = {
            let queue = self.queue();
            (queue.limits(), queue.waiting())
        };
        let lanes = limits.lanes.max(1) as f64;
        let runs = (waiting as f64 / f64::from(limits.max_rows.max(1)) / lanes).ceil();
        let retry_in = self.tally.run_time().mul_f64(runs.max(1.0));
        let retry_in = retry_in.clamp(Duration::from_millis(1), Duration::from_secs(30));
        let most = limits.max_requests;
        InferError::shed(
            Shed::QueueFull,
            format!("{most} requests are in this replica already: try again later, or raise concurrency.max"),
            retry_in,
        )
    }
}

/// The end of a run of these requests.
fn stop(batch: &[QueuedRequest], runs_on: RunsOn) -> StopCondition {
    let now = Instant::now();
    let until = batch.iter().map(|entry| entry.deadline).max().unwrap_or(now);
    let until = if runs_on == RunsOn::Connection { until.min(now + MOST_HERE) } else { until };
    // One that is not followed may wait until the end.
    let callers = batch.iter().map(|entry| entry.caller.clone()).collect::<Option<Vec<_>>>().unwrap_or_default();
    StopCondition { until, callers }
}

/// Makes room in the queue when a run is over, even if it panics.
struct Finish<'a> {
    shared: &'a Shared,
    count: usize,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.shared.queue().finish(self.count);
    }
}

fn too_late() -> InferError {
    InferError::TimedOut("the deadline passed before the model could answer".to_owned())
}
