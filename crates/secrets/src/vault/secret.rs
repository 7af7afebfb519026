//! One secret of one worker, and when it is asked for again.
//!
//! ```text
//!            read ┌────────────── renewed ◀───┐
//!   waiting ─────▶ held ── due ─▶ renewing ───┤ it does not get longer, or is gone
//!      ▲           │  │                       ▼
//!      └─ failed ──┘  └── no lease: due ─▶ reading anew ──▶ held (the old lease is retired)
//! ```

use std::time::Duration;

use berth_spec::{
    Generation, Time, WorkerId,
    credential::{Credential, Granted, Scope},
};

use super::{SecretRequest, UnrevokedLease, answer::Lease, timing};
use crate::status::{Backend, SecretStatus};

/// The worker, and the name of its secret.
pub(super) type Key = (WorkerId, String);

/// Next action for a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    Read,
    Renew,
}

/// A lease that we hold.
#[derive(Debug, Clone)]
pub(super) struct ActiveLease {
    pub(super) lease: Lease,
    pub(super) until: Time,
    /// Duration granted at first, which renewals request again.
    increment: Duration,
}

/// A lease that was replaced or is no longer wanted, and the time of its revocation.
#[derive(Debug, Clone)]
pub(super) struct LeaseToRevoke {
    pub(super) lease: String,
    pub(super) namespace: Option<String>,
    pub(super) worker: String,
    pub(super) at: Time,
    pub(super) until: Time,
}

impl LeaseToRevoke {
    /// Reports that the lease could not be revoked.
    pub(super) fn unrevoked(self, problem: &str) -> UnrevokedLease {
        UnrevokedLease { lease: self.lease, worker: self.worker, problem: problem.to_owned() }
    }
}

#[derive(Debug)]
pub(super) struct TrackedSecret {
    pub(super) want: SecretRequest,
    pub(super) namespace: Option<String>,
    /// Counts changes of `want`: answers to older ones are not taken.
    pub(super) version: u64,
    pub(super) value: Option<Granted>,
    pub(super) held: Option<ActiveLease>,
    pub(super) job: Job,
    /// `None` while it is being asked for.
    pub(super) due: Option<Time>,
    /// Denied, and it is not known whether the token or the policy is to blame.
    pub(super) suspect: bool,
    failures: u32,
    renewed: Option<Time>,
    problem: Option<String>,
}

impl TrackedSecret {
    pub(super) fn new(want: SecretRequest, namespace: Option<String>, now: Time) -> Self {
        Self {
            want,
            namespace,
            version: 0,
            value: None,
            held: None,
            job: Job::Read,
            due: Some(now),
            suspect: false,
            failures: 0,
            renewed: None,
            problem: None,
        }
    }

    /// The same secret, declared otherwise: what we have stays until there is something new. The old lease comes back.
    pub(super) fn redeclare(
        &mut self,
        want: SecretRequest,
        namespace: Option<String>,
        now: Time,
    ) -> Option<ActiveLease> {
        let old = std::mem::replace(self, Self::new(want, namespace, now));
        (self.version, self.value) = (old.version + 1, old.value);
        old.held
    }

    /// Stores a new value. Returns the lease that it replaces.
    pub(super) fn read(
        &mut self,
        credential: Credential,
        scope: Scope,
        lease: Option<Lease>,
        chance: f64,
        now: Time,
    ) -> Option<ActiveLease> {
        let until = lease.as_ref().filter(|lease| lease.ttl > Duration::ZERO).map(|lease| now + lease.ttl);
        self.value = Some(Granted { credential, scope, expires: until });
        self.well(now);
        let (job, wait) = match &lease {
            None => (Job::Read, timing::reading(chance)),
            Some(lease) if lease.renewable && !lease.id.is_empty() => (Job::Renew, timing::renewal(lease.ttl, chance)),
            Some(lease) => (Job::Read, timing::replacement(lease.ttl, chance)),
        };
        (self.job, self.due) = (job, Some(now + wait));
        let held = lease.filter(|lease| !lease.id.is_empty()).map(|lease| {
            let increment = lease.ttl;
            ActiveLease { lease, until: until.unwrap_or(now), increment }
        });
        let old = std::mem::replace(&mut self.held, held);
        let kept = self.held.as_ref().map(|held| held.lease.id.as_str());
        old.filter(|old| Some(old.lease.id.as_str()) != kept)
    }

    /// Records a renewal. A lease that was not extended is read again before it expires.
    pub(super) fn prolonged(&mut self, lease: &Lease, chance: f64, now: Time) {
        let Some(held) = &mut self.held else { return };
        let until = now + lease.ttl;
        let longer = lease.renewable && until > held.until && lease.ttl >= held.increment / 2;
        held.until = until;
        if let Some(value) = &mut self.value {
            value.expires = Some(until);
        }
        let (job, wait) = match longer {
            true => (Job::Renew, timing::renewal(lease.ttl, chance)),
            false => (Job::Read, timing::replacement(lease.ttl, chance)),
        };
        self.well(now);
        (self.job, self.due) = (job, Some(now + wait));
    }

    fn well(&mut self, now: Time) {
        self.renewed = Some(now);
        self.failures = 0;
        self.problem = None;
        self.suspect = false;
    }

    /// Records a failed read and schedules the next. The current value stays until it expires.
    pub(super) fn failed(&mut self, problem: String, chance: f64, now: Time) {
        self.failures = self.failures.saturating_add(1);
        self.problem = Some(problem);
        self.suspect = false;
        (self.job, self.due) = (Job::Read, Some(now + timing::retry(self.failures, chance)));
    }

    /// Ends what has run out; whether that was so.
    pub(super) fn expire(&mut self, now: Time) -> bool {
        let ended = self.value.as_ref().and_then(|value| value.expires).is_some_and(|until| until <= now);
        if ended {
            self.value = None;
            self.held = None;
            self.job = Job::Read;
            self.problem.get_or_insert_with(|| "its lease has ended, and Vault gave no new one".to_owned());
            if self.due.is_some() {
                self.due = Some(now);
            }
        }
        ended
    }

    pub(super) fn status(&self, (worker, name): &Key, outage: Option<&str>) -> SecretStatus {
        let held_by = match &self.held {
            Some(held) => held.lease.id.clone(),
            None => self.want.path.clone(),
        };
        SecretStatus {
            worker: worker.clone(),
            name: name.clone(),
            kind: Some(self.want.kind),
            backend: Backend::Vault,
            held_by,
            generation: Generation(0),
            renewed: self.renewed,
            expires: self.value.as_ref().and_then(|value| value.expires),
            problem: self.problem.clone().or_else(|| outage.map(ToOwned::to_owned)),
        }
    }
}
