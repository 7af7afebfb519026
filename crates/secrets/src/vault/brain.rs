//! The brain: what to ask of Vault next. Reads no clock, does no I/O; its chances are seeded.

mod calls;
mod token;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_spec::{Generation, Time, WorkerId};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use url::Url;

use self::{calls::PendingCall, token::Token};
use super::{
    Call, Declared, Outage, Reply, VaultSecrets, answer,
    answer::Outcome,
    secret::{ActiveLease, Key, LeaseToRevoke, TrackedSecret},
    timing,
};
use crate::status::{Backend, SecretStatus};

/// Calls in flight. Eight serve a thousand workers quickly without overloading a busy Vault.
const MOST_CALLS: usize = 8;

/// Lifetime of a replaced lease. Lets workers finish downloads until the new set has arrived.
const GRACE: Duration = Duration::from_secs(60);

/// Input of the Vault brain.
#[derive(Debug, Clone)]
pub enum Event {
    /// Secrets that all workers need, as a whole.
    Wanted(BTreeMap<WorkerId, Declared>),
    /// A call was answered, or could not be made.
    Answered {
        /// Copy of [`Call::id`].
        call: u64,
        /// The answer, or why there is none.
        reply: Result<Reply, String>,
    },
    /// Time has passed: [`Vault::wake_at`].
    Tick,
    /// Revoke everything, then end.
    Stop,
}

/// Action for the driver.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Ask this; the answer comes back as [`Event::Answered`].
    Call(Call),
    /// Publishes the new set of secrets.
    VaultSecrets(VaultSecrets),
    /// A lease was to be revoked and was not: it lives to its end.
    UnrevokedLease(UnrevokedLease),
    /// After [`Event::Stop`]: everything is revoked, or Vault does not answer.
    Stopped,
}

/// Lease that is no longer wanted but could not be revoked, so it lives until it expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnrevokedLease {
    /// Id of the lease, for revoking it by hand.
    pub lease: String,
    /// Name of the worker that it was for.
    pub worker: String,
    /// Reason why it was not revoked.
    pub problem: String,
}

/// One Vault, one token, all workers.
#[derive(Debug)]
pub struct Vault {
    addr: Url,
    namespace: Option<String>,
    chances: StdRng,
    token: Token,
    secrets: BTreeMap<Key, TrackedSecret>,
    /// Declared for another Vault.
    elsewhere: Vec<SecretStatus>,
    retired: Vec<LeaseToRevoke>,
    in_flight: BTreeMap<u64, PendingCall>,
    calls: u64,
    look_up: bool,
    outage: Option<Outage>,
    /// Leases that could not be revoked, to be reported.
    unrevoked: Vec<UnrevokedLease>,
    stopping: bool,
    stopped: bool,
    told: VaultSecrets,
}

impl Vault {
    /// For the Vault at `addr`, logging in within `namespace`; `seed` spreads its waits.
    #[must_use]
    pub fn new(addr: Url, namespace: Option<String>, seed: u64) -> Self {
        Self {
            addr,
            namespace,
            chances: StdRng::seed_from_u64(seed),
            token: Token::default(),
            secrets: BTreeMap::new(),
            elsewhere: Vec::new(),
            retired: Vec::new(),
            in_flight: BTreeMap::new(),
            calls: 0,
            look_up: false,
            outage: None,
            unrevoked: Vec::new(),
            stopping: false,
            stopped: false,
            told: VaultSecrets::default(),
        }
    }

