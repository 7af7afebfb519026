//! Our token: gotten by a login, renewed while that helps, replaced before it ends.

use std::time::Duration;

use berth_spec::{Secret, Time};
use rand::RngExt as _;

use super::{Outcome, Vault, answer, timing};
use crate::vault::secret::Job;

/// Age below which a token counts as valid: a denied request is then a matter of its policy, and needs no new login.
const FRESH_FOR: Duration = Duration::from_secs(30);

/// Next step to keep the token valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenRenewal {
    LogIn,
    Renew,
}

#[derive(Debug)]
pub(super) struct Token {
    pub(super) secret: Option<Secret>,
    /// Counts the logins: what is leased ends with its token.
    pub(super) number: u64,
    since: Time,
    until: Option<Time>,
    increment: Duration,
    pub(super) next: TokenRenewal,
    /// `None` while it is being asked for, and for a token that does not end.
    pub(super) due: Option<Time>,
    failures: u32,
    pub(super) problem: Option<String>,
}

impl Default for Token {
    fn default() -> Self {
        Self {
            secret: None,
            number: 0,
            since: Time::ZERO,
            until: None,
            increment: Duration::ZERO,
            next: TokenRenewal::LogIn,
            due: Some(Time::ZERO),
            failures: 0,
            problem: None,
        }
    }
}

impl Token {
    pub(super) fn is_fresh(&self, now: Time) -> bool {
        now.since(self.since) < FRESH_FOR
    }

    /// Discards an invalid token.
    pub(super) fn lost(&mut self, now: Time) {
        (self.secret, self.until) = (None, None);
        (self.next, self.due) = (TokenRenewal::LogIn, Some(now));
    }

    fn failed(&mut self, problem: String, chance: f64, now: Time) {
        self.failures = self.failures.saturating_add(1);
        self.problem = Some(problem);
        (self.next, self.due) = (TokenRenewal::LogIn, Some(now + timing::retry(self.failures, chance)));
    }
}

impl Vault {
    pub(super) fn logged_in(&mut self, outcome: Outcome, now: Time) {
        let chance = self.chance();
        let problem = match outcome {
            Outcome::Unavailable(_) => return self.token.due = Some(now),
            Outcome::Done(body) => match answer::token(&body) {
                Some((secret, lease)) => return self.new_token(secret, &lease, now),
                None => "Vault's answer to our login has no token in it".to_owned(),
            },
            Outcome::Denied | Outcome::Rejected(_) => {
                let words = if let Outcome::Rejected(words) = outcome { words } else { "denied".to_owned() };
                format!(
                    "Vault refuses our login ({words}): are role id, secret id and namespace right, is the secret id used up?"
                )
            }
            Outcome::Missing => {
                "this Vault has no AppRole login there: is auth/approle enabled, is the namespace right?".to_owned()
            }
        };
        self.token.failed(problem, chance, now);
    }

    fn new_token(&mut self, secret: Secret, lease: &answer::Lease, now: Time) {
        let chance = self.chance();
        let ends = lease.ttl > Duration::ZERO;
        // What was leased with the old token ends with it: read anew in the first half of what is left of it.
        let left = self.token.until.map_or(Duration::ZERO, |until| until.since(now)) / 2;
        let (next, wait) = if lease.renewable {
            (TokenRenewal::Renew, timing::renewal(lease.ttl, chance))
        } else {
            (TokenRenewal::LogIn, timing::replacement(lease.ttl, chance))
        };
        self.token = Token {
            secret: Some(secret),
            number: self.token.number + 1,
            since: now,
            until: ends.then(|| now + lease.ttl),
            increment: lease.ttl,
            next,
            due: ends.then(|| now + wait),
            failures: 0,
            problem: None,
        };
        for secret in self.secrets.values_mut().filter(|secret| secret.held.is_some()) {
            let chance = self.chances.random_range(0.0..=1.0);
            let due = now + left.mul_f64(chance);
            secret.job = Job::Read;
            secret.due = secret.due.map(|old| old.min(due));
        }
    }

    pub(super) fn token_renewed(&mut self, outcome: Outcome, now: Time) {
        let chance = self.chance();
        match outcome {
            Outcome::Unavailable(_) => self.token.due = Some(now),
            Outcome::Done(body) => {
                let lease = answer::token(&body).map(|(_, lease)| lease);
                let Some(lease) = lease.filter(|lease| lease.ttl > Duration::ZERO) else {
                    return self.token.lost(now);
                };
                let until = now + lease.ttl;
                let longer = self.token.until.is_none_or(|old| until > old) && lease.ttl >= self.token.increment / 2;
                self.token.until = Some(until);
                // Near its longest life renewals bring less and less: a new one in time.
                (self.token.next, self.token.due) = if longer && lease.renewable {
                    (TokenRenewal::Renew, Some(now + timing::renewal(lease.ttl, chance)))
                } else {
                    (TokenRenewal::LogIn, Some(now + timing::replacement(lease.ttl, chance)))
                };
            }
            Outcome::Rejected(_) => (self.token.next, self.token.due) = (TokenRenewal::LogIn, Some(now)),
            Outcome::Denied | Outcome::Missing => self.token.lost(now),
        }
    }

    /// Is the token to blame, or the policy?
    pub(super) fn looked_up(&mut self, outcome: &Outcome, now: Time) {
        match outcome {
            Outcome::Unavailable(_) => self.look_up = true,
            Outcome::Denied => {
                self.token.lost(now);
                for secret in self.secrets.values_mut().filter(|secret| secret.suspect) {
                    secret.suspect = false;
                    secret.due = Some(now);
                }
            }
            Outcome::Done(_) | Outcome::Missing | Outcome::Rejected(_) => {
                let suspects: Vec<_> =
                    self.secrets.iter().filter(|(_, secret)| secret.suspect).map(|(key, _)| key.clone()).collect();
                for key in suspects {
                    self.forbidden(&key, now);
                }
            }
        }
    }
}
