//! Issuers of JSON Web Tokens: the keys of each as they were learned last, and the tokens that were verified with them.
//!
//! ```text
//! no keys ──learn──▶ keys ──learn: other keys──▶ keys, nothing verified yet
//!    │                 └── a token of an unknown key ──▶ sought, once in a while; until then 503, after that 401
//!    └── a token ──▶ 503: nobody is let in unverified
//! ```
//! Fetching is done by whoever waits on [`Issuer::sought`]. A request waits for nothing.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;

use super::{
    IssuerRules, Principal, Unauthenticated,
    jwt::Jwt,
    keys::{KeySet, Unverified},
    known::KnownPrincipals,
};

/// Difference between clocks that is tolerated, in seconds: that of machines without a time server, as others have it.
const LEEWAY: u64 = 60;

/// Least seconds between two times that tokens of unknown keys make somebody ask the issuer: a storm of them costs it little.
const SEEK_EVERY: u64 = 10;

/// Seconds in which an issuer that is asked for its keys mostly has answered.
const SEEKING: u64 = 2;

/// Longest name of a principal, in bytes: it stands in logs and headers.
const LONGEST_NAME: usize = 256;

/// One issuer of tokens: its rules, its keys, and the tokens that were verified lately.
#[derive(Debug)]
pub struct Issuer {
    rules: IssuerRules,
    keys: ArcSwapOption<Keys>,
    /// Second in which its keys were sought last because of a token.
    sought: AtomicU64,
    seek: Notify,
}

/// Keys, and the tokens that were verified with them, by their SHA-256.
#[derive(Debug)]
struct Keys {
    set: Arc<KeySet>,
    verified: KnownPrincipals<[u8; 32]>,
}

impl Issuer {
    /// An issuer whose keys are those of `before`, an earlier state of the same one, or not known yet.
    pub(super) fn new(rules: IssuerRules, before: Option<&Self>) -> Self {
        let keys = before.and_then(|before| before.keys.load_full()).map(|keys| Keys::of(Arc::clone(&keys.set)));
        let (sought, seek) = (AtomicU64::new(0), Notify::new());
        Self { rules, keys: ArcSwapOption::new(keys.map(Arc::new)), sought, seek }
    }

    /// Address of the issuer: the claim `iss` of its tokens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.rules.url
    }

    /// Number of its keys that are known.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.load().as_ref().map_or(0, |keys| keys.set.len())
    }

    /// Replaces its keys. True if they are others than before: tokens are verified anew then.
    pub fn learn(&self, set: KeySet) -> bool {
        let known = self.keys.load();
        let changed = known.as_ref().is_none_or(|known| !known.set.is_same(&set));
        if changed {
            self.keys.store(Some(Arc::new(Keys::of(Arc::new(set)))));
        }
        changed
    }

    /// Resolves when a token needs keys that are not known.
    pub async fn sought(&self) {
        self.seek.notified().await;
    }

    /// The holder of a token that was verified before and still holds.
    pub(super) fn known(&self, digest: &[u8; 32], now: u64) -> Option<Arc<Principal>> {
        let principal = self.keys.load().as_ref()?.verified.get(digest)?;
        principal.expires.is_none_or(|expires| now < expires.saturating_add(LEEWAY)).then_some(principal)
    }

    /// Verifies a token that says to be of this issuer.
    pub(super) fn holder(&self, jwt: &Jwt<'_>, digest: [u8; 32], now: u64) -> Result<Arc<Principal>, Unauthenticated> {
        let keys = self.keys.load();
        let Some(keys) = keys.as_ref() else {
            self.seek(now);
            return Err(Unauthenticated::IssuerUntold);
        };
        match keys.set.verify(jwt) {
            Ok(()) => {}
            Err(Unverified::Forged) => return Err(Unauthenticated::Unknown),
            Err(Unverified::NoSuchKey) if self.seek(now) => return Err(Unauthenticated::IssuerUntold),
            Err(Unverified::NoSuchKey) => return Err(Unauthenticated::Unknown),
        }
        // From here on the issuer vouches for every word: its reader may learn what is wrong.
        let expires = jwt.time("exp").ok().flatten().ok_or(Unauthenticated::Timeless)?;
        if now >= expires.saturating_add(LEEWAY) {
            return Err(Unauthenticated::Expired);
        }
        let from = jwt.time("nbf").map_err(|()| Unauthenticated::Timeless)?;
        if from.is_some_and(|from| now.saturating_add(LEEWAY) < from) {
            return Err(Unauthenticated::Early);
        }
        if !jwt.is_for(&self.rules.audiences) {
            return Err(Unauthenticated::Audience);
        }
        let name = self.rules.principal.of(&jwt.claims).and_then(serde_json::Value::as_str);
        let name =
            name.filter(|name| !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(char::is_control));
        let name = format!("{}:{}", self.rules.prefix, name.ok_or(Unauthenticated::Nameless)?);
        let grants = self.rules.grants(&jwt.claims);
        let principal = Arc::new(Principal { expires: Some(expires), ..Principal::of(&name, grants) });
        keys.verified.keep(digest, &principal);
        Ok(principal)
    }

    /// Asks for the keys to be fetched, unless that was asked for lately. True if they may be here soon.
    fn seek(&self, now: u64) -> bool {
        let last = self.sought.load(Relaxed);
        if now.abs_diff(last) < SEEK_EVERY {
            return now.abs_diff(last) < SEEKING;
        }
        if self.sought.compare_exchange(last, now, Relaxed, Relaxed).is_ok() {
            self.seek.notify_one();
        }
        true
    }
}

impl Keys {
    fn of(set: Arc<KeySet>) -> Self {
        Self { set, verified: KnownPrincipals::default() }
    }
}

#[cfg(test)]
mod tests;
