//! Accounts: what principals use, over all models (an account) and of each model (a key).
//!
//! ```text
//! absent ──first request──▶ open ──holds nothing, at a sweep──▶ absent
//! ```
//! Requests find them without a lock. Where nobody is asked who he is, all callers are one principal, and its key lies in the
//! deployment itself.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use berth_spec::UseLimits;
use berth_wire::access::Asker;
use tokio::time::Instant;

use crate::{account::Account, body::memory::RequestMemory, fair::Holding, swept_map::SweptMap};

/// Holdings of the requests of one principal for one model.
#[derive(Debug, Default)]
pub(crate) struct Key {
    pub(crate) inside: Holding,
    pub(crate) parked: Holding,
    /// Memory of its bodies and tensors, where it has had any.
    memory: OnceLock<Arc<RequestMemory>>,
    pub(crate) account: Arc<Account>,
}

impl Key {
    fn of(account: Arc<Account>) -> Arc<Self> {
        Arc::new(Self { account, ..Self::default() })
    }

    fn is_idle(&self) -> bool {
        self.inside.held() == 0 && self.parked.held() == 0 && self.memory.get().is_none_or(|memory| memory.held() == 0)
    }

    /// The budget for bodies and tensors of its requests: a part of `all`, made by the first of them.
    pub(crate) fn memory(&self, all: &RequestMemory) -> &Arc<RequestMemory> {
        self.memory.get_or_init(|| all.of(&self.account))
    }
}

/// The keys of one model, one for each of its callers.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// The key that all callers share without authentication.
    anybody: OnceLock<Arc<Key>>,
    principals: OnceLock<Box<SweptMap<Arc<str>, Key>>>,
}

impl Keys {
    /// The key of whoever sends a request.
    pub(crate) fn of(&self, asker: Option<&Asker>, accounts: &Accounts) -> Arc<Key> {
        let Some(principal) = asker.and_then(|asker| asker.0.as_deref()) else {
            return Arc::clone(self.anybody.get_or_init(|| Key::of(Arc::clone(&accounts.anybody))));
        };
        let make = || Key::of(accounts.of(&principal.name));
        self.principals.get_or_init(Box::default).of(&principal.name, make, |_, key| key.is_idle())
    }
}

/// All principals that were here lately.
#[derive(Debug)]
pub(crate) struct Accounts {
    /// Limits of principals that have none of their own.
    default: UseLimits,
    anybody: Arc<Account>,
    principals: SweptMap<Arc<str>, Account>,
    /// The start of its clock.
    started: Instant,
}

impl Accounts {
    pub(crate) fn new(default: UseLimits) -> Self {
        Self { default, anybody: Arc::default(), principals: SweptMap::default(), started: Instant::now() }
    }

    /// Limits of a principal with these of its own; `None`: nothing is counted.
    pub(crate) fn limits(&self, own: Option<UseLimits>) -> Option<UseLimits> {
        Some(own.unwrap_or(self.default)).filter(UseLimits::counts)
    }

    /// A point in time as meters count it, in nanoseconds.
    pub(crate) fn nanos(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.started))
    }

    /// The account of the principal of this name, made if it is not there. Idle ones are forgotten.
    pub(crate) fn of(&self, name: &Arc<str>) -> Arc<Account> {
        let now = self.nanos(Instant::now());
        // One that a key or a request has is not idle, whatever it holds.
        let is_idle =
            |_: &Arc<str>, account: &Arc<Account>| Arc::strong_count(account) == 1 && account.meter.is_idle(now);
        self.principals.of(name, Arc::default, is_idle)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use berth_wire::access::Principal;

    use super::*;
    use crate::swept_map::SWEEP_THRESHOLD;

    fn asker(name: &str) -> Asker {
        Asker(Some(Arc::new(Principal::of(name, Vec::new()))))
    }

    #[test]
    fn keys_and_accounts_go_when_nobody_uses_them() {
        let (accounts, keys) = (Accounts::new(UseLimits::default()), Keys::default());
        let (busy, pool) =
            (keys.of(Some(&asker("busy")), &accounts), crate::fair::Pool::new(9, 0, crate::fair::Shape::new(true)));
        pool.take(1, &busy.inside, &busy.account.inside).expect("room");
        for number in 0..10 * SWEEP_THRESHOLD {
            keys.of(Some(&asker(&number.to_string())), &accounts);
        }
        assert!(keys.principals.get().expect("used").len() <= 2 * SWEEP_THRESHOLD);
        assert!(accounts.principals.len() <= 4 * SWEEP_THRESHOLD);
        assert!(Arc::ptr_eq(&busy, &keys.of(Some(&asker("busy")), &accounts)));
        assert!(Arc::ptr_eq(&busy.account, &accounts.of(&"busy".into())));
    }

    #[test]
    fn a_principal_has_one_account_and_a_key_for_each_model() {
        let accounts = Accounts::new(UseLimits::default());
        let (iris, rose) = (Keys::default(), Keys::default());
        let (one, other) = (iris.of(Some(&asker("ada")), &accounts), rose.of(Some(&asker("ada")), &accounts));
        assert!(!Arc::ptr_eq(&one, &other) && Arc::ptr_eq(&one.account, &other.account));
        assert!(Arc::ptr_eq(&iris.of(None, &accounts), &iris.of(Some(&Asker::OPEN), &accounts)));
    }

    #[test]
    fn own_limits_take_the_place_of_those_for_everybody() {
        let accounts = Accounts::new(UseLimits { in_flight: Some(3), ..UseLimits::default() });
        assert_eq!(accounts.limits(None).and_then(|limits| limits.in_flight), Some(3));
        assert_eq!(accounts.limits(Some(UseLimits::default())), None);
        assert_eq!(Accounts::new(UseLimits::default()).limits(None), None);
    }
}
