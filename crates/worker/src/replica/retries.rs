//! The pauses before a load that failed is tried again.

use std::time::Duration;

/// The retries after the first failure: an outage of two minutes passes, and a broken model does not keep a slot busy
/// for half an hour.
pub const MAX_RETRIES: u32 = 3;
/// The delay before the first retry; each later one doubles. Three retries outlast a small outage.
pub const RETRY_BASE: Duration = Duration::from_secs(30);
/// The longest delay before a retry: what was repaired is loaded within five minutes without anybody acting.
pub const RETRY_CAP: Duration = Duration::from_secs(300);

/// The delays before retries of loads that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// The delay before the first retry; each later one doubles. [`RETRY_BASE`] unless somebody says.
    pub base: Duration,
    /// The bound of the doubled delays. [`RETRY_CAP`] unless somebody says.
    pub cap: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Self { base: RETRY_BASE, cap: RETRY_CAP }
    }
}

impl Retries {
    /// The same delay before each retry.
    #[must_use]
    pub fn every(delay: Duration) -> Self {
        Self { base: delay, cap: delay }
    }

    /// The delay after the `attempts`-th failure in a row; `None`: no retry.
    #[must_use]
    pub fn delay(self, attempts: u32) -> Option<Duration> {
        (attempts <= MAX_RETRIES).then(|| {
            let doublings = attempts.saturating_sub(1).min(16);
            self.base.saturating_mul(1 << doublings).min(self.cap)
        })
    }
}