    /// Takes an event; says what to do.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Effect> {
        match event {
            Event::Wanted(all) if !self.stopping => self.wanted(all, now),
            Event::Answered { call, reply } => self.answered(call, reply, now),
            Event::Stop => self.stop(now),
            Event::Wanted(_) | Event::Tick => {}
        }
        for secret in self.secrets.values_mut() {
            secret.expire(now);
        }
        let mut effects = self.next_calls(now);
        if !self.stopping {
            let found = self.found();
            if found != self.told {
                self.told = found.clone();
                effects.push(Effect::VaultSecrets(found));
            }
        } else if self.is_done() && !self.stopped {
            self.stopped = true;
            let reason = self.outage.as_ref().map_or("our token has ended", |outage| outage.reason.as_str()).to_owned();
            self.unrevoked
                .extend(std::mem::take(&mut self.retired).into_iter().map(|retired| retired.unrevoked(&reason)));
            effects.push(Effect::Stopped);
        }
        let told = self.unrevoked.drain(..).map(Effect::UnrevokedLease);
        // In front: nothing comes after the end.
        told.chain(effects).collect()
    }

    /// Time of the next [`Event::Tick`] if nothing else happens.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let ends = self.secrets.values().filter_map(|secret| secret.value.as_ref()?.expires);
        let room = if self.outage.is_some() { self.in_flight.is_empty() } else { self.in_flight.len() < MOST_CALLS };
        let calls = room.then(|| self.next_due()).flatten();
        let calls = calls.map(|due| due.max(self.outage.as_ref().map(|outage| outage.until).unwrap_or_default()));
        ends.chain(calls).min()
    }

    fn chance(&mut self) -> f64 {
        self.chances.random_range(0.0..=1.0)
    }

    fn wanted(&mut self, all: BTreeMap<WorkerId, Declared>, now: Time) {
        let mut seen: BTreeSet<Key> = BTreeSet::new();
        self.elsewhere.clear();
        for (worker, declared) in all {
            if declared.addr != self.addr {
                self.refuse(&worker, &declared);
                continue;
            }
            for (name, want) in declared.wants {
                let key = (worker.clone(), name);
                seen.insert(key.clone());
                let namespace = declared.namespace.clone().or_else(|| self.namespace.clone());
                match self.secrets.get_mut(&key) {
                    None => drop(self.secrets.insert(key, TrackedSecret::new(want, namespace, now))),
                    Some(secret) if secret.want == want && secret.namespace == namespace => {}
                    Some(secret) => {
                        let old_namespace = secret.namespace.clone();
                        let old = secret.redeclare(want, namespace, now);
                        self.retire(old, old_namespace, &key.0, now + GRACE);
                    }
                }
            }
        }
        let gone: Vec<Key> = self.secrets.keys().filter(|key| !seen.contains(*key)).cloned().collect();
        for key in gone {
            if let Some(secret) = self.secrets.remove(&key) {
                self.retire(secret.held, secret.namespace, &key.0, now);
            }
        }
    }

    /// Refuses another Vault than the configured one: a repository must not choose where the role is sent.
    fn refuse(&mut self, worker: &WorkerId, declared: &Declared) {
        let problem = format!(
            "it is declared at {}, and this controller has a role at {} alone: write this as vault_addr, or give the controller a \
             role there",
            declared.addr, self.addr
        );
        self.elsewhere.extend(declared.wants.iter().map(|(name, want)| SecretStatus {
            worker: worker.clone(),
            name: name.clone(),
            kind: Some(want.kind),
            backend: Backend::Vault,
            held_by: want.path.clone(),
            generation: Generation(0),
            renewed: None,
            expires: None,
            problem: Some(problem.clone()),
        }));
    }

    fn retire(&mut self, held: Option<ActiveLease>, namespace: Option<String>, worker: &WorkerId, at: Time) {
        if let Some(ActiveLease { lease, until, .. }) = held {
            self.retired.push(LeaseToRevoke { lease: lease.id, namespace, worker: worker.to_string(), at, until });
        }
    }

    fn stop(&mut self, now: Time) {
        self.stopping = true;
        for ((worker, _), secret) in std::mem::take(&mut self.secrets) {
            self.retire(secret.held, secret.namespace, &worker, now);
        }
        self.retired.iter_mut().for_each(|retired| retired.at = now);
    }

    /// True if nothing is left to revoke or report.
    fn is_done(&self) -> bool {
        let nothing = self.retired.is_empty() && self.token.secret.is_none();
        self.in_flight.is_empty() && (nothing || self.token.secret.is_none() || self.outage.is_some())
    }

    fn found(&self) -> VaultSecrets {
        let mut found =
            VaultSecrets { status: self.elsewhere.clone(), outage: self.outage.clone(), ..VaultSecrets::default() };
        let outage = self.outage.as_ref().map(|outage| outage.reason.as_str()).or(self.token.problem.as_deref());
        for (key, secret) in &self.secrets {
            if let Some(value) = &secret.value {
                found.secrets.entry(key.0.clone()).or_default().insert(key.1.clone(), value.clone());
            }
            found.status.push(secret.status(key, outage));
        }
        found
    }
}
