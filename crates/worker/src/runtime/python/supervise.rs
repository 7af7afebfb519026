//! Keeps the process of one model running, and hands it the requests.
//!
//! ```text
//!          ┌─────────── start ◀──────── wait (0.5 s, doubling to 30 s) ◀─┐
//!          ▼                                                             │
//!  load: steps ──loaded──▶ up: take, send, take, send … ──it died────────┤
//!          └──failed or died─────────────────────────────────────────────┘    stop: asked, then made to end
//! ```
//! One thread per replica does all of it; another one reads what the process sends and answers who waits. The first load
//! that fails ends the supervision: its error is the replica's.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use berth_spec::{ByteSize, FailureCategory};

use super::{
    backoff::Backoff,
    failure,
    fence::Grounds,
    frame::{Frame, Kind},
    message::{Answer, Answers, Loaded, Log, Raised, Step},
    outgoing::Outgoing,
    plan::Plan,
    process::{Ended, Process},
    queue::{Entry, Limits, Outcome, Queue, Running},
};
use crate::runtime::{
    LoadError,
    batch::{join::Spent, tally},
    metrics::ModelMetrics,
};

/// A load that takes longer has failed. The worker's own limit is 20 minutes; this one is told with the last lines of
/// the process. Halved, a large model from a cold disk may not make it; doubled, the worker gives up first and says less.
const LOAD_LIMIT: Duration = Duration::from_secs(15 * 60);

/// How long a run may go on after the last deadline of its requests before the process is taken for stuck. Halved, a
/// model that is slow for a moment is restarted, which takes longer; doubled, a deadlock costs twice the time.
const STUCK: Duration = Duration::from_secs(30);

/// How often the supervisor looks at its process when nothing happens, and measures its memory. Halved, more reads of
/// `/proc`; doubled, memory in metrics is older.
const LOOK: Duration = Duration::from_secs(2);

/// Deaths in a row from which the log calls it unstable. Halved, one bad minute is called that; doubled, people hear of it
/// after some minutes.
const UNSTABLE: u32 = 5;

/// How often a load looks whether somebody still wants it. Halved or doubled, nothing is seen.
const GLANCE: Duration = Duration::from_millis(100);

/// What the threads of one replica share.
pub(super) struct Shared {
    pub(super) plan: Arc<Plan>,
    state: Mutex<State>,
    changed: Condvar,
    pub(super) tally: tally::Tally,
    pub(super) metrics: Arc<ModelMetrics>,
}

struct State {
    queue: Queue,
    phase: Phase,
    /// What the process said of its load, until the supervisor has heard it.
    heard: Option<Heard>,
    stop: bool,
    memory: ByteSize,
    /// Somebody waits for the memory to be measured.
    look: bool,
    /// How the last process ended.
    ended: Option<Ended>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It is loading, for the first time or again; it is expected to be up then.
    Down(Option<Instant>),
    Up,
    Stopped,
}

enum Heard {
    Loaded(Loaded),
    Failed(Raised),
    Gone,
}

