//! Keeps the process of one model running, and hands it the requests.
//!
//! ```text
//!          ┌─────────── start ◀──────── wait (0.5 s, doubling to 30 s) ◀─┐
//!          ▼                                                             │
//!  load: steps ──loaded──▶ up: take, send, take, send … ──it died────────┤
//!          └──failed or died─────────────────────────────────────────────┘    stop: asked, then made to end
//! ```
//! One thread per replica does all of it; another one reads what the process sends and answers who waits. Small runs go by the
//! thread that has them (`frame_writer`): the caller's, or the reader's when the run before is computed or answered. The first load that fails ends the
//! supervision: its error is the replica's.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use berth_spec::{ByteSize, FailureCategory, residency::Deaths};

use super::{
    backoff::Backoff,
    child::Process,
    ended::Ended,
    failure,
    message::Loaded,
    plan::Plan,
    queue::Limits,
    shared::{Phase, Reported, Shared, State},
};
use crate::runtime::{LoadError, metrics::ModelMetrics};

/// The time limit of a load: below the worker's own of 20 minutes, so that the failure comes with the last lines of the
/// process.
const LOAD_LIMIT: Duration = Duration::from_secs(15 * 60);

/// The interval at which the supervisor looks at its process when nothing happens, and measures its memory: few reads
/// of `/proc`, and fresh metrics.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The interval at which a load checks that it is still wanted; nobody notices a tenth of a second.
const GLANCE: Duration = Duration::from_millis(100);

