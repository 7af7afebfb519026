//! The use of principals, against their limits.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use berth_spec::{
    UseLimits,
    meter::{Exceeded, Meter},
};
use berth_wire::access::Principal;
use tokio::time::Instant;

use crate::refusal::Refusal;

/// Principals above which those that use nothing are forgotten.
const SWEEP_ABOVE: usize = 1_024;

/// Meters of all principals that have limits.
pub(super) struct Usage {
    /// Limits of those that have none of their own.
    default: UseLimits,
    started: Instant,
    meters: Mutex<HashMap<Arc<str>, Arc<Meter>>>,
}

/// A request that counts until it is dropped.
pub(crate) struct UsageGuard(Arc<Meter>);

impl Drop for UsageGuard {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Usage {
    pub(super) fn new(default: UseLimits) -> Self {
        Self { default, started: Instant::now(), meters: Mutex::default() }
    }

    /// Counts a request whose body is announced with so many bytes. `None`: nothing limits it.
    pub(super) fn enter(&self, principal: &Principal, bytes: u64) -> Result<Option<UsageGuard>, Refusal> {
        let limits = principal.limits.unwrap_or(self.default);
        if !limits.counts() {
            return Ok(None);
        }
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let meter = self.meter(&principal.name, now);
        match meter.enter(&limits, now, bytes) {
            Ok(()) => Ok(Some(UsageGuard(meter))),
            Err(Exceeded { limit, retry_in }) => Err(Refusal::Limited { limit, seconds: retry_in.as_secs() + 1 }),
        }
    }

    fn meter(&self, name: &Arc<str>, now: u64) -> Arc<Meter> {
        let mut meters = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(meter) = meters.get(name) {
            return Arc::clone(meter);
        }
        if meters.len() >= SWEEP_ABOVE {
            meters.retain(|_, meter| Arc::strong_count(meter) > 1 || !meter.is_idle(now));
        }
        Arc::clone(meters.entry(Arc::clone(name)).or_default())
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::UseLimit;

    use super::*;

    #[test]
    fn each_principal_has_its_own_limits() {
        let usage = Usage::new(UseLimits { in_flight: Some(1), ..UseLimits::default() });
        let (one, mut other) = (Principal::of("one", Vec::new()), Principal::of("other", Vec::new()));
        let held = usage.enter(&one, 0).expect("the first");
        let refused = usage.enter(&one, 0).err().expect("the second at once");
        assert!(matches!(refused, Refusal::Limited { limit: UseLimit::InFlight, .. }), "{refused:?}");
        assert!(usage.enter(&other, 0).is_ok());
        drop(held);
        assert!(usage.enter(&one, 0).is_ok());
        other.limits = Some(UseLimits::default());
        assert!(usage.enter(&other, 0).expect("it has no limits").is_none());
        for number in 0..2 * SWEEP_ABOVE {
            usage.enter(&Principal::of(&number.to_string(), Vec::new()), 0).expect("let in");
        }
        assert!(usage.meters.lock().expect("no panic").len() <= SWEEP_ABOVE);
    }
}
