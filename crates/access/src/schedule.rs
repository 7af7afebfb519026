//! Times at which the keys of an issuer are fetched.
//!
//! ```text
//! due ──fetched──▶ fresh: for as long as the issuer says, within bounds ──▶ due
//!  └────failed───▶ back-off: 1 s, twice as long each time, up to a minute ──▶ due
//! ```
//! A token of an unknown key makes it due at once; those are damped where they are seen.

use std::time::Duration;

/// Time for which keys are fresh where the issuer does not say: new ones are mostly published a day before they are used.
const DEFAULT_FRESH: Duration = Duration::from_secs(15 * 60);

/// Least such time: an issuer that says "no-cache" is asked once a minute.
const MIN_FRESH: Duration = Duration::from_secs(60);

/// Longest such time: a key that was withdrawn opens nothing after it.
const MAX_FRESH: Duration = Duration::from_secs(3_600);

/// Pause after the first failure: an issuer that starts beside this node is there soon.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Longest pause between failures: an issuer that is back is used within a minute.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Schedule of fetching one issuer's keys: pauses by its answers and by failures in a row.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    failures: u32,
}

impl Schedule {
    /// Pause after the keys were fetched; `max_age` is what the issuer said.
    pub(crate) fn fetched(&mut self, max_age: Option<Duration>) -> Duration {
        self.failures = 0;
        max_age.unwrap_or(DEFAULT_FRESH).clamp(MIN_FRESH, MAX_FRESH)
    }

    /// Pause after they could not be.
    pub(crate) fn failed(&mut self) -> Duration {
        let pause = FIRST_RETRY.saturating_mul(1 << self.failures.min(6));
        self.failures = self.failures.saturating_add(1);
        pause.min(LONGEST_RETRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_is_asked_neither_too_often_nor_too_seldom() {
        let mut schedule = Schedule::default();
        let failed: Vec<u64> = (0..8).map(|_| schedule.failed().as_secs()).collect();
        assert_eq!(failed, [1, 2, 4, 8, 16, 32, 60, 60]);
        for (said, pause) in [(None, 900), (Some(0), 60), (Some(600), 600), (Some(86_400), 3_600)] {
            assert_eq!(schedule.fetched(said.map(Duration::from_secs)).as_secs(), pause, "{said:?}");
        }
        assert_eq!(schedule.failed().as_secs(), 1);
    }
}
