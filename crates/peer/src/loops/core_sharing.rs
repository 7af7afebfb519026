//! Sharing of cores between a busy loop, the other loops and whatever else runs on this machine.
//!
//! ```text
//! turn over ──▶ 100 µs since it last waited or yielded? ──▶ another busy loop waits for a core? ── no ──▶ yield
//!                                                                                              └ yes ──▶ sleep
//! others had the core ── for less than half a tick: a client, another loop
//!                     └─ for longer: a thread that computes ── over a sixth of the time ──▶ neither for 50 ms to 1.6 s
//! ```
//! The kernel mostly takes a core from a thread that does not wait only at the next tick of its scheduler, 4 ms at 250 Hz. Where loops and clients
//! are more threads than there are cores, whoever waits for a tick decides the latency of the slowest percent.
//!
//! * **Yields.** A client or another loop that is given the core soon waits for events, and the loop has its core again. A thread that only
//!   computes keeps the core until a tick, so a loop beside such threads must not yield: it would work only between their ticks.
//! * **Sleeps.** A client on the core of one loop has no reason to wait while another loop, on another core, answers it. That loop sleeps:
//!   the client has nothing more to do, and the first loop has its core.
//!
//! A turn is over when no task of the loop is ready. A loop that always has one is overloaded, and shares nothing.

use std::{
    cell::RefCell,
    sync::Arc,
    time::{Duration, Instant},
};

use super::waits::{STALLED, Waits};

/// Time for which a loop keeps its core. Some ten requests: a change of threads costs less than one.
const TURN: Duration = Duration::from_micros(100);

/// Wait for events that counts as a yield. A change to another thread and back takes less.
const WAIT: Duration = Duration::from_micros(50);

/// Long yields may take one part in this many of the time. Beside clients they take a twentieth, beside threads that compute a quarter to a half.
const LONG_DIVISOR: u32 = 6;

/// Long yields, in ticks, that may come at once.
const LONG_BURST: u32 = 3;

/// A sleep for another loop. The kernel adds some 50 µs. Meanwhile a client reads and sends what 32 connections have for it.
const SLEEP: Duration = Duration::from_micros(100);

/// Sleeps may take one part in this many of the time: the other loop may only seem to wait for a core.
const SLEEP_DIVISOR: u32 = 16;

/// Time of sleeps that may come at once.
const SLEEP_BURST: Duration = Duration::from_millis(1);

/// Wait for events that a busy loop does not have. It is below the wait from which on a loop seems to be stalled.
const LONG_WAIT: Duration = STALLED;

/// Short waits in a row from which on a loop is busy.
const BUSY: u8 = 8;

/// The first pause.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause. A burst after each is one percent of the time.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_600);

thread_local! {
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

/// The loop of a thread.
struct Own {
    index: usize,
    waits: Arc<Waits>,
    record: CoreSharing,
}

/// Makes this thread the loop of that index.
pub(super) fn begin(index: usize, waits: Arc<Waits>, tick: Duration) {
    OWN.set(Some(Own::new(index, waits, tick, Instant::now())));
}

/// Lets others have the core if it is time. A turn of this thread's loop is over, and its answers are written.
pub(super) fn before_wait() {
    OWN.with_borrow_mut(|own| own.as_mut().map(Own::before_wait));
}

/// Counts the wait for events that is over.
pub(super) fn after_wait() {
    OWN.with_borrow_mut(|own| own.as_mut().map(Own::after_wait));
}

/// Ways to let others have the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Yield,
    Sleep,
}

impl Own {
    fn new(index: usize, waits: Arc<Waits>, tick: Duration, now: Instant) -> Self {
        Self { index, waits, record: CoreSharing::new(tick, now) }
    }

    fn before_wait(&mut self) {
        let begun = Instant::now();
        if let Some(sharing) = self.due(begun) {
            // Another loop must not take this for a wait for a core.
            match sharing {
                Sharing::Yield => std::thread::yield_now(),
                Sharing::Sleep => std::thread::sleep(SLEEP),
            }
            let now = Instant::now();
            self.record.shared(sharing, begun, now);
            self.begin_wait(now);
        } else {
            self.begin_wait(begun);
        }
    }

    fn due(&self, now: Instant) -> Option<Sharing> {
        if !self.record.is_due(now) {
            return None;
        }
        let sleeps = self.record.may_sleep(now) && self.waits.is_another_stalled(self.index, now, self.record.tick);
        Some(if sleeps { Sharing::Sleep } else { Sharing::Yield })
    }

    fn begin_wait(&mut self, now: Instant) {
        self.record.waits_since = now;
        if self.record.is_busy() {
            self.waits.begin(self.index, now);
        }
    }

    fn after_wait(&mut self) {
        self.end_wait(Instant::now());
    }

    fn end_wait(&mut self, now: Instant) {
        self.waits.end(self.index);
        self.record.waited(now);
    }
}

