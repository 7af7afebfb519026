//! Refresh times. All are spread at random, so that a thousand workers that start together do not call together.

use std::time::Duration;

/// Refresh interval of secrets without a lease. A rotated secret is noticed within five minutes.
pub(super) const STATIC: Duration = Duration::from_secs(300);

/// Shortest wait, so that very short leases do not flood Vault.
const MIN_WAIT: Duration = Duration::from_secs(1);

/// First wait after a failure; doubles with each. A Vault that restarts is back within seconds.
const FIRST_RETRY_WAIT: Duration = Duration::from_secs(1);

/// Longest wait after a failure. Workers get their credentials within a minute after Vault is unsealed.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(60);

/// A renewable lease: between a sixth and a third of its TTL, so that two renewals may fail.
pub(super) fn renewal(ttl: Duration, chance: f64) -> Duration {
    ttl.div_f64(3.0).mul_f64(0.5 + chance / 2.0).max(MIN_WAIT)
}

/// Wait before a lease that cannot be renewed is read again: 0.85 to 0.95 of its TTL.
pub(super) fn replacement(ttl: Duration, chance: f64) -> Duration {
    ttl.mul_f64(0.85 + chance / 10.0).max(MIN_WAIT)
}

/// Wait before a secret without a lease is read again: 0.9 to 1.1 times [`STATIC`].
pub(super) fn reading(chance: f64) -> Duration {
    STATIC.mul_f64(0.9 + chance / 5.0)
}

/// After so many failures in a row, from 1: doubling, of which a random half is waited at least.
pub(super) fn retry(failures: u32, chance: f64) -> Duration {
    let doubled = FIRST_RETRY_WAIT.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MAX_RETRY_WAIT);
    doubled.mul_f64(0.5 + chance / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_lie_where_they_should() {
        let hour = Duration::from_secs(3600);
        for (chance, renewed, replaced, read) in [(0.0, 600, 3060, 270), (0.5, 900, 3240, 300), (1.0, 1200, 3420, 330)]
        {
            assert_eq!(renewal(hour, chance).as_secs_f64().round() as u64, renewed);
            assert_eq!(replacement(hour, chance).as_secs_f64().round() as u64, replaced);
            assert_eq!(reading(chance).as_secs_f64().round() as u64, read);
        }
        assert_eq!(renewal(Duration::ZERO, 0.0), MIN_WAIT);
        let waits: Vec<u64> = (1..9).map(|failures| retry(failures, 1.0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(retry(u32::MAX, 0.0), MAX_RETRY_WAIT / 2);
    }
}