/// The supervision of one replica. Dropping it ends the process, which may take some seconds.
pub(super) struct Supervisor {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// Starts the process and waits until its model is loaded, or nobody wants it any more.
    pub(super) fn load(
        plan: Plan,
        grounds: Arc<Grounds>,
        limits: Limits,
        metrics: Arc<ModelMetrics>,
    ) -> Result<(Self, Loaded), LoadError> {
        let state = State {
            queue: Queue::new(limits),
            phase: Phase::Down(None),
            heard: None,
            stop: false,
            memory: ByteSize::ZERO,
            look: false,
            ended: None,
        };
        let shared = Arc::new(Shared {
            plan: Arc::new(plan),
            state: Mutex::new(state),
            changed: Condvar::new(),
            tally: tally::Tally::default(),
            metrics,
        });
        let (tell, outcome) = mpsc::sync_channel(1);
        let supervised = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("berth-py".to_owned());
        let thread = thread.spawn(move || supervise(&supervised, &grounds, &tell));
        let thread = thread.map_err(|error| {
            LoadError::new(FailureCategory::Internal, format!("a thread for the model cannot be started: {error}"))
        })?;
        let supervisor = Self { shared, thread: Some(thread) };
        let gone = || LoadError::new(FailureCategory::Internal, "the model's supervisor ended without a word");
        let given_up = supervisor.shared.plan.given_up();
        loop {
            match outcome.recv_timeout(GLANCE) {
                Ok(loaded) => return loaded.map(|loaded| (supervisor, loaded)),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(gone()),
                // The supervisor sees to the rest when it is dropped.
                Err(mpsc::RecvTimeoutError::Timeout) if given_up.is_cancelled() => {
                    return Err(LoadError::new(FailureCategory::Internal, "the load was given up"));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.shared.locked().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has ended what it can end either way.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the rows of a request. `Err`: not run, because the process is not there, or the queue is full.
    pub(super) fn push(&self, entries: Vec<Entry>) -> Result<(), Refused> {
        let mut state = self.locked();
        match state.phase {
            Phase::Up => {}
            Phase::Down(until) => {
                let now = Instant::now();
                return Err(Refused::Down(
                    until.map_or(Duration::from_secs(1), |until| until.saturating_duration_since(now)),
                ));
            }
            Phase::Stopped => return Err(Refused::Down(Duration::from_secs(1))),
        }
        let limits = state.queue.limits;
        state.queue.push(entries).map_err(|here| Refused::Full { here, limits })?;
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    pub(super) fn set_limits(&self, limits: Limits) {
        self.locked().queue.limits = limits;
        self.changed.notify_all();
    }

    pub(super) fn limits(&self) -> Limits {
        self.locked().queue.limits
    }

    /// Has the memory measured now; waits for that, but not for long.
    pub(super) fn measure(&self) {
        let mut state = self.locked();
        state.look = true;
        self.changed.notify_all();
        // A supervisor that is busy measures later.
        drop(self.changed.wait_timeout_while(state, GLANCE * 5, |state| state.look));
    }

    /// Whether what is being sent still has to go.
    fn still_wanted(&self) -> bool {
        let state = self.locked();
        let stuck = state.queue.stuck_at(STUCK).is_some_and(|at| at <= Instant::now());
        !state.stop && !stuck && !matches!(state.heard, Some(Heard::Gone))
    }

    /// How its last process ended, if one did.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.locked().ended.clone()
    }

    fn remember(&self, memory: ByteSize) {
        let before = std::mem::replace(&mut self.locked().memory, memory);
        self.metrics.memory(before, memory);
    }

    /// The memory of the process when it was last looked at.
    pub(super) fn memory(&self) -> ByteSize {
        self.locked().memory
    }

    /// What the process sends, on the thread that reads it.
    fn hear(&self, frame: Option<Frame>) {
        let Some(frame) = frame else { return self.set_heard(Heard::Gone) };
        let read = match frame.kind {
            Kind::Step => serde_json::from_slice(&frame.head).map(|Step { step }| {
                tracing::debug!(event = "model_load_step", deployment_id = %self.plan.deployment, step);
            }),
            Kind::Loaded => serde_json::from_slice(&frame.head).map(|loaded| self.set_heard(Heard::Loaded(loaded))),
            Kind::Failed => serde_json::from_slice(&frame.head).map(|raised| self.set_heard(Heard::Failed(raised))),
            Kind::Result => serde_json::from_slice(&frame.head).map(|answers| self.answer(answers, &frame)),
            Kind::Log => serde_json::from_slice(&frame.head).map(|log| self.log(&log)),
            Kind::Load | Kind::Run | Kind::Shutdown => Ok(()),
        };
        if let Err(error) = read {
            // Nothing is answered by it; a run that it was meant for ends by its deadline.
            tracing::warn!(event = "model_sent_nonsense", deployment_id = %self.plan.deployment, %error);
        }
    }

    fn set_heard(&self, heard: Heard) {
        let mut state = self.locked();
        // Why it could not be loaded says more than that it ended after saying so.
        if !matches!((&state.heard, &heard), (Some(Heard::Failed(_)), Heard::Gone)) {
            state.heard = Some(heard);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn log(&self, Log { level, text }: &Log) {
        let deployment_id = &self.plan.deployment;
        match level.as_str() {
            "error" | "critical" => tracing::error!(event = "model_log", %deployment_id, text),
            "warning" => tracing::warn!(event = "model_log", %deployment_id, text),
            "debug" => tracing::debug!(event = "model_log", %deployment_id, text),
            _ => tracing::info!(event = "model_log", %deployment_id, text),
        }
    }

    /// Answers the requests of a run. Lengths that do not add up are failures of the requests that they belong to.
    fn answer(&self, answers: Answers, frame: &Frame) {
        let Some(running) = self.locked().queue.answered(answers.run) else { return };
        self.changed.notify_all();
        let now = Instant::now();
        self.count(&running, &answers.answers, now);
        let (mut at, mut answers) = (0_usize, answers.answers.into_iter());
        for entry in running.entries {
            let outcome = match answers.next() {
                Some(Answer::Well(length)) => {
                    let end = at.saturating_add(length);
                    let whole = frame.body.len() >= end;
                    let part = whole.then(|| frame.body.slice(at..end));
                    at = end;
                    part.map_or_else(|| Outcome::Lost("its answer was cut off".to_owned()), Outcome::Answer)
                }
                Some(Answer::Refused { request }) => Outcome::Refused(request),
                Some(Answer::Raised(raised)) => Outcome::Raised(raised),
                None => Outcome::Lost("it was left out of the answers".to_owned()),
            };
            // Nobody may be waiting any more.
            let _ = entry.reply.send(outcome);
        }
    }

    fn count(&self, running: &Running, answers: &[Answer], now: Instant) {
        let rows = running.entries.len() as u64;
        let spent = Spent { infer: now.saturating_duration_since(running.sent), ..Spent::default() };
        let (queued, total) = (Duration::ZERO, Duration::ZERO);
        let mut run = tally::Run { requests: 0, succeeded: 0, rows, executions: 1, spent, queued, total };
        for (entry, answer) in running.entries.iter().zip(answers).filter(|(entry, _)| entry.first) {
            let queued = running.sent.saturating_duration_since(entry.since);
            run.requests += 1;
            run.queued += queued;
            self.metrics.queued(queued);
            if matches!(answer, Answer::Well(_)) {
                run.succeeded += 1;
                run.total += now.saturating_duration_since(entry.since);
            }
        }
        self.metrics.batch(rows);
        self.tally.ran(&run);
    }
}

/// Why requests were not taken.
pub(super) enum Refused {
    /// The process is not there; it may be back then.
    Down(Duration),
    /// Too many are here.
    Full { here: usize, limits: Limits },
}

/// The life of a replica.
fn supervise(shared: &Arc<Shared>, grounds: &Grounds, tell: &mpsc::SyncSender<Result<Loaded, LoadError>>) {
    let mut backoff = Backoff::default();
    let mut first = true;
    loop {
        let started = Instant::now();
        let ended = match start(shared, grounds) {
            Ok((process, loaded)) => {
                if std::mem::take(&mut first) && tell.send(Ok(loaded)).is_err() {
                    process.end(true);
                    break;
                }
                match serve(shared, process) {
                    Some(ended) => ended,
                    None => break,
                }
            }
            Err(_) if shared.locked().stop => break,
            Err(error) if first => {
                shared.locked().phase = Phase::Stopped;
                // Nobody may be waiting any more.
                let _ = tell.send(Err(error));
                return;
            }
            Err(error) => Ended { how: error.message, memory: false, tail: String::new() },
        };
        let wait = backoff.after(started.elapsed());
        died(shared, &ended, wait, backoff.in_a_row());
        if !pause(shared, wait) {
            break;
        }
    }
    shared.remember(ByteSize::ZERO);
    let mut state = shared.locked();
    state.phase = Phase::Stopped;
    state.queue.lost("the model was unloaded", Duration::from_secs(1));
}

/// Tells everybody who waits, and everybody who watches.
fn died(shared: &Shared, ended: &Ended, wait: Duration, in_a_row: u32) {
    let deployment_id = &shared.plan.deployment;
    let (retry_ms, reason) = (wait.as_millis() as u64, &ended.how);
    {
        let mut state = shared.locked();
        state.phase = Phase::Down(Some(Instant::now() + wait));
        let why = format!("the model's process ended while it ran this request: {reason}");
        // Before its requests are told: who hears of it asks why.
        state.ended = Some(ended.clone());
        state.queue.lost(&why, wait.max(Duration::from_millis(500)));
    }
    shared.remember(ByteSize::ZERO);
    shared.metrics.restarted();
    let last_words = ended.tail.lines().last().unwrap_or_default();
    let out_of_memory = ended.memory;
    if in_a_row >= UNSTABLE {
        tracing::error!(event = "model_process_unstable", %deployment_id, in_a_row, reason, out_of_memory, last_words, retry_ms);
    } else {
        tracing::warn!(event = "model_process_died", %deployment_id, in_a_row, reason, out_of_memory, last_words, retry_ms);
    }
}

/// Waits; `false`: it is over.
fn pause(shared: &Shared, wait: Duration) -> bool {
    let state = shared.locked();
    let waited = shared.changed.wait_timeout_while(state, wait, |state| !state.stop);
    !waited.unwrap_or_else(PoisonError::into_inner).0.stop
}

/// Starts a process and waits until it is loaded.
fn start(shared: &Arc<Shared>, grounds: &Grounds) -> Result<(Process, Loaded), LoadError> {
    shared.locked().heard = None;
    let hearing = Arc::clone(shared);
    let process = Process::start(&shared.plan, grounds, move |frame| hearing.hear(frame));
    let mut process = process.map_err(|error| failure::not_started(&error))?;
    let heard = {
        let waits = |state: &mut State| state.heard.is_none() && !state.stop;
        let waited = shared.changed.wait_timeout_while(shared.locked(), LOAD_LIMIT, waits);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() && state.heard.is_none() { Err(()) } else { Ok(state.heard.take()) }
    };
    match heard {
        Ok(Some(Heard::Loaded(loaded))) => {
            let memory = process.memory().unwrap_or_default();
            shared.remember(memory);
            shared.locked().phase = Phase::Up;
            Ok((process, loaded))
        }
        Ok(Some(Heard::Failed(raised))) => {
            let ended = process.end(true);
            Err(failure::raised(&raised, &ended, shared.plan.memory))
        }
        Ok(Some(Heard::Gone)) => {
            let ended = process.end(false);
            Err(failure::died_loading(&ended, shared.plan.memory))
        }
        Ok(None) => {
            let _ = process.has_ended();
            process.end(false);
            Err(LoadError::new(FailureCategory::Internal, "the load was given up"))
        }
        Err(()) => Err(failure::too_long(LOAD_LIMIT, &process.end(false))),
    }
}

/// Hands the process its requests. `None`: it is over, and the process was asked to end.
fn serve(shared: &Shared, mut process: Process) -> Option<Ended> {
    let mut looked = Instant::now();
    let mut state = shared.locked();
    loop {
        if state.stop {
            state.phase = Phase::Stopped;
            drop(state);
            process.end(true);
            return None;
        }
        let now = Instant::now();
        let stuck = state.queue.stuck_at(STUCK).is_some_and(|at| at <= now);
        if matches!(state.heard, Some(Heard::Gone)) || stuck {
            state.heard = None;
            state.phase = Phase::Down(None);
            drop(state);
            let mut ended = process.end(false);
            if stuck {
                ended.how = "one run took so long that nobody waited for it any more".to_owned();
            }
            return Some(ended);
        }
        let due = state.queue.due();
        if due.is_some_and(|due| due <= now) {
            let frame = state.queue.take(now).map(Outgoing::of);
            drop(state);
            if let Some(frame) = frame {
                // Where it breaks, the reader hears of it, too.
                let _ = frame.send(&mut process, || shared.still_wanted());
            }
            state = shared.locked();
            continue;
        }
        if state.look || now.saturating_duration_since(looked) >= LOOK {
            looked = now;
            state.look = false;
            drop(state);
            let gone = process.has_ended();
            if let Some(memory) = process.memory().filter(|_| !gone) {
                shared.remember(memory);
            }
            shared.changed.notify_all();
            state = shared.locked();
            if gone {
                state.heard = Some(Heard::Gone);
            }
            continue;
        }
        let wait = due.map_or(LOOK, |due| due.saturating_duration_since(now)).min(LOOK);
        state = shared.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
    }
}
