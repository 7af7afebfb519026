//! The waiting requests of one model, and who may run with whom. Synchronous; the batcher holds it in a mutex for
//! well under a microsecond at a time.
//!
//! ```text
//!          push: first leader                  take: something to run
//!  idle ───────────────────────▶ gathering ───────────────────────────▶ running ──▶ finish ─┐
//!   ▲                                │ take: nothing                      ▲                 │
//!   └────────────────────────────────┴────────── take: nothing ───────────┴──── take ◀──────┘
//! ```
//! At most one leader gathers and at most `lanes` lead at all. While a leader gathers, those that run stop when their
//! batch is done: the gatherer takes what is left. One that is [`LATE_AFTER`] has a thread without a core: the next request leads
//! in its place, and it finds nothing when it comes back.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_spec::{InferError, Tensor};
use tokio::sync::oneshot;

use super::{batch_sizer::BatchSizer, stop::WeakCaller};

/// A leader that gathers for this long beyond its time has lost its core: a round of a busy event loop takes less, the time
/// slice of another thread more.
pub const LATE_AFTER: Duration = Duration::from_micros(300);

/// A request that was checked against the signature.
#[derive(Debug)]
pub struct Work {
    /// Inputs in the order of the signature.
    pub inputs: Vec<Tensor>,
    /// Indices into the signature's outputs, in the order asked for.
    pub outputs: Arc<[usize]>,
    /// The first dimension that all inputs share; `None`: they do not, so it runs alone.
    pub rows: Option<u32>,
}

impl Work {
    /// Rows for counting: a request that has none counts 1.
    #[must_use]
    pub fn counted_rows(&self) -> u32 {
        self.rows.unwrap_or(1)
    }

    /// True if the two differ only in the number of rows.
    fn compatible(&self, other: &Self) -> bool {
        let same_form = |(a, b): (&Tensor, &Tensor)| a.datatype == b.datatype && a.shape.get(1..) == b.shape.get(1..);
        self.inputs.len() == other.inputs.len()
            && (Arc::ptr_eq(&self.outputs, &other.outputs) || self.outputs == other.outputs)
            && self.inputs.iter().zip(&other.inputs).all(same_form)
    }
}

/// A request in the queue.
#[derive(Debug)]
pub struct QueuedRequest {
    /// Its inputs and wanted outputs, checked against the signature.
    pub work: Work,
    /// Not started after this.
    pub deadline: Instant,
    /// When it was pushed.
    pub since: Instant,
    /// Follows the caller, for a run that ends when it has gone.
    pub caller: Option<WeakCaller>,
    /// The way back for the answer; closed when nobody waits any more.
    pub reply: oneshot::Sender<Result<Vec<Tensor>, InferError>>,
}

/// The bounds of one model's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests at once, waiting and running.
    pub max_requests: usize,
    /// Rows in one run; 1: no batching. A single request may have more and then runs alone.
    pub max_rows: u32,
    /// The time that a leader gathers. Zero: it yields once.
    pub max_delay: Duration,
    /// Runs of the engine at once.
    pub lanes: usize,
}

/// The result of [`Queue::push`]: the part that the caller has in the next run.
#[derive(Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// The caller leads: gather for this long (zero: yield once), then take.
    Lead(Duration),
    /// Somebody else leads.
    Follow,
    /// Somebody else gathers and need not wait any longer.
    Complete,
}

/// The part of the queue that a leader may take at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// As much as fits in one run: right where the cost of a run is mostly its start.
    All,
    /// One lane's part, so that lanes work side by side, and no more than makes rows cheaper: right where the cost
    /// grows with the rows.
    Lane,
}

/// The requests that a leader took.
#[derive(Debug, Default)]
pub struct TakenRequests {
    /// To be run together; empty: nothing is left and the leader is released.
    pub batch: Vec<QueuedRequest>,
    /// To be told that they are too late.
    pub expired: Vec<QueuedRequest>,
}

/// The queue of one model: its waiting requests, and who leads the next run. Callers hold a lock on it.
#[derive(Debug)]
pub struct Queue {
    waiting: VecDeque<QueuedRequest>,
    waiting_rows: u64,
    running: usize,
    leaders: usize,
    /// Until when the gatherer waits, while there is one.
    gathering: Option<Instant>,
    sizer: BatchSizer,
    limits: Limits,
}