/// Record of a loop's waits, yields and sleeps.
#[derive(Debug, Clone, Copy)]
struct CoreSharing {
    /// Period of the tick of the kernel's scheduler.
    tick: Duration,
    /// End of its last wait or yield.
    has_core_since: Instant,
    /// Begin of its last wait.
    waits_since: Instant,
    /// Time that long yields have taken beyond their part, until `counted`.
    excess: Duration,
    counted: Instant,
    /// Time that sleeps have taken beyond their part, until `slept`.
    sleep_excess: Duration,
    slept: Instant,
    /// Short waits for events in a row.
    short_waits: u8,
    /// The last pause, and its end.
    pause: Duration,
    paused_until: Instant,
}

impl CoreSharing {
    fn new(tick: Duration, now: Instant) -> Self {
        Self {
            tick,
            has_core_since: now,
            waits_since: now,
            excess: Duration::ZERO,
            counted: now,
            sleep_excess: Duration::ZERO,
            slept: now,
            short_waits: 0,
            pause: Duration::ZERO,
            paused_until: now,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        now.duration_since(self.has_core_since) >= TURN && now >= self.paused_until
    }

    fn waited(&mut self, now: Instant) {
        let wait = now.duration_since(self.waits_since);
        if wait >= WAIT {
            self.has_core_since = now;
        }
        self.short_waits = if wait < LONG_WAIT { self.short_waits.saturating_add(1) } else { 0 };
    }

    fn is_busy(&self) -> bool {
        self.short_waits >= BUSY
    }

    fn may_sleep(&self, now: Instant) -> bool {
        self.sleep_excess.saturating_sub(now.duration_since(self.slept) / SLEEP_DIVISOR) < SLEEP_BURST
    }

    /// Counts what others had of the core.
    fn shared(&mut self, sharing: Sharing, begun: Instant, now: Instant) {
        self.has_core_since = now;
        let without = now.duration_since(begun);
        if sharing == Sharing::Sleep {
            let excess = self.sleep_excess.saturating_sub(now.duration_since(self.slept) / SLEEP_DIVISOR) + without;
            // A process that was stopped meanwhile is no reason for hours without.
            self.sleep_excess = excess.min(SLEEP_BURST * 2);
            self.slept = now;
        }
        if without < self.tick / 2 {
            return;
        }
        let excess = self.excess.saturating_sub(now.duration_since(self.counted) / LONG_DIVISOR) + without;
        self.excess = excess.min(self.tick * LONG_BURST * 2);
        self.counted = now;
        if self.excess >= self.tick * LONG_BURST {
            // Soon after a pause: what it was for has not gone.
            let is_soon = now.duration_since(self.paused_until) < self.pause;
            self.pause = if is_soon { (self.pause * 2).min(LONGEST_PAUSE) } else { SHORTEST_PAUSE };
            self.paused_until = now + self.pause;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_micros(150);
    const TICKS: [Duration; 3] = [Duration::from_millis(1), Duration::from_millis(4), Duration::from_millis(10)];

    /// Plays a busy loop for [`TIME`], in which one yield in `often` takes a whole tick. Returns the number of yields, and the time of
    /// the long ones.
    fn play(record: &mut CoreSharing, often: u32) -> (u32, Duration) {
        let mut now = record.counted.max(record.paused_until);
        let (end, mut count, mut lost) = (now + TIME, 0, Duration::ZERO);
        while now < end {
            now += TURN;
            if record.is_due(now) {
                let begun = now;
                count += 1;
                let is_long = count % often == 0;
                now += if is_long { record.tick } else { SHORT };
                record.shared(Sharing::Yield, begun, now);
                lost += if is_long { record.tick } else { Duration::ZERO };
            }
        }
        (count, lost)
    }

    fn record(tick: Duration) -> CoreSharing {
        CoreSharing::new(tick, Instant::now())
    }

    #[test]
    fn beside_clients_it_yields_at_each_turn() {
        let mut record = record(TICKS[1]);
        // One in 150 waits for a tick.
        let (count, lost) = play(&mut record, 150);
        let turns = (TIME - lost).as_micros() / (TURN + SHORT).as_micros();
        assert!(u128::from(count) * 100 > turns * 99, "{count} yields in {turns} turns");
    }

    #[test]
    fn threads_that_compute_cost_it_little_and_are_forgotten() {
        for (tick, often) in TICKS.into_iter().flat_map(|tick| [(tick, 1), (tick, 2), (tick, 3)]) {
            let mut record = record(tick);
            let (count, lost) = play(&mut record, often);
            // Bursts end a little over the bound, at most one tick and what drains meanwhile.
            assert!(lost < TIME / 30, "a tick of {tick:?}, one long in {often}: {lost:?} of {TIME:?}");
            assert!(count > 10, "it never learns that they have gone");
            let (count, _) = play(&mut record, u32::MAX);
            assert!(count > 70_000, "a tick of {tick:?}, one long in {often}: {count}");
        }
    }

    #[test]
    fn long_yields_never_take_more_than_their_part() {
        for tick in TICKS {
            for often in (1..400).step_by(7) {
                let (_, lost) = play(&mut record(tick), often);
                let most = TIME / LONG_DIVISOR + tick * (LONG_BURST + 1);
                assert!(lost <= most, "a tick of {tick:?}, one long in {often}: {lost:?}");
            }
        }
    }

    #[test]
    fn a_wait_for_events_is_a_yield() {
        let mut record = record(TICKS[1]);
        let start = record.counted;
        let at = |time: Duration| start + time;
        assert!(!record.is_due(at(TURN / 2)));
        assert!(record.is_due(at(TURN)));
        record.waits_since = at(TURN);
        record.waited(at(TURN + WAIT / 2));
        assert!(record.is_due(at(TURN + WAIT / 2)), "events were there");
        record.waited(at(TURN + WAIT));
        assert!(!record.is_due(at(TURN + WAIT)));
    }

    #[test]
    fn a_loop_is_busy_while_its_waits_are_short() {
        let mut record = record(TICKS[1]);
        let mut now = record.counted;
        let mut wait = |record: &mut CoreSharing, time| {
            record.waits_since = now;
            now += time;
            record.waited(now);
            record.is_busy()
        };
        let busy: Vec<bool> = (0..20).map(|_| wait(&mut record, SHORT)).collect();
        assert_eq!(busy.iter().position(|busy| *busy), Some(7));
        assert!(!wait(&mut record, LONG_WAIT));
    }

    #[test]
    fn a_busy_loop_sleeps_while_another_waits_for_a_core() {
        let (waits, start) = (Arc::new(Waits::of(2)), Instant::now());
        let mut loops = [0, 1].map(|index| Own::new(index, Arc::clone(&waits), TICKS[1], start));
        let mut now = start;
        let mut turn = |own: &mut Own| {
            own.begin_wait(now);
            now += WAIT;
            own.end_wait(now);
            now
        };
        // One that is not busy waits for events.
        loops[1].begin_wait(start);
        let after = turn(&mut loops[0]) + STALLED + TURN;
        assert_eq!(loops[0].due(after), Some(Sharing::Yield));
        for _ in 0..BUSY {
            turn(&mut loops[1]);
        }
        let waits_since = turn(&mut loops[0]);
        loops[1].begin_wait(waits_since);
        assert_eq!(loops[0].due(waits_since + TURN / 2), None);
        assert_eq!(loops[0].due(waits_since + TURN), Some(Sharing::Yield), "it waits for events, as it seems");
        let stalled = waits_since + STALLED;
        assert_eq!(loops[0].due(stalled), Some(Sharing::Sleep));
        loops[0].record.shared(Sharing::Sleep, stalled, stalled + SLEEP_BURST + SLEEP);
        let again = stalled + SLEEP_BURST + SLEEP + TURN;
        assert_eq!(loops[0].due(again), Some(Sharing::Yield), "it has slept enough");
        loops[1].end_wait(again);
        assert_eq!(loops[0].due(again + SLEEP_BURST * SLEEP_DIVISOR), Some(Sharing::Yield), "nobody waits");
    }

    #[test]
    fn a_process_that_was_stopped_shares_again_soon() {
        let hour = Duration::from_secs(3_600);
        for sharing in [Sharing::Yield, Sharing::Sleep] {
            let mut record = record(TICKS[1]);
            let now = record.counted + hour;
            record.shared(sharing, record.counted, now);
            assert!(!record.is_due(now + TURN), "that was long");
            let later = now + Duration::from_millis(100);
            assert!(record.is_due(later) && record.may_sleep(later));
        }
    }

    #[test]
    fn sleeps_take_no_more_than_their_part() {
        let mut record = record(TICKS[1]);
        let (mut now, mut slept) = (record.counted, Duration::ZERO);
        let end = now + TIME;
        while now < end {
            now += TURN;
            if record.may_sleep(now) {
                let begun = now;
                now += SHORT;
                record.shared(Sharing::Sleep, begun, now);
                slept += SHORT;
            }
        }
        assert!(slept <= TIME / SLEEP_DIVISOR + SLEEP_BURST + SHORT && slept > TIME / (SLEEP_DIVISOR + 2), "{slept:?}");
    }

    #[tokio::test]
    async fn the_runtime_of_a_loop_tells_of_its_waits() {
        let loops = super::super::EventLoops::start(Some(1)).expect("threads");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let _client = tokio::net::TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("one comes");
        let (told, heard) = tokio::sync::oneshot::channel();
        let serve = move |_stream| async move {
            let record = || OWN.with_borrow(|own| own.as_ref().map(|own| own.record));
            let before = record();
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(told.send((before, record())).is_ok(), "it listens");
        };
        loops.adopt(stream, serve).expect("taken");
        let (Some(before), Some(after)) = heard.await.expect("told") else { panic!("a loop has no record") };
        assert!(before.waits_since < after.waits_since && before.has_core_since < after.has_core_since);
    }
}
