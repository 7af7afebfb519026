//! Log of refused callers, limited in rate, because a refused node tries again each second.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Shortest interval between two log lines about the same address and reason.
const EVERY: Duration = Duration::from_secs(60);

/// Addresses remembered, each with a reason. Beyond that, repetitions are logged again.
const REMEMBERED: usize = 256;

/// Time of the last log line for each address and reason.
#[derive(Default)]
pub(super) struct Refusals(Mutex<BTreeMap<(IpAddr, String), Instant>>);

impl Refusals {
    /// Says in the log that a connection was refused, unless the same was said of its address a moment ago.
    pub(super) fn tell(&self, from: SocketAddr, reason: &str) {
        if self.is_news((from.ip(), reason.to_owned()), Instant::now()) {
            tracing::warn!(event = "peer_refused", %from, reason, "refused a connection to the peer port");
        } else {
            tracing::debug!(event = "peer_refused_again", %from, reason);
        }
    }

    fn is_news(&self, what: (IpAddr, String), now: Instant) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.get(&what).is_some_and(|told| now < *told + EVERY) {
            return false;
        }
        if told.len() >= REMEMBERED {
            told.clear();
        }
        told.insert(what, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_is_told_of_once_a_minute() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let of = |number: u32, reason: &str| (IpAddr::from(number.to_be_bytes()), reason.to_owned());
        let at = |number| of(number, "no certificate");
        assert!(refusals.is_news(at(1), now) && !refusals.is_news(at(1), now) && refusals.is_news(at(2), now));
        assert!(refusals.is_news(of(1, "another CA"), now), "that is something else");
        assert!(refusals.is_news(at(1), now + EVERY));
        for number in 0..10_000 {
            refusals.is_news(at(number), now);
        }
        assert!(refusals.0.lock().expect("nobody panicked").len() <= REMEMBERED);
    }
}
