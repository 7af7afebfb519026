//! Yields of a busy loop: other threads have its core between two turns.
//!
//! ```text
//! turn over ──▶ 100 µs since it last waited or yielded? ──▶ yield ──▶ others had the core
//!                                                                     ├ for less than half a tick: a client, another loop
//!                                                                     └ for longer: a thread that computes
//!                                                                       over a sixth of the time ──▶ no yield for 50 ms to 1.6 s
//! ```
//! The kernel takes a core from a thread that does not wait only at its next tick, 4 ms at 250 Hz. Where loops and clients are more threads than
//! there are cores, whoever waits for a tick decides the latency of the slowest percent. A client or another loop that is given the
//! core soon waits for events, and the loop has its core again. A thread that only computes keeps the core until a tick, so
//! a loop beside such threads must not yield: it would work only between their ticks.
//!
//! A turn is over when no task of the loop is ready. A loop that always has one is overloaded, and does not yield.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// Time for which a loop keeps its core. Some ten requests: a change of threads costs less than one.
const TURN: Duration = Duration::from_micros(100);

/// Wait for events that counts as a yield. A change to another thread and back takes less.
const WAIT: Duration = Duration::from_micros(50);

/// Part of the time that long yields may take. Beside clients they take a twentieth, beside threads that compute a quarter to a half.
const PART: u32 = 6;

/// Long yields, in ticks, that may come at once.
const BURST: u32 = 3;

/// The first pause.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause. A burst after each is one percent of the time.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_600);

thread_local! {
    static RECORD: Cell<Option<CoreSharing>> = const { Cell::new(None) };
}

/// Begins the record of the loop that is this thread.
pub(super) fn begin(tick: Duration) {
    RECORD.set(Some(CoreSharing::new(tick, Instant::now())));
}

/// Yields the core if it is time. A turn of this thread's loop is over, and its answers are written.
pub(super) fn before_wait() {
    let Some(mut record) = RECORD.get() else { return };
    let begun = Instant::now();
    record.waits_since = begun;
    if record.is_due(begun) {
        std::thread::yield_now();
        let now = Instant::now();
        record.waits_since = now;
        record.yielded(begun, now);
    }
    RECORD.set(Some(record));
}

/// Counts the wait for events that is over.
pub(super) fn after_wait() {
    let Some(mut record) = RECORD.get() else { return };
    record.waited(Instant::now());
    RECORD.set(Some(record));
}

/// Record of the yields of one loop.
#[derive(Debug, Clone, Copy)]
struct CoreSharing {
    /// Time between two of the kernel's looks at who has a core.
    tick: Duration,
    /// End of its last wait or yield.
    has_core_since: Instant,
    /// Begin of its last wait.
    waits_since: Instant,
    /// Time that long yields have taken beyond their part, until `counted`.
    excess: Duration,
    counted: Instant,
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
            pause: Duration::ZERO,
            paused_until: now,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        now.duration_since(self.has_core_since) >= TURN && now >= self.paused_until
    }

    fn waited(&mut self, now: Instant) {
        if now.duration_since(self.waits_since) >= WAIT {
            self.has_core_since = now;
        }
    }

    fn yielded(&mut self, begun: Instant, now: Instant) {
        self.has_core_since = now;
        let without = now.duration_since(begun);
        if without < self.tick / 2 {
            return;
        }
        self.excess = self.excess.saturating_sub(now.duration_since(self.counted) / PART) + without;
        self.counted = now;
        if self.excess >= self.tick * BURST {
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
                record.yielded(begun, now);
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
                let most = TIME / PART + tick * (BURST + 1);
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

    #[tokio::test]
    async fn the_runtime_of_a_loop_tells_of_its_waits() {
        let loops = super::super::EventLoops::start(Some(1)).expect("threads");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let _client = tokio::net::TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("one comes");
        let (told, heard) = tokio::sync::oneshot::channel();
        let serve = move |_stream| async move {
            let before = RECORD.get();
            tokio::time::sleep(Duration::from_millis(1)).await;
            told.send((before, RECORD.get())).expect("it listens");
        };
        loops.adopt(stream, serve).expect("taken");
        let (Some(before), Some(after)) = heard.await.expect("told") else { panic!("a loop has no record") };
        assert!(before.waits_since < after.waits_since && before.has_core_since < after.has_core_since);
    }
}
