//! The table of tokens: read by every request without a lock, replaced when the store says something else.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use arc_swap::ArcSwap;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use berth_spec::{ClientCertificate, UseLimits};
use http::{HeaderMap, header};
use serde::{Deserialize, Serialize};

use super::{
    Asker, Grant, Issuer, IssuerRules, Principal, Role, Rules, Secret, TokenRecord, Unauthenticated,
    certificate::CertificateTable, jwt::Jwt, sha256, token::id_of,
};

/// Largest `Authorization` header that is looked at, in bytes: OpenID tokens with many groups have a few KiB.
const MOST_BYTES: usize = 16 << 10;

/// Seconds between two notes of a token's use: people look for tokens that nobody uses, by days.
const USE_EVERY: u64 = 60;

/// All tokens and grants at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Revision of the store at which they were read.
    pub revision: u64,
    /// Tokens that are not revoked.
    pub tokens: Vec<TokenRecord>,
}

/// Access of one process: its table of tokens, and if one is needed at all. Shared by the control API and the gateway.
pub struct Access {
    required: bool,
    outside: ArcSwap<Outside>,
    /// Token of this process for calls to its own ports.
    own: Secret,
    table: ArcSwap<Table>,
    /// Held while a table takes the place of another, so that an older one never comes last.
    learning: Mutex<()>,
}

/// Principals that are not in the store.
#[derive(Debug, Default)]
struct Outside {
    certificates: CertificateTable,
    issuers: Vec<Arc<Issuer>>,
}

/// Tokens by id.
#[derive(Default)]
struct Table {
    /// `None`: nothing has been learned yet.
    revision: Option<u64>,
    tokens: HashMap<Box<str>, KnownToken>,
    /// The same as they were told, for nodes that ask.
    records: Arc<[TokenRecord]>,
}

struct KnownToken {
    hash: [u8; 32],
    principal: Arc<Principal>,
    expires: Option<u64>,
    /// Last use, in seconds since the Unix epoch; 0: none is known. Survives a new table.
    used: Arc<AtomicU64>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("required", &self.required).finish_non_exhaustive()
    }
}

impl Default for Access {
    fn default() -> Self {
        Self::open()
    }
}

impl Access {
    /// For ports that ask for no token.
    #[must_use]
    pub fn open() -> Self {
        Self::new(false)
    }

    /// For ports that ask for a token, or a certificate that is granted something.
    #[must_use]
    pub fn required() -> Self {
        Self::new(true)
    }

    fn new(required: bool) -> Self {
        let own = Secret::generate();
        Self { required, outside: ArcSwap::default(), own, table: ArcSwap::default(), learning: Mutex::default() }
    }

    /// Gives roles to holders of certificates and of tokens of issuers, from now on by these rules alone. The keys of issuers
    /// that are known stay.
    pub fn rule(&self, rules: Rules) {
        let _alone = self.learning.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.outside.load();
        let issuer = |rules: IssuerRules| {
            let known = before.issuers.iter().find(|issuer| issuer.url() == rules.url);
            Arc::new(Issuer::new(rules, known.map(AsRef::as_ref)))
        };
        let issuers = rules.issuers.into_iter().map(issuer).collect();
        self.outside.store(Arc::new(Outside { certificates: CertificateTable::new(rules.certificates), issuers }));
    }

    /// Issuers by the rules of now, for whoever fetches their keys.
    #[must_use]
    pub fn issuers(&self) -> Vec<Arc<Issuer>> {
        self.outside.load().issuers.clone()
    }

    /// True if requests need a token.
    #[must_use]
    pub const fn is_required(&self) -> bool {
        self.required
    }

    /// True if requests can be told apart: none needs a token, or the tokens have been learned.
    #[must_use]
    pub fn is_told(&self) -> bool {
        !self.required || self.table.load().revision.is_some()
    }

    /// True if whoever may declare may bring code, such as a model card inside a manifest: nobody is asked who they are.
    #[must_use]
    pub const fn allows_inline_cards(&self) -> bool {
        !self.required
    }

    /// Value of the header `Authorization` for calls of this process to its own ports.
    #[must_use]
    pub fn own_authorization(&self) -> String {
        format!("Bearer {}", self.own.reveal())
    }

    /// Tokens as they were learned last; `None`: none have been.
    #[must_use]
    pub fn snapshot(&self) -> Option<Snapshot> {
        let table = self.table.load();
        table.revision.map(|revision| Snapshot { revision, tokens: table.records.to_vec() })
    }

