//! Who was refused, told once in a while: whoever cannot be let in tries again each second.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How often the same of one address is told at most. Halved: more lines while somebody tries. Doubled: who starts to look later waits
/// longer for one.
const EVERY: Duration = Duration::from_secs(60);

/// Addresses that are remembered, each with a reason. Beyond that all are told of anew: halved or doubled, a flood from many addresses fills more
/// or less of the log.
const REMEMBERED: usize = 256;

/// When which address was told of, and why it was refused.
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
