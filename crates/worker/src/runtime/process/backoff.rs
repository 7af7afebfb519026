//! Delays before a model's process that died is started again.

use std::time::Duration;

/// The first delay: one accident costs half a second, and a process that dies at once is not started in a loop.
const FIRST_DELAY: Duration = Duration::from_millis(500);

/// The longest delay: a broken model takes little of the machine, and one that was broken by something passing is soon
/// back.
const MAX_DELAY: Duration = Duration::from_secs(30);

/// The life of a process after which the next delay is the first one again: one that dies every half minute keeps its
/// long delay, and two accidents in an hour do not add up.
const HEALTHY: Duration = Duration::from_secs(60);

/// The waits between starts.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Backoff {
    in_a_row: u32,
}

impl Backoff {
    /// The wait before the next start, after a process that lived for `lived`: doubled each time, and short again after one that
    /// lived for [`HEALTHY`].
    pub(in crate::runtime) fn after(&mut self, lived: Duration) -> Duration {
        if lived >= HEALTHY {
            self.in_a_row = 0;
        }
        let doubled = 2_u32.saturating_pow(self.in_a_row);
        self.in_a_row += 1;
        FIRST_DELAY.saturating_mul(doubled).min(MAX_DELAY)
    }

    /// Deaths since one lived long.
    pub(in crate::runtime) fn in_a_row(&self) -> u32 {
        self.in_a_row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_until_one_lives() {
        let mut backoff = Backoff::default();
        let waits: Vec<f64> = (0..8).map(|_| backoff.after(Duration::ZERO).as_secs_f64()).collect();
        assert_eq!(waits, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]);
        assert_eq!(backoff.in_a_row(), 8);
        assert_eq!(backoff.after(HEALTHY), FIRST_DELAY);
        assert_eq!(backoff.in_a_row(), 1);
    }
}