impl Queue {
    /// An empty queue under `limits`.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            waiting: VecDeque::new(),
            waiting_rows: 0,
            running: 0,
            leaders: 0,
            gathering: None,
            sizer: BatchSizer::default(),
            limits,
        }
    }

    /// The bounds in force: those of the last [`set_limits`](Self::set_limits).
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Changes the bounds; what waits stays.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The number of requests that wait, without those that a leader took.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Rows that the next run of [`Share::All`] may have; not fewer than it will.
    #[must_use]
    pub fn next_rows(&self) -> u64 {
        let largest = self.waiting.iter().map(|entry| u64::from(entry.work.counted_rows())).max().unwrap_or(0);
        self.waiting_rows.min(largest.max(u64::from(self.limits.max_rows)))
    }

    /// Queues a request, or gives it back where the queue is full. `run` is how long a run takes, as far as is known:
    /// a gatherer is told to hurry when an entry could not be finished otherwise.
    pub fn push(&mut self, entry: QueuedRequest, run: Duration) -> Result<PushOutcome, QueuedRequest> {
        if self.waiting.len() + self.running >= self.limits.max_requests {
            self.forget_closed();
            if self.waiting.len() + self.running >= self.limits.max_requests {
                return Err(entry);
            }
        }
        let (since, deadline) = (entry.since, entry.deadline);
        self.waiting_rows += u64::from(entry.work.counted_rows());
        self.waiting.push_back(entry);
        let enough = self.waiting_rows >= u64::from(self.limits.max_rows);
        let is_held = |until: &Instant| since <= *until + LATE_AFTER || self.leaders >= self.limits.lanes;
        if let Some(until) = self.gathering.filter(is_held) {
            return Ok(if enough || deadline < until + run { PushOutcome::Complete } else { PushOutcome::Follow });
        }
        if self.leaders >= self.limits.lanes.max(1) {
            return Ok(PushOutcome::Follow);
        }
        self.leaders += 1;
        let delay = if enough { Duration::ZERO } else { self.limits.max_delay };
        let delay = delay.min(deadline.saturating_duration_since(since + run));
        self.gathering = Some(since + delay);
        Ok(PushOutcome::Lead(delay))
    }

    /// Ends the gathering of the leader that began it; it goes on leading.
    pub fn gathered(&mut self) {
        self.gathering = None;
    }

    /// Takes what a leader runs next: the request at the front, and behind it, in order, what is compatible and fits.
    /// An empty batch releases the leader.
    pub fn take(&mut self, now: Instant, share: Share) -> TakenRequests {
        let mut taken = TakenRequests::default();
        if self.gathering.is_some() {
            self.leaders -= 1;
            return taken;
        }
        let most = match share {
            Share::All => self.limits.max_rows,
            Share::Lane => {
                let part = self.waiting_rows.div_ceil(self.limits.lanes.max(1) as u64);
                let most = self.limits.max_rows.min(u32::try_from(part).unwrap_or(u32::MAX));
                if most > 1 { most.min(self.sizer.most_rows()) } else { most }
            }
        };
        let mut rows = 0;
        let mut index = 0;
        while index < self.waiting.len() {
            let entry = &self.waiting[index];
            if entry.reply.is_closed() {
                self.remove(index);
            } else if entry.deadline <= now {
                taken.expired.extend(self.remove(index));
            } else if let Some(first) = taken.batch.first() {
                let fits = entry.work.rows.is_some_and(|n| n > 0 && n <= most.saturating_sub(rows));
                if fits && entry.work.compatible(&first.work) {
                    rows += entry.work.counted_rows();
                    taken.batch.extend(self.remove(index));
                } else {
                    index += 1;
                }
            } else {
                rows = entry.work.rows.filter(|&n| n > 0).unwrap_or(u32::MAX);
                taken.batch.extend(self.remove(index));
            }
            if rows >= most {
                break;
            }
        }
        if taken.batch.is_empty() {
            self.leaders -= 1;
        }
        self.running += taken.batch.len();
        taken
    }

    /// A leader gives up before it took anything. Whether it has to be replaced: something waits and nobody gathers.
    /// The replacement leads in its place; otherwise it is released.
    #[must_use]
    pub fn abandon(&mut self) -> bool {
        let needed = !self.waiting.is_empty() && self.gathering.is_none();
        if !needed {
            self.leaders -= 1;
        }
        needed
    }

    /// Puts requests that were taken back to the front: their run was stopped before their deadline.
    pub fn put_back(&mut self, entries: Vec<QueuedRequest>) {
        for entry in entries.into_iter().rev() {
            self.waiting_rows += u64::from(entry.work.counted_rows());
            self.waiting.push_front(entry);
        }
    }

    /// `count` requests that were taken are about to be answered.
    pub fn finish(&mut self, count: usize) {
        self.running -= count;
    }

    /// Notes that one run of `rows` rows took `time`, for the sizes of later runs.
    pub fn learn(&mut self, rows: u64, time: Duration) {
        self.sizer.learn(rows, time);
    }

    fn remove(&mut self, index: usize) -> Option<QueuedRequest> {
        let entry = self.waiting.remove(index)?;
        self.waiting_rows -= u64::from(entry.work.counted_rows());
        Some(entry)
    }

    fn forget_closed(&mut self) {
        self.waiting.retain(|entry| !entry.reply.is_closed());
        self.waiting_rows = self.waiting.iter().map(|entry| u64::from(entry.work.counted_rows())).sum();
    }
}
