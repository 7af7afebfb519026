//! Pauses of failed endpoints.

use std::time::Duration;

/// First pause. Short, because an election of etcd ends soon.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Longest pause, which bounds how long a returned cluster goes unnoticed.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Counts failures in a row.
#[derive(Debug, Clone, Default)]
pub(in crate::store::etcd) struct Backoff {
    failures: usize,
}

impl Backoff {
    /// One more of `endpoints` failed: how long to wait before the next is tried. Not at all until each had its turn; then
    /// twice as long each round, less up to half by chance, so that many clients do not come back at once.
    pub(in crate::store::etcd) fn failed(&mut self, endpoints: usize) -> Duration {
        self.failures = self.failures.saturating_add(1);
        if !self.failures.is_multiple_of(endpoints) {
            return Duration::ZERO;
        }
        let rounds = u32::try_from(self.failures / endpoints).unwrap_or(u32::MAX);
        let longest = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(rounds - 1)).min(MAX_PAUSE);
        longest.mul_f64(rand::random_range(0.5..=1.0))
    }

    /// The first failure in a row has just been counted.
    pub(in crate::store::etcd) fn is_first(&self) -> bool {
        self.failures == 1
    }

    /// Clears the failures after a success.
    pub(in crate::store::etcd) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_has_its_turn_before_a_pause_and_pauses_grow() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..60).map(|_| backoff.failed(3)).collect();
        assert!(pauses.iter().enumerate().all(|(turn, pause)| pause.is_zero() == (turn % 3 != 2)), "{pauses:?}");
        assert!(pauses[2] <= FIRST_PAUSE && pauses[2] >= FIRST_PAUSE / 2, "{:?}", pauses[2]);
        assert!(pauses[59] <= MAX_PAUSE && pauses[59] >= MAX_PAUSE / 2, "{:?}", pauses[59]);
    }
}
