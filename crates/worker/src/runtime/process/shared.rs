//! State that the threads of one replica share: its requests, and the state of its process.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use berth_spec::{ByteSize, Time, residency::Deaths};
use tokio::sync::watch;

use super::{
    ended::Ended,
    frame_writer::FrameWriter,
    log_reader::Rate,
    message::{Loaded, Raised},
    plan::Plan,
    queue::{Limits, ProcessRequest, Queue},
};
use crate::runtime::{Health, batch::tally, metrics::ModelMetrics};

/// The time that a run may go on after the last deadline of its requests before the process is taken for stuck: a model
/// that is slow for a moment is not restarted, which would take longer.
const STUCK: Duration = Duration::from_secs(30);

/// The longest wait for a measurement of memory, by which a replica may become ready later if its supervisor is busy.
const MEASURED_WITHIN: Duration = Duration::from_millis(500);

/// The most characters of how a process ended; the log has all of them.
const MAX_WORDS: usize = 600;

/// The state that the threads of one replica share.
pub(in crate::runtime) struct Shared {
    pub(in crate::runtime) plan: Arc<Plan>,
    pub(in crate::runtime) state: Mutex<State>,
    pub(in crate::runtime) changed: Condvar,
    pub(in crate::runtime) tally: tally::Tally,
    pub(in crate::runtime) metrics: Arc<ModelMetrics>,
    /// The budget of log lines that the model's code causes.
    said: Mutex<Rate>,
    /// The health, sent at once when the process goes or is up again.
    told: watch::Sender<Health>,
}

/// The changing part of [`Shared`], under one lock.
pub(in crate::runtime) struct State {
    pub(in crate::runtime) queue: Queue,
    /// The way of runs to the process, while it takes some.
    pub(super) writer: Option<FrameWriter>,
    /// The moment at which the supervisor wakes by itself.
    pub(super) alarm: Instant,
    pub(in crate::runtime) phase: Phase,
    /// The process's report on its load, until the supervisor has passed it on.
    pub(in crate::runtime) reported: Option<Reported>,
    pub(in crate::runtime) stop: bool,
    memory: ByteSize,
    /// The most that any of its processes was seen to take.
    most: ByteSize,
    /// Somebody waits for the memory to be measured.
    pub(in crate::runtime) look: bool,
    /// The end of the last process.
    pub(in crate::runtime) ended: Option<Ended>,
    deaths: Option<Arc<Deaths>>,
}

/// The state of a replica's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) enum Phase {
    /// Loading, for the first time or again; it is expected to be up then.
    Down(Option<Instant>),
    Up,
    Stopped,
}

/// A report of the thread that listens to the process to the one that supervises it.
pub(in crate::runtime) enum Reported {
    Loaded(Loaded),
    Failed(Raised),
    /// The process closed its end of the socket.
    Gone,
    /// The process sent something that cannot be understood: whoever waits for an answer would wait in vain.
    Broken(String),
}

/// The reason why requests were not taken.
pub(in crate::runtime) enum Refused {
    /// The process is not there; it may be back then.
    Down(Duration),
    /// Too many are here.
    Full { here: usize, limits: Limits },
}

impl Shared {
    pub(in crate::runtime) fn new(plan: Plan, limits: Limits, metrics: Arc<ModelMetrics>) -> Self {
        Self {
            plan: Arc::new(plan),
            state: Mutex::new(State::new(limits)),
            changed: Condvar::new(),
            tally: tally::Tally::default(),
            metrics,
            said: Mutex::new(Rate::new(Instant::now())),
            told: watch::Sender::default(),
        }
    }

    pub(in crate::runtime) fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the rows of a request, and sends what is due. `Err`: not run, because the process is not there, or the queue is full.
    pub(in crate::runtime) fn push(&self, entries: Vec<ProcessRequest>) -> Result<(), Refused> {
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
        let wake = state.dispatch(Instant::now());
        drop(state);
        if wake {
            self.changed.notify_all();
        }
        Ok(())
    }

    pub(in crate::runtime) fn set_limits(&self, limits: Limits) {
        self.locked().queue.limits = limits;
        self.changed.notify_all();
    }

    pub(in crate::runtime) fn limits(&self) -> Limits {
        self.locked().queue.limits
    }

