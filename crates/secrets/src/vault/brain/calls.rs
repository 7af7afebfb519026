//! Schedules calls to Vault and applies their answers.

use berth_spec::Time;

use super::{GRACE, MOST_CALLS, Vault, token::TokenRenewal};
use crate::vault::{
    Call, Effect, Outage, Reply, VaultRequest, answer,
    answer::Outcome,
    secret::{Job, Key, LeaseToRevoke},
    timing,
};

/// Purpose of a call in flight.
#[derive(Debug)]
pub(super) enum PendingCall {
    LogIn,
    RenewToken,
    LookUp,
    Read(PendingRead),
    Renew(Key, u64),
    Revoke(LeaseToRevoke),
    RevokeToken,
}

/// A secret that is being read: which, as it was declared then, with which token.
#[derive(Debug)]
pub(super) struct PendingRead {
    key: Key,
    version: u64,
    token: u64,
    namespace: Option<String>,
}

impl Vault {
    /// As many calls as may be made now.
    pub(super) fn next_calls(&mut self, now: Time) -> Vec<Effect> {
        let mut effects = Vec::new();
        while self.may_call(now) {
            let Some(call) = self.next_call(now) else { break };
            effects.push(Effect::Call(call));
        }
        effects
    }

    /// While Vault is away one call at a time looks whether it is back.
    fn may_call(&self, now: Time) -> bool {
        match &self.outage {
            Some(_) if self.stopping => false,
            Some(outage) => now >= outage.until && self.in_flight.is_empty(),
            None => self.in_flight.len() < MOST_CALLS,
        }
    }

    fn next_call(&mut self, now: Time) -> Option<Call> {
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if !self.stopping && due(self.token.due) {
            self.token.due = None;
            return Some(match self.token.next {
                TokenRenewal::LogIn => self.call(PendingCall::LogIn, VaultRequest::LogIn, None, None),
                TokenRenewal::Renew => {
                    self.call(PendingCall::RenewToken, VaultRequest::RenewToken, self.namespace.clone(), None)
                }
            });
        }
        self.token.secret.as_ref()?;
        if let Some(at) = self.retired.iter().position(|retired| retired.at <= now) {
            let retired = self.retired.swap_remove(at);
            let (namespace, worker) = (retired.namespace.clone(), Some(retired.worker.clone()));
            let ask = VaultRequest::Revoke(retired.lease.clone());
            return Some(self.call(PendingCall::Revoke(retired), ask, namespace, worker));
        }
        if self.stopping {
            let last = self.in_flight.is_empty() && self.retired.is_empty();
            return last
                .then(|| self.call(PendingCall::RevokeToken, VaultRequest::RevokeToken, self.namespace.clone(), None));
        }
        if std::mem::take(&mut self.look_up) {
            return Some(self.call(PendingCall::LookUp, VaultRequest::LookUpToken, self.namespace.clone(), None));
        }
        // The one that waits longest.
        let (_, key) = self
            .secrets
            .iter()
            .filter(|(_, secret)| due(secret.due))
            .map(|(key, secret)| (secret.due, key.clone()))
            .min()?;
        let token = self.token.number;
        let secret = self.secrets.get_mut(&key)?;
        secret.due = None;
        let (namespace, worker) = (secret.namespace.clone(), Some(key.0.to_string()));
        let (doing, ask) = match (secret.job, &secret.held) {
            (Job::Renew, Some(held)) => {
                let ask = VaultRequest::Renew { lease: held.lease.id.clone(), increment: held.lease.ttl };
                (PendingCall::Renew(key, secret.version), ask)
            }
            _ => {
                let reading = PendingRead { key, version: secret.version, token, namespace: namespace.clone() };
                (PendingCall::Read(reading), VaultRequest::Read(secret.want.api_path()))
            }
        };
        Some(self.call(doing, ask, namespace, worker))
    }

    fn call(
        &mut self,
        doing: PendingCall,
        ask: VaultRequest,
        namespace: Option<String>,
        worker: Option<String>,
    ) -> Call {
        self.calls += 1;
        let token = if ask == VaultRequest::LogIn { None } else { self.token.secret.clone() };
        let namespace = if ask == VaultRequest::LogIn { self.namespace.clone() } else { namespace };
        self.in_flight.insert(self.calls, doing);
        Call { id: self.calls, ask, token, namespace, worker }
    }

    /// Time at which the next call is due, if one can be made.
    pub(super) fn next_due(&self) -> Option<Time> {
        if self.stopping {
            return None;
        }
        if self.token.secret.is_none() {
            return self.token.due;
        }
        let secrets = self.secrets.values().filter_map(|secret| secret.due);
        let look_up = self.look_up.then_some(Time::ZERO);
        secrets.chain(self.retired.iter().map(|retired| retired.at)).chain(self.token.due).chain(look_up).min()
    }

