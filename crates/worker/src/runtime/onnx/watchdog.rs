//! Stops runs of ONNX Runtime that last too long. Its thread looks at [loads](load_watch) as well.
//!
//! ```text
//!             begin                 end
//!     Idle ──────────▶ Running ──────────▶ Idle
//!                         │ until is over, nobody waits, or the model ends
//!                         ▼
//!                      Stopping ──▶ Stopped ──end──▶ Idle
//! ```
//! Each thread that runs models has a slot with run options of its own, so that a run costs two atomic writes and no
//! lock. One thread looks at all slots. The library looks at the options between two nodes of a graph: a single node is
//! not interrupted.

use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, SeqCst},
        },
    },
    thread,
    time::{Duration, Instant},
};

use ort::{AsPointer, session::RunOptions, sys};

use super::load_watch;
use crate::runtime::batch::{StopCondition, stop::WeakCaller};

/// Time between two looks. A run outlives its deadline by as much; twenty looks a second cost nothing that can be
/// measured.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// No run.
const IDLE: u64 = 0;
/// The two lowest bits of a word tell the state of its run; the rest is the time of its end.
const RUNNING: u64 = 1;
const STOPPING: u64 = 2;
const STOPPED: u64 = 3;
const STATE: u64 = 3;

/// The slots of all threads that ever ran a model and still live.
static SLOTS: Mutex<Vec<Arc<ThreadSlot>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: RefCell<Option<Arc<ThreadSlot>>> = const { RefCell::new(None) };
}

/// The runs of one model.
#[derive(Debug)]
pub(super) struct Runs {
    id: u64,
    ended: AtomicBool,
}

/// The run of one thread.
struct ThreadSlot {
    word: AtomicU64,
    model: AtomicU64,
    /// True if `callers` holds any, so that most runs take no lock.
    followed: AtomicBool,
    callers: Mutex<Vec<WeakCaller>>,
    options: RunOptions,
}

/// A run that is watched. Ends with it.
pub(super) struct Watched(Arc<ThreadSlot>);

impl Runs {
    /// No runs yet.
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Relaxed), ended: AtomicBool::new(false) }
    }

    /// Watches a run of this thread until it ends; `None` once the model has ended.
    pub(super) fn begin(&self, stop: &StopCondition) -> ort::Result<Option<Watched>> {
        let slot = own()?;
        if slot.followed.load(Relaxed) || !stop.callers.is_empty() {
            slot.callers().clone_from(&stop.callers);
            slot.followed.store(!stop.callers.is_empty(), Relaxed);
        }
        slot.model.store(self.id, Relaxed);
        slot.word.store(word(stop.until), SeqCst);
        let watched = Watched(slot);
        // Looked at after the run can be seen, so that one of the two sees the other.
        Ok((!self.ended.load(SeqCst)).then_some(watched))
    }

    /// True once [`end`](Self::end) was called.
    pub(super) fn have_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Stops the runs and refuses further ones.
    pub(super) fn end(&self) {
        self.ended.store(true, SeqCst);
        for slot in slots().iter() {
            let word = slot.word.load(SeqCst);
            if slot.model.load(Relaxed) == self.id {
                slot.stop(word);
            }
        }
    }
}

impl Watched {
    /// The options to run with.
    pub(super) fn options(&self) -> *const sys::OrtRunOptions {
        self.0.options.ptr()
    }

    /// Ends the run; true if it was stopped.
    pub(super) fn end(self) -> bool {
        self.0.end()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Nothing, where it has ended already.
        self.0.end();
    }
}

impl ThreadSlot {
    fn end(&self) -> bool {
        let mut word = self.word.load(Acquire);
        loop {
            match word & STATE {
                IDLE => return false,
                RUNNING => match self.word.compare_exchange(word, IDLE, SeqCst, Acquire) {
                    Ok(_) => return false,
                    Err(now) => word = now,
                },
                // The watchdog is about to be done with the options.
                STOPPING => {
                    thread::yield_now();
                    word = self.word.load(Acquire);
                }
                _ => {
                    if let Err(error) = self.options.unterminate() {
                        tracing::error!(%error, "onnxruntime cannot take a stop back: runs of this thread will fail");
                    }
                    self.word.store(IDLE, SeqCst);
                    return true;
                }
            }
        }
    }

    /// Stops the run that `word` tells of, unless it has ended.
    fn stop(&self, word: u64) {
        let stopping = word & !STATE | STOPPING;
        if word & STATE != RUNNING || self.word.compare_exchange(word, stopping, SeqCst, Relaxed).is_err() {
            return;
        }
        if let Err(error) = self.options.terminate() {
            tracing::error!(%error, "onnxruntime cannot stop a run");
        }
        self.word.store(word & !STATE | STOPPED, SeqCst);
    }

    fn callers(&self) -> MutexGuard<'_, Vec<WeakCaller>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the run if it should have ended.
    fn look(&self, now: u64) {
        let word = self.word.load(SeqCst);
        let abandoned = || self.followed.load(Relaxed) && StopCondition::is_abandoned(&self.callers());
        if word & STATE == RUNNING && (word < now || abandoned()) {
            self.stop(word);
        }
    }
}

/// The slot of this thread, made with its first run.
fn own() -> ort::Result<Arc<ThreadSlot>> {
    OWN.with_borrow_mut(|own| {
        if let Some(slot) = own {
            return Ok(Arc::clone(slot));
        }
        let slot = Arc::new(ThreadSlot {
            word: AtomicU64::new(IDLE),
            model: AtomicU64::new(0),
            followed: AtomicBool::new(false),
            callers: Mutex::default(),
            options: RunOptions::new()?,
        });
        slots().push(Arc::clone(&slot));
        *own = Some(Arc::clone(&slot));
        watch();
        Ok(slot)
    })
}

fn slots() -> MutexGuard<'static, Vec<Arc<ThreadSlot>>> {
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The word of a run that is to end at `until`.
fn word(until: Instant) -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let since = until.saturating_duration_since(*BEGAN.get_or_init(Instant::now));
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX >> 2) << 2 | RUNNING
}

/// Starts the thread that looks, once.
pub(super) fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let look = || {
            loop {
                thread::sleep(LOOK_EVERY);
                load_watch::look();
                let now = word(Instant::now());
                let mut slots = slots();
                // The thread of a slot that nobody else holds has ended.
                slots.retain(|slot| Arc::strong_count(slot) > 1);
                for slot in slots.iter() {
                    slot.look(now);
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("berth-watchdog".to_owned()).spawn(look) {
            tracing::error!(%error, "no thread that stops runs and loads can be started: they are not bounded");
        }
    });
}
