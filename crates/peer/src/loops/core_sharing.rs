//! When a busy loop lets other threads have its core.
//!
//! ```text
//! turn over ──▶ 100 µs since it last waited or yielded? ──▶ yield ──▶ others had the core
//!                                                                     ├ for less than 2 ms: a client, another loop
//!                                                                     └ for longer: a thread that computes
//!                                                                       over 1 in 16 ──▶ no yield for 50 ms to 1.6 s
//! ```
//! The kernel takes a core from a thread that does not wait only at its next tick, 4 ms at 250 Hz. Where loops and clients are more threads than
//! there are cores, whoever waits for a tick decides the latency of the slowest percent. A client or another loop that is given the
//! core soon waits for events, and the loop has its core again. A thread that only computes keeps the core until a tick, so
//! a loop beside such threads must not yield: it would work only between their ticks.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// Time for which a loop keeps its core. Some ten requests: a change of threads costs less than one.
const TURN: Duration = Duration::from_micros(100);

/// Wait for events after which a loop has shared its core enough. A change to another thread and back takes less.
const WAITED: Duration = Duration::from_micros(50);

/// Time without the core of which another loop or a client takes less: half a tick of the kernel.
const LONG: Duration = Duration::from_millis(2);

/// Time without the core below which nobody wanted it: the cost of the call itself.
const NOBODY: Duration = Duration::from_micros(3);

/// Weight of the last yield in the share of long ones: three long ones in a row are over the bound.
const WEIGHT: f32 = 1.0 / 64.0;

/// The largest share of long yields. Beside clients it is 1 %, beside threads that compute 10 to 60 %.
const LARGEST_SHARE: f32 = 1.0 / 16.0;

/// The first pause. Each that follows a few yields later is twice as long.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause. With one long yield after each, threads that compute cost a loop a quarter of a percent.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_600);

thread_local! {
    static OWN: Cell<CoreSharing> = Cell::new(CoreSharing::since(Instant::now()));
}

/// A turn of this thread's loop is over, and its answers are written.
pub(super) fn before_wait() {
    let mut own = OWN.get();
    let begun = Instant::now();
    let mut waits = begun;
    if own.is_due(begun) {
        std::thread::yield_now();
        waits = Instant::now();
        own.yielded(begun, waits);
    }
    own.waits_since = waits;
    OWN.set(own);
}

/// The loop has waited for events.
pub(super) fn after_wait() {
    let mut own = OWN.get();
    own.waited(Instant::now());
    OWN.set(own);
}

/// Record of the yields of one loop.
#[derive(Debug, Clone, Copy)]
struct CoreSharing {
    /// Time at which it last had its core anew.
    has_core_since: Instant,
    waits_since: Instant,
    /// Moving average of the share of long yields among those at which somebody wanted the core.
    long_share: f32,
    /// Zero unless yields were long of late.
    pause: Duration,
    paused_until: Instant,
}

impl CoreSharing {
    fn since(now: Instant) -> Self {
        Self { has_core_since: now, waits_since: now, long_share: 0.0, pause: Duration::ZERO, paused_until: now }
    }

    fn is_due(&self, now: Instant) -> bool {
        now.duration_since(self.has_core_since) >= TURN && now >= self.paused_until
    }

    fn waited(&mut self, now: Instant) {
        if now.duration_since(self.waits_since) >= WAITED {
            self.has_core_since = now;
        }
    }

    fn yielded(&mut self, begun: Instant, now: Instant) {
        self.has_core_since = now;
        let without = now.duration_since(begun);
        if without < NOBODY {
            return;
        }
        let is_long = if without >= LONG { 1.0 } else { 0.0 };
        self.long_share += (is_long - self.long_share) * WEIGHT;
        if self.long_share > LARGEST_SHARE {
            self.pause = (self.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            self.paused_until = now + self.pause;
            // The next long yield is over the bound again; some short ones are not.
            self.long_share = LARGEST_SHARE;
        } else if self.long_share < LARGEST_SHARE / 2.0 {
            self.pause = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a busy loop for `time`: `without(n)` is the time without the core at its nth yield. Returns the number of yields, and the time
    /// that they took.
    fn play(
        sharing: &mut CoreSharing,
        now: &mut Instant,
        time: Duration,
        without: impl Fn(u32) -> Duration,
    ) -> (u32, Duration) {
        let (end, mut count, mut lost) = (*now + time, 0, Duration::ZERO);
        while *now < end {
            *now += TURN;
            if sharing.is_due(*now) {
                let begun = *now;
                *now += without(count);
                sharing.yielded(begun, *now);
                count += 1;
                lost += now.duration_since(begun);
            }
        }
        (count, lost)
    }

    const SHORT: Duration = Duration::from_micros(150);
    const TICK: Duration = Duration::from_millis(4);
    const TIME: Duration = Duration::from_secs(20);

    #[test]
    fn beside_clients_it_yields_at_each_turn() {
        let mut now = Instant::now();
        let mut sharing = CoreSharing::since(now);
        // One in fifty waits for a tick.
        let (count, lost) = play(&mut sharing, &mut now, TIME, |n| if n % 50 == 49 { TICK } else { SHORT });
        let turns = (TIME - lost).as_micros() / TURN.as_micros();
        assert!(u128::from(count) * 10 > turns * 9, "{count} yields in {turns} turns");
    }

    #[test]
    fn threads_that_compute_cost_it_little() {
        for often in [1, 2, 5, 10] {
            let mut now = Instant::now();
            let mut sharing = CoreSharing::since(now);
            let (count, lost) = play(&mut sharing, &mut now, TIME, |n| if n % often == 0 { TICK } else { SHORT });
            assert!(lost < TIME / 100, "one long in {often}: {lost:?} of {TIME:?}");
            // When they have gone, it yields again.
            assert!(count > 10, "{count}");
            let (again, _) = play(&mut sharing, &mut now, TIME, |_| SHORT);
            assert!(again > 50_000, "one long in {often}: {again}");
        }
    }

    #[test]
    fn where_nobody_wants_the_core_nothing_is_learned() {
        let mut now = Instant::now();
        let mut sharing = CoreSharing::since(now);
        play(&mut sharing, &mut now, TIME, |_| TICK);
        let known = sharing.long_share;
        play(&mut sharing, &mut now, TIME, |_| Duration::from_micros(1));
        assert!(sharing.long_share >= known && known > 0.0);
    }

    #[test]
    fn a_wait_for_events_is_a_yield() {
        let start = Instant::now();
        let at = |time: Duration| start + time;
        let mut sharing = CoreSharing::since(start);
        assert!(!sharing.is_due(at(TURN / 2)));
        assert!(sharing.is_due(at(TURN)));
        sharing.waits_since = at(TURN);
        sharing.waited(at(TURN + WAITED / 2));
        assert!(sharing.is_due(at(TURN + WAITED / 2)), "events were there");
        sharing.waited(at(TURN + WAITED));
        assert!(!sharing.is_due(at(TURN + WAITED)));
    }
}