/// The supervision of one replica. Dropping it ends the process, which may take some seconds.
pub(in crate::runtime) struct Supervisor {
    pub(in crate::runtime) shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Supervisor {
    /// Starts the process and waits until its model is loaded, or nobody wants it any more.
    pub(in crate::runtime) fn load(
        plan: Plan,
        limits: Limits,
        metrics: Arc<ModelMetrics>,
    ) -> Result<(Self, Loaded), LoadError> {
        let unwanted = || LoadError::new(FailureCategory::Internal, "the load was given up");
        if plan.given_up().is_cancelled() {
            return Err(unwanted());
        }
        let shared = Arc::new(Shared::new(plan, limits, metrics));
        let (tell, outcome) = mpsc::sync_channel(1);
        let supervised = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("berth-model".to_owned());
        let thread = thread.spawn(move || supervise(&supervised, &tell));
        let thread = thread.map_err(|error| {
            LoadError::new(FailureCategory::Internal, format!("a thread for the model cannot be started: {error}"))
        })?;
        let supervisor = Self { shared, thread: Mutex::new(Some(thread)) };
        let gone = || LoadError::new(FailureCategory::Internal, "the model's supervisor ended without a word");
        let given_up = supervisor.shared.plan.given_up();
        loop {
            match outcome.recv_timeout(GLANCE) {
                Ok(loaded) => return loaded.map(|loaded| (supervisor, loaded)),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(gone()),
                // The supervisor sees to the rest when it is dropped.
                Err(mpsc::RecvTimeoutError::Timeout) if given_up.is_cancelled() => return Err(unwanted()),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Supervisor {
    /// Ends the process, and waits until it is gone. Once is enough.
    pub(in crate::runtime) fn end(&self) {
        self.shared.locked().stop = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It has ended what it can end either way.
            let _ = thread.join();
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.end();
    }
}

/// The life of a replica.
fn supervise(shared: &Arc<Shared>, tell: &mpsc::SyncSender<Result<Loaded, LoadError>>) {
    let mut backoff = Backoff::default();
    let mut first = true;
    loop {
        let (ended, lived) = match start(shared) {
            Ok((process, loaded)) => {
                if std::mem::take(&mut first) && tell.send(Ok(loaded)).is_err() {
                    process.end(true);
                    break;
                }
                // Its load is not part of its life: a model that takes minutes to load and dies at once is not well.
                let up = Instant::now();
                match serve(shared, process) {
                    Some(ended) => (ended, up.elapsed()),
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
            Err(error) => (Ended::of_load(error), Duration::ZERO),
        };
        let wait = backoff.after(lived);
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
    let (retry_ms, reason) = (wait.as_millis() as u64, &ended.cause);
    shared.down(ended, wait, in_a_row);
    shared.remember(ByteSize::ZERO);
    shared.metrics.restarted();
    let last_words = ended.last_words();
    let out_of_memory = ended.memory;
    if in_a_row >= Deaths::CRASH_LOOP_DEATHS {
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
fn start(shared: &Arc<Shared>) -> Result<(Process, Loaded), LoadError> {
    shared.locked().reported = None;
    let reader = Arc::clone(shared);
    let process = Process::start(&shared.plan, &shared.metrics, move |frame| reader.on_frame(frame));
    let mut process = process.map_err(|error| failure::not_started(&*shared.plan.program, &error))?;
    let reported = {
        let waits = |state: &mut State| state.reported.is_none() && !state.stop;
        let waited = shared.changed.wait_timeout_while(shared.locked(), LOAD_LIMIT, waits);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() && state.reported.is_none() { Err(()) } else { Ok(state.reported.take()) }
    };
    match reported {
        Ok(Some(Reported::Loaded(loaded))) => {
            let memory = process.measure().unwrap_or_default();
            shared.remember(memory);
            shared.up();
            Ok((process, loaded))
        }
        Ok(Some(Reported::Failed(raised))) => {
            let ended = process.end(true);
            Err(failure::raised(&raised, &ended, shared.plan.memory()))
        }
        Ok(Some(Reported::Gone)) => Err(failure::died_loading(&shared.plan, &process.end(false))),
        Ok(Some(Reported::Broken(cause))) => {
            let ended = Ended { cause, ..process.end(false) };
            Err(failure::died_loading(&shared.plan, &ended))
        }
        Ok(None) => {
            let _ = process.has_ended();
            process.end(false);
            Err(LoadError::new(FailureCategory::Internal, "the load was given up"))
        }
        Err(()) => Err(failure::too_long(&*shared.plan.program, LOAD_LIMIT, &process.end(false))),
    }
}

/// Writes to the process while no other thread does.
fn alone<'a>(shared: &'a Shared, mut state: MutexGuard<'a, State>, write: impl FnOnce()) -> MutexGuard<'a, State> {
    if let Some(writer) = &mut state.writer {
        writer.taken = true;
    }
    drop(state);
    write();
    let mut state = shared.locked();
    if let Some(writer) = &mut state.writer {
        writer.taken = false;
    }
    state
}

/// Hands the process the requests that no other thread has sent already. `None`: it is over, and the process was asked to end.
fn serve(shared: &Shared, mut process: Process) -> Option<Ended> {
    let mut looked = Instant::now();
    let mut state = shared.locked();
    state.writer = Some(process.frame_writer());
    loop {
        if state.stop {
            (state.phase, state.writer) = (Phase::Stopped, None);
            drop(state);
            process.end(true);
            return None;
        }
        let now = Instant::now();
        let stuck = state.is_stuck(now);
        if state.is_over() || stuck {
            let reported = state.reported.take();
            (state.phase, state.writer) = (Phase::Down(None), None);
            drop(state);
            let mut ended = process.end(false);
            match reported {
                Some(Reported::Broken(cause)) => ended.cause = cause,
                _ if stuck => "one run took so long that nobody waited for it any more".clone_into(&mut ended.cause),
                _ => {}
            }
            return Some(ended);
        }
        if let Some(unsent) = state.writer.as_mut().and_then(|writer| writer.unsent.take()) {
            state = alone(shared, state, || {
                // Where it breaks, the reader hears of it, too.
                let _ = unsent.send(&mut process, || shared.still_wanted());
            });
            continue;
        }
        if shared.plan.program.stops_runs()
            && let Some(run) = state.queue.abandoned()
        {
            state = alone(shared, state, || {
                // Where it breaks, the reader hears of it, too.
                let _ = process.stop(run, || shared.still_wanted());
            });
            continue;
        }
        let due = state.queue.due();
        if due.is_some_and(|due| due <= now) {
            state.dispatch(now);
            continue;
        }
        if state.look || now.saturating_duration_since(looked) >= POLL_INTERVAL {
            looked = now;
            let asked = std::mem::take(&mut state.look);
            drop(state);
            let gone = process.has_ended();
            let memory = if asked { process.measure() } else { process.memory() };
            if let Some(memory) = memory.filter(|_| !gone) {
                shared.remember(memory);
            }
            shared.changed.notify_all();
            state = shared.locked();
            if gone {
                state.reported = Some(Reported::Gone);
            }
            continue;
        }
        let wait = due.map_or(POLL_INTERVAL, |due| due.saturating_duration_since(now)).min(POLL_INTERVAL);
        state.alarm = now + wait;
        state = shared.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
    }
}