    /// Has the memory measured now; waits for that, but not for long.
    pub(in crate::runtime) fn measure(&self) {
        let mut state = self.locked();
        state.look = true;
        self.changed.notify_all();
        // A supervisor that is busy measures later.
        drop(self.changed.wait_timeout_while(state, MEASURED_WITHIN, |state| state.look));
    }

    /// True if what is being sent still has to go.
    pub(in crate::runtime) fn still_wanted(&self) -> bool {
        let state = self.locked();
        !state.stop && !state.is_stuck(Instant::now()) && !state.is_over()
    }

    /// The end of its last process, if one ended.
    pub(in crate::runtime) fn ended(&self) -> Option<Ended> {
        self.locked().ended.clone()
    }

    pub(in crate::runtime) fn remember(&self, memory: ByteSize) {
        let mut state = self.locked();
        let before = std::mem::replace(&mut state.memory, memory);
        state.most = state.most.max(memory);
        drop(state);
        self.metrics.memory(before, memory);
    }

    /// Asks to log one more line that the model's code causes; says how many may not have been logged.
    pub(in crate::runtime) fn may_log(&self) -> bool {
        let allowed = self.said.lock().unwrap_or_else(PoisonError::into_inner).allow(Instant::now());
        if let Some(lines @ 1..) = allowed {
            tracing::warn!(event = "model_log_dropped", deployment_id = %self.plan.deployment, lines);
        }
        allowed.is_some()
    }

    /// The health, for the controller.
    pub(in crate::runtime) fn health(&self) -> Health {
        self.locked().health()
    }

    /// Hears how it is whenever its process goes, or is up again.
    pub(in crate::runtime) fn changes(&self) -> watch::Receiver<Health> {
        self.told.subscribe()
    }

    /// Notes that the process takes runs, and tells watchers of its health.
    pub(in crate::runtime) fn up(&self) {
        let mut state = self.locked();
        state.phase = Phase::Up;
        if let Some(deaths) = &mut state.deaths {
            Arc::make_mut(deaths).again_at = None;
        }
        self.told.send_replace(state.health());
    }

    /// The process is gone, or could not be started again: everybody who waits is told.
    pub(in crate::runtime) fn down(&self, ended: &Ended, wait: Duration, in_a_row: u32) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let cause = shortened(&ended.told(self.plan.memory()));
        let mut state = self.locked();
        state.phase = Phase::Down(Some(Instant::now() + wait));
        let count = state.deaths.as_ref().map_or(0, |deaths| deaths.count).saturating_add(1);
        let at = Time::ZERO + now;
        state.deaths = Some(Arc::new(Deaths { count, in_a_row, at, cause, again_at: Some(at + wait) }));
        // Before its requests are told: who hears of it asks why.
        state.ended = Some(ended.clone());
        let why = format!("the model's process ended while it ran this request: {}", ended.cause);
        state.queue.lost(&why, wait.max(Duration::from_millis(500)));
        self.told.send_replace(state.health());
    }

    /// The memory of the process when it was last looked at.
    pub(in crate::runtime) fn memory(&self) -> ByteSize {
        self.locked().memory
    }
}

impl State {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            queue: Queue::new(limits),
            writer: None,
            alarm: Instant::now(),
            phase: Phase::Down(None),
            reported: None,
            stop: false,
            memory: ByteSize::ZERO,
            most: ByteSize::ZERO,
            look: false,
            ended: None,
            deaths: None,
        }
    }

    fn health(&self) -> Health {
        Health {
            memory: Some(self.most).filter(|most| *most > ByteSize::ZERO),
            deaths: self.deaths.clone(),
            lost: None,
        }
    }

    /// Nothing more is to be reported of the process.
    pub(in crate::runtime) fn is_over(&self) -> bool {
        matches!(self.reported, Some(Reported::Gone | Reported::Broken(_)))
    }

    /// The run that is computed has taken so long that nobody waits for it any more.
    pub(in crate::runtime) fn is_stuck(&self, now: Instant) -> bool {
        self.queue.stuck_at(STUCK).is_some_and(|at| at <= now)
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_WORDS) {
        Some((at, _)) => format!("{} …", &text[..at]),
        None => text.to_owned(),
    }
}