    pub(super) fn answered(&mut self, call: u64, reply: Result<Reply, String>, now: Time) {
        let Some(doing) = self.in_flight.remove(&call) else { return };
        let outcome = answer::outcome(reply);
        match &outcome {
            Outcome::Unavailable(reason) => self.worse(reason, now),
            _ => self.outage = None,
        }
        match doing {
            PendingCall::LogIn => self.logged_in(outcome, now),
            PendingCall::RenewToken => self.token_renewed(outcome, now),
            PendingCall::LookUp => self.looked_up(&outcome, now),
            PendingCall::Read(reading) => self.read(reading, outcome, now),
            PendingCall::Renew(key, version) => self.renewed(&key, version, outcome, now),
            // Where nobody answers it is tried again while the lease lives.
            PendingCall::Revoke(retired) => match outcome {
                Outcome::Unavailable(_) if retired.until > now => self.retired.push(retired),
                Outcome::Denied if retired.until > now && !self.stopping => self.unrevoked.push(retired.unrevoked(
                    "the policy of our role does not allow it: add sys/leases/revoke with capabilities = [\"update\"]",
                )),
                // It is revoked, or was gone already.
                _ => {}
            },
            PendingCall::RevokeToken => self.token.secret = None,
        }
    }

    fn worse(&mut self, reason: &str, now: Time) {
        let chance = self.chance();
        let failures = match &self.outage {
            // Calls that were in flight together fail together: that counts once.
            Some(outage) if now < outage.until => return,
            Some(outage) => outage.failures.saturating_add(1),
            None => 1,
        };
        self.outage =
            Some(Outage { failures, until: now + timing::retry(failures, chance), reason: reason.to_owned() });
    }

    fn read(&mut self, reading: PendingRead, outcome: Outcome, now: Time) {
        let PendingRead { key, version, token, namespace } = reading;
        let (key, chance) = (&key, self.chance());
        let found = match (&outcome, self.secrets.get(key).filter(|secret| secret.version == version)) {
            (Outcome::Done(body), Some(secret)) => answer::credential(&secret.want, body),
            (Outcome::Done(body), None) => return self.unwanted(key, namespace, body, now),
            (_, None) => return,
            (Outcome::Unavailable(_), Some(_)) => return self.again(key, now),
            (Outcome::Denied, Some(_)) if self.token.is_fresh(now) => return self.forbidden(key, now),
            (Outcome::Denied, Some(_)) => {
                self.look_up = true;
                if let Some(secret) = self.secrets.get_mut(key) {
                    secret.suspect = true;
                }
                return;
            }
            (Outcome::Missing, Some(secret)) => Err(format!("there is nothing at {} in Vault", secret.want.path)),
            (Outcome::Rejected(words), Some(secret)) => {
                Err(format!("Vault refuses to read {}: {words}", secret.want.path))
            }
        };
        let Some(secret) = self.secrets.get_mut(key) else { return };
        match found {
            Err(problem) => secret.failed(problem, chance, now),
            Ok((credential, scope, lease)) => {
                let old = secret.read(credential, scope, lease, chance, now);
                if token != self.token.number && secret.held.is_some() {
                    // It was leased with a token that has been replaced meanwhile.
                    (secret.job, secret.due) = (Job::Read, Some(now));
                }
                self.retire(old, namespace, &key.0, now + GRACE);
            }
        }
    }

    /// Discards a secret that nobody needs any more, and revokes its lease.
    fn unwanted(&mut self, key: &Key, namespace: Option<String>, body: &serde_json::Value, now: Time) {
        let lease = answer::lease(body);
        if !lease.id.is_empty() {
            let until = now + lease.ttl;
            self.retired.push(LeaseToRevoke { lease: lease.id, namespace, worker: key.0.to_string(), at: now, until });
        }
    }

    fn renewed(&mut self, key: &Key, version: u64, outcome: Outcome, now: Time) {
        let chance = self.chance();
        let Some(secret) = self.secrets.get_mut(key).filter(|secret| secret.version == version) else { return };
        match outcome {
            Outcome::Done(body) => secret.prolonged(&answer::lease(&body), chance, now),
            Outcome::Unavailable(_) => secret.due = Some(now),
            // The lease is gone, or not ours to renew: another one.
            Outcome::Denied | Outcome::Missing | Outcome::Rejected(_) => {
                (secret.job, secret.due) = (Job::Read, Some(now))
            }
        }
    }

    fn again(&mut self, key: &Key, now: Time) {
        if let Some(secret) = self.secrets.get_mut(key) {
            secret.due = Some(now);
        }
    }

    pub(super) fn forbidden(&mut self, key: &Key, now: Time) {
        let chance = self.chance();
        if let Some(secret) = self.secrets.get_mut(key) {
            let path = secret.want.api_path();
            secret.failed(
                format!("the policy of our role does not allow to read {path}: add it with capabilities = [\"read\"]"),
                chance,
                now,
            );
        }
    }
}