    /// Replaces the tokens by what the store says now. An older snapshot is ignored.
    pub fn learn(&self, snapshot: &Snapshot) {
        let _alone = self.learning.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.table.load();
        if before.revision.is_some_and(|revision| revision > snapshot.revision) {
            return;
        }
        let mut tokens = HashMap::with_capacity(snapshot.tokens.len());
        for record in &snapshot.tokens {
            let Some(hash) = unhex(&record.hash) else { continue };
            let used = before.tokens.get(&*record.id).map(|known| Arc::clone(&known.used)).unwrap_or_default();
            let known = KnownToken { hash, principal: Arc::new(record.principal()), expires: record.expires, used };
            tokens.insert(record.id.clone().into_boxed_str(), known);
        }
        let records = snapshot.tokens.as_slice().into();
        self.table.store(Arc::new(Table { revision: Some(snapshot.revision), tokens, records }));
    }

    /// Forgets the revision, so that a snapshot of another store, which counts from elsewhere, is taken.
    pub fn forget_revision(&self) {
        let _alone = self.learning.lock().unwrap_or_else(PoisonError::into_inner);
        self.table.rcu(|table| {
            let tokens = table.tokens.iter().map(|(id, known)| (id.clone(), known.clone())).collect();
            Table { revision: table.revision.map(|_| 0), tokens, records: Arc::clone(&table.records) }
        });
    }

    /// Last uses of tokens that this process has seen, by id, in seconds since the Unix epoch.
    #[must_use]
    pub fn uses(&self) -> HashMap<String, u64> {
        let table = self.table.load();
        let used = table.tokens.iter().map(|(id, known)| (id.to_string(), known.used.load(Relaxed)));
        used.filter(|(_, at)| *at > 0).collect()
    }

