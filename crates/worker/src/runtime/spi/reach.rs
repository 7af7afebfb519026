//! The wait for a runtime that cannot be reached, and the time of a load without that wait.
//!
//! A runtime that died is mostly started again soon. A load waits for that, and requests for its model with it, rather than fail.

use std::{
    error::Error as _,
    iter,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Code, Status, TimeoutExpired};

use super::{HealthCheck, address::CONNECT};

/// The pause between two attempts to reach it: a server takes seconds to start, and is used soon after it listens.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Since when a runtime cannot be reached, as its loads have seen it: those behind one that waited in vain do not wait again.
pub(super) struct Absence {
    seen: Mutex<Option<(Instant, Instant)>>,
    /// The time for which a load waits.
    back_within: Duration,
}

impl Default for Absence {
    fn default() -> Self {
        Self::new(HealthCheck::default().lost_after)
    }
}

impl Absence {
    /// None so far. Loads will wait for so long.
    pub(super) fn new(back_within: Duration) -> Self {
        Self { seen: Mutex::default(), back_within }
    }

    /// Notes that it was not reached. Returns the moment until which a load waits for it.
    pub(super) fn goes_on(&self) -> Instant {
        let (mut seen, now) = (self.seen(), Instant::now());
        // Who looks after a long time finds another absence. An attempt may take longer than a load is to wait.
        let long = self.back_within.max(CONNECT * 2);
        let same = seen.filter(|(_, last)| now.saturating_duration_since(*last) < long);
        let since = same.map_or(now, |(since, _)| since);
        *seen = Some((since, now));
        since + self.back_within
    }

    fn ends(&self) {
        *self.seen() = None;
    }

    fn seen(&self) -> MutexGuard<'_, Option<(Instant, Instant)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time that a load takes, from the attempt that reached its runtime.
pub(super) struct LoadClock {
    began: Mutex<Instant>,
    absence: Arc<Absence>,
}

impl LoadClock {
    /// Begins now, for a load in a runtime of which this is known.
    pub(super) fn start(absence: &Arc<Absence>) -> Self {
        Self { began: Mutex::new(Instant::now()), absence: Arc::clone(absence) }
    }

    pub(super) fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(*self.began())
    }

    /// Waits for a load that goes by this clock. `None`: it took longer than `limit`.
    pub(super) async fn within<T>(&self, limit: Duration, load: impl Future<Output = T>) -> Option<T> {
        let mut load = pin!(load);
        loop {
            match timeout(limit.saturating_sub(self.elapsed()), &mut load).await {
                Ok(loaded) => return Some(loaded),
                Err(_) if self.elapsed() >= limit => return None,
                // Another attempt has begun meanwhile, or will.
                Err(_) => {}
            }
        }
    }

    fn began(&self) -> MutexGuard<'_, Instant> {
        self.began.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls, and again for a while as long as the runtime cannot be reached: nothing has come to it then.
pub(super) async fn when_reached<T, F>(clock: &LoadClock, call: impl Fn() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    loop {
        let ended = call().await;
        if !ended.as_ref().is_err_and(is_unreached) {
            clock.absence.ends();
            return ended;
        }
        let next = Instant::now() + RETRY_INTERVAL;
        if next >= clock.absence.goes_on() {
            return ended;
        }
        *clock.began() = next;
        sleep_until(next).await;
    }
}

/// True if no connection to the runtime could be made. Only a status that was made on this side has a source.
pub(super) fn is_unreached(status: &Status) -> bool {
    status.code() == Code::Unavailable && status.source().is_some()
}

/// True if this side gave up waiting for an answer.
pub(super) fn is_late(status: &Status) -> bool {
    iter::successors(status.source(), |&source| source.source()).any(|source| {
        let of_rest = || source.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_timeout);
        source.is::<TimeoutExpired>() || of_rest()
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use tokio::time::sleep;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const BACK_WITHIN: Duration = Duration::from_secs(8);

    fn unreached() -> Status {
        let mut status = Status::unavailable("connection refused");
        status.set_source(Arc::new(io::Error::other("connection refused")));
        status
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_cannot_be_reached_is_waited_for_but_not_for_ever() {
        let absence = Arc::new(Absence::new(BACK_WITHIN));
        let (clock, began) = (LoadClock::start(&absence), Instant::now());
        let fails = || async { Err::<(), _>(unreached()) };
        assert!(when_reached(&clock, fails).await.is_err());
        assert!(began.elapsed() > BACK_WITHIN / 2 && began.elapsed() <= BACK_WITHIN, "{:?}", began.elapsed());
        // The next one has waited with it.
        let next = Instant::now();
        assert!(when_reached(&LoadClock::start(&clock.absence), fails).await.is_err());
        assert_eq!(next.elapsed(), Duration::ZERO);
        // Once it was there, it is waited for again.
        assert!(when_reached(&clock, || async { Ok(()) }).await.is_ok());
        assert!(when_reached(&clock, fails).await.is_err());
        assert!(next.elapsed() > BACK_WITHIN / 2, "{:?}", next.elapsed());
        let refuses = when_reached(&clock, || async { Err::<(), _>(Status::unavailable("it says so itself")) });
        assert!(refuses.await.is_err());
    }

    /// Each attempt began another absence, so that a load waited for ever.
    #[tokio::test(start_paused = true)]
    async fn a_load_ends_also_where_an_attempt_takes_longer_than_it_is_to_wait() {
        let (clock, began) = (LoadClock::start(&Arc::new(Absence::new(SECOND))), Instant::now());
        let load = when_reached(&clock, || async {
            sleep(CONNECT).await;
            Err::<(), _>(unreached())
        });
        assert!(timeout(CONNECT * 10, load).await.is_ok_and(|loaded| loaded.is_err()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_a_runtime_is_no_time_of_a_load() {
        for (takes, is_in_time) in [(SECOND, true), (3 * SECOND, false)] {
            let (clock, calls, began) = (LoadClock::start(&Arc::default()), AtomicUsize::new(0), Instant::now());
            let load = when_reached(&clock, || async {
                if calls.fetch_add(1, Relaxed) < 40 {
                    return Err(unreached());
                }
                sleep(takes).await;
                Ok(())
            });
            let loaded = clock.within(2 * SECOND, load).await;
            assert_eq!(loaded.is_some_and(|loaded| loaded.is_ok()), is_in_time);
            assert!(began.elapsed() > 10 * SECOND, "{:?}", began.elapsed());
            assert!(clock.elapsed() < 2 * SECOND || !is_in_time, "{:?}", clock.elapsed());
        }
    }
}
