//! Somebody who blocks and cannot be interrupted, on a thread of its own: others wait for him only so long.
//!
//! ```text
//!  asks ──▶ [bounded queue] ──▶ the thread, which owns what is asked ──▶ answers
//!    └─ out of patience: goes on without; what is still under way is not asked for again, until it comes back
//! ```
//! A call that never comes back keeps its thread, one for all that is ever asked: the number of threads does not grow.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

/// Calls that may queue. More are refused at once, because each waits for a slow device.
const WAITING: usize = 16;

type Question<T> = Box<dyn FnOnce(&mut T) + Send>;

/// Runs calls that cannot be cancelled on a thread of its own; callers time out.
pub(super) struct BlockingThread<T> {
    questions: mpsc::SyncSender<Question<T>>,
    /// Since when the thread is busy with one question.
    busy: Arc<Mutex<Option<Instant>>>,
    patience: Duration,
}

/// Timeout: the thread did not answer, or still runs an earlier call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoReply {
    /// Time that the thread has spent on its current call.
    pub(super) busy: Duration,
}

impl<T: 'static> BlockingThread<T> {
    /// A thread that makes and keeps what is asked. `None`: no thread can be had.
    pub(super) fn start(name: &str, patience: Duration, make: impl FnOnce() -> T + Send + 'static) -> Option<Self> {
        let (questions, asked) = mpsc::sync_channel::<Question<T>>(WAITING);
        let busy = Arc::new(Mutex::new(None));
        let shown = Arc::clone(&busy);
        let show = move |since| *shown.lock().unwrap_or_else(PoisonError::into_inner) = since;
        let work = move || {
            let mut kept = make();
            for question in asked {
                show(Some(Instant::now()));
                question(&mut kept);
                show(None);
            }
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(work).ok()?;
        Some(Self { questions, busy, patience })
    }

    /// Asks, and waits for the answer as long as there is patience.
    pub(super) fn ask<A: Send + 'static>(
        &self,
        question: impl FnOnce(&mut T) -> A + Send + 'static,
    ) -> Result<A, NoReply> {
        if self.busy_for() >= self.patience {
            return Err(self.silent());
        }
        let (tell, answer) = mpsc::sync_channel(1);
        let wanted = Arc::new(AtomicBool::new(true));
        let still = Arc::clone(&wanted);
        let question: Question<T> = Box::new(move |kept| {
            if still.load(Ordering::Relaxed) {
                // Whoever asked may be gone by then.
                let _ = tell.send(question(kept));
            }
        });
        self.questions.try_send(question).map_err(|_| self.silent())?;
        answer.recv_timeout(self.patience).map_err(|_| {
            wanted.store(false, Ordering::Relaxed);
            self.silent()
        })
    }

    /// Has something done when there is time for it, and waits for nothing. Too much of it is not done.
    pub(super) fn tell(&self, what: impl FnOnce(&mut T) + Send + 'static) {
        let _ = self.questions.try_send(Box::new(what));
    }

    fn busy_for(&self) -> Duration {
        let since = *self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn silent(&self) -> NoReply {
        NoReply { busy: self.busy_for().max(self.patience) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hangs_is_not_waited_for_and_serves_again_when_he_comes_back() {
        let patience = Duration::from_millis(20);
        let aside = BlockingThread::start("test", patience, || 0_u32).expect("a thread");
        let (let_go, held) = mpsc::channel::<()>();
        let hung = aside.ask(move |kept| {
            *kept = 2;
            held.recv().expect("it is let go");
        });
        assert!(hung.is_err_and(|silent| silent.busy >= patience));
        for _ in 0..2 * WAITING {
            assert!(aside.ask(|kept| *kept = 99).is_err(), "it has not come back");
        }
        let_go.send(()).expect("it waits");
        let until = Instant::now() + Duration::from_secs(60);
        let kept = loop {
            match aside.ask(|kept| *kept) {
                Ok(kept) => break kept,
                Err(_) => assert!(Instant::now() < until, "it never came back"),
            }
        };
        assert_eq!(kept, 2, "what nobody waited for any more was not done");
    }
}