    /// Finds out who sends a request with these headers, over a connection whose client showed this certificate. A token says
    /// more than a certificate: who sends both has the roles of the token.
    ///
    /// # Errors
    /// [`Unauthenticated`] where a token is needed and none that is valid was sent.
    pub fn asker(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Result<Asker, Unauthenticated> {
        if !self.required {
            return Ok(Asker::OPEN);
        }
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        match (values.next(), values.next()) {
            (None, _) => certificate
                .and_then(|certificate| self.outside.load().certificates.holder(certificate))
                .map(|principal| Asker(Some(principal)))
                .ok_or(Unauthenticated::Missing),
            (Some(value), None) if value.len() <= MOST_BYTES => {
                let text = value.to_str().map_err(|_| Unauthenticated::Malformed)?;
                let (scheme, token) = text.split_once(' ').ok_or(Unauthenticated::Malformed)?;
                if !scheme.eq_ignore_ascii_case("bearer") {
                    return Err(Unauthenticated::Malformed);
                }
                self.holder(token.trim(), now()).map(|principal| Asker(Some(principal)))
            }
            _ => Err(Unauthenticated::Malformed),
        }
    }

    /// True if somebody who was let in before would be let in now: the token is neither revoked nor over. Certificates are asked
    /// for when a connection begins.
    #[must_use]
    pub fn still_knows(&self, asker: &Asker) -> bool {
        let Some(principal) = &asker.0 else { return true };
        if principal.expires.is_some_and(|expires| now() >= expires) {
            return false;
        }
        let Some(id) = principal.name.strip_prefix("token:") else { return true };
        let table = self.table.load();
        table.tokens.get(id).is_some_and(|known| known.expires.is_none_or(|expires| now() < expires))
    }

    /// Sender of a request that nobody has asked: without any role where tokens are needed.
    #[must_use]
    pub fn stranger(&self) -> Asker {
        if !self.required {
            return Asker::OPEN;
        }
        Asker(Some(Arc::new(Principal::of("nobody", Vec::new()))))
    }

    /// Principal of a token at this second, by Berth's own tokens or those of issuers.
    fn holder(&self, token: &str, now: u64) -> Result<Arc<Principal>, Unauthenticated> {
        let hash = sha256(token.as_bytes());
        let Some(id) = id_of(token) else { return self.holder_elsewhere(token, hash, now) };
        let table = self.table.load();
        let Some(known) = table.tokens.get(id) else {
            if id == self.own.id() && verify_slices_are_equal(token.as_bytes(), self.own.reveal().as_bytes()).is_ok() {
                return Ok(Arc::new(own()));
            }
            return Err(if table.revision.is_some() { Unauthenticated::Unknown } else { Unauthenticated::Untold });
        };
        let same = verify_slices_are_equal(&hash, &known.hash).is_ok();
        if !same || known.expires.is_some_and(|expires| now >= expires) {
            return Err(Unauthenticated::Unknown);
        }
        // A store for each request would bounce the line between cores.
        if now.saturating_sub(known.used.load(Relaxed)) >= USE_EVERY {
            known.used.store(now, Relaxed);
        }
        Ok(Arc::clone(&known.principal))
    }
}

impl Access {
    /// Principal of a token that is none of Berth's.
    fn holder_elsewhere(&self, token: &str, digest: [u8; 32], now: u64) -> Result<Arc<Principal>, Unauthenticated> {
        let outside = self.outside.load();
        let issuers = &outside.issuers;
        if let Some(principal) = issuers.iter().find_map(|issuer| issuer.known(&digest, now)) {
            return Ok(principal);
        }
        let jwt = Some(token).filter(|_| !issuers.is_empty()).and_then(Jwt::parse).ok_or(Unauthenticated::Unknown)?;
        let issuer =
            issuers.iter().find(|issuer| jwt.issuer() == Some(issuer.url())).ok_or(Unauthenticated::Unknown)?;
        issuer.holder(&jwt, digest, now)
    }
}

impl Clone for KnownToken {
    fn clone(&self) -> Self {
        Self {
            hash: self.hash,
            principal: Arc::clone(&self.principal),
            expires: self.expires,
            used: Arc::clone(&self.used),
        }
    }
}

/// The principal of this process itself: it asks its own gateway what the control API has allowed already.
fn own() -> Principal {
    let caller = Principal::of("server", vec![Grant::everywhere(Role::Caller)]);
    Principal { limits: Some(UseLimits::default()), ..caller }
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn record(secret: &Secret, role: Role, expires: Option<u64>) -> TokenRecord {
        TokenRecord {
            id: secret.id().to_owned(),
            hash: secret.hash(),
            grant: Grant::everywhere(role),
            description: String::new(),
            created_by: String::new(),
            created: 1,
            expires,
            limits: None,
        }
    }

    fn sent(access: &Access, values: &[&str]) -> Result<Asker, Unauthenticated> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).expect("a value"));
        }
        access.asker(&headers, None)
    }

    #[test]
    fn a_token_is_known_until_it_is_revoked_or_expires() {
        let (access, secret) = (Access::required(), Secret::generate());
        let bearer = format!("Bearer {}", secret.reveal());
        assert_eq!(sent(&access, &[&bearer]).err(), Some(Unauthenticated::Untold));
        assert!(!access.is_told() && Access::open().is_told());
        access.learn(&Snapshot { revision: 2, tokens: vec![record(&secret, Role::Viewer, Some(100))] });
        assert_eq!(sent(&access, &[&bearer]).err(), Some(Unauthenticated::Unknown), "it expired long ago");
        assert!(access.is_told() && access.holder(secret.reveal(), 99).is_ok());
        access.learn(&Snapshot { revision: 3, tokens: vec![record(&secret, Role::Viewer, None)] });
        let asker = sent(&access, &[&bearer]).expect("it is known");
        assert_eq!(asker.name(), format!("token:{}", secret.id()));
        assert!(access.uses().contains_key(secret.id()));
        access.learn(&Snapshot { revision: 1, tokens: Vec::new() });
        assert!(sent(&access, &[&bearer]).is_ok(), "an older snapshot is ignored");
        access.learn(&Snapshot { revision: 4, tokens: Vec::new() });
        assert_eq!(sent(&access, &[&bearer]).err(), Some(Unauthenticated::Unknown));
    }

    #[test]
    fn headers_that_are_no_token() {
        let (access, secret, other) = (Access::required(), Secret::generate(), Secret::generate());
        access.learn(&Snapshot { revision: 1, tokens: vec![record(&secret, Role::Admin, None)] });
        let good = format!("Bearer {}", secret.reveal());
        // The id of one with the secret of another.
        let forged = format!("Bearer berth_{}{}", secret.id(), &other.reveal()[16..]);
        let long = format!("Bearer {}", "x".repeat(MOST_BYTES));
        for (values, refused) in [
            (vec![], Unauthenticated::Missing),
            (vec!["Bearer"], Unauthenticated::Malformed),
            (vec!["Basic YTpi"], Unauthenticated::Malformed),
            (vec![&*good, &*good], Unauthenticated::Malformed),
            (vec![&*long], Unauthenticated::Malformed),
            (vec!["Bearer x"], Unauthenticated::Unknown),
            (vec![&*forged], Unauthenticated::Unknown),
        ] {
            assert_eq!(sent(&access, &values).err(), Some(refused), "{values:?}");
        }
        assert!(sent(&access, &[&good.replace("Bearer", "bearer")]).is_ok());
    }

    #[test]
    fn a_server_that_asks_for_no_token_takes_anybody_and_its_own_calls_pass() {
        assert!(sent(&Access::open(), &["nonsense"]).is_ok_and(|asker| asker.0.is_none()));
        let access = Access::required();
        assert!(sent(&access, &[&access.own_authorization()]).is_ok_and(|asker| asker.name() == "server"));
    }

    #[test]
    fn another_store_counts_from_elsewhere() {
        let access = Access::required();
        access.learn(&Snapshot { revision: 9, tokens: Vec::new() });
        access.forget_revision();
        let secret = Secret::generate();
        access.learn(&Snapshot { revision: 2, tokens: vec![record(&secret, Role::Admin, None)] });
        assert!(access.holder(secret.reveal(), 1).is_ok());
    }
}
