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
use http::{HeaderMap, header};
use serde::{Deserialize, Serialize};

use super::{Asker, CertificateGrant, Grant, Principal, Role, Secret, TokenRecord, certificate, sha256, token::id_of};

/// Largest `Authorization` header that is looked at, in bytes.
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

/// Reason for refusing a request whose sender is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unauthenticated {
    /// Neither token nor certificate.
    #[error("a token is needed: send it as \"Authorization: Bearer TOKEN\"; `berth token create` makes one")]
    Missing,
    /// The header is not a bearer token, is given twice, or is too long.
    #[error("the header Authorization is malformed: send one, \"Bearer TOKEN\"")]
    Malformed,
    /// One text for all of them, so that nobody learns which tokens there were.
    #[error("the token is unknown, has expired or was revoked; `berth token create` makes a new one")]
    Unknown,
    /// This node does not know yet which tokens there are.
    #[error("this node has not been told yet which tokens there are; try again in a second")]
    Untold,
}

/// Access of one process: its table of tokens, and if one is needed at all. Shared by the control API and the gateway.
pub struct Access {
    required: bool,
    inline_cards: bool,
    certificates: Vec<CertificateGrant>,
    /// Token of this process for calls to its own ports.
    own: Secret,
    table: ArcSwap<Table>,
    /// Held while a table takes the place of another, so that an older one never comes last.
    learning: Mutex<()>,
}

/// Tokens by id.
#[derive(Default)]
struct Table {
    /// `None`: nothing has been learned yet.
    revision: Option<u64>,
    tokens: HashMap<Box<str>, Known>,
    /// The same as they were told, for nodes that ask.
    records: Arc<[TokenRecord]>,
}

struct Known {
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
        Self {
            required,
            inline_cards: !required,
            certificates: Vec::new(),
            own,
            table: ArcSwap::default(),
            learning: Mutex::default(),
        }
    }

    /// Lets deployers declare model cards inside manifests.
    #[must_use]
    pub fn with_inline_cards(self, allowed: bool) -> Self {
        Self { inline_cards: self.inline_cards || allowed, ..self }
    }

    /// Grants roles to the holders of client certificates.
    #[must_use]
    pub fn with_certificates(self, certificates: Vec<CertificateGrant>) -> Self {
        Self { certificates, ..self }
    }

    /// True if requests need a token.
    #[must_use]
    pub const fn is_required(&self) -> bool {
        self.required
    }

    /// True if deployers may declare model cards inside manifests.
    #[must_use]
    pub const fn allows_inline_cards(&self) -> bool {
        self.inline_cards
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
            let known = Known { hash, principal: Arc::new(record.principal()), expires: record.expires, used };
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

    /// Finds out who sends a request with these headers, over a connection whose verified client certificate has
    /// `names`.
    ///
    /// # Errors
    /// [`Unauthenticated`] where a token is needed and none that is valid was sent.
    pub fn asker<'a>(
        &self,
        headers: &HeaderMap,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<Asker, Unauthenticated> {
        if !self.required {
            return Ok(Asker::OPEN);
        }
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        match (values.next(), values.next()) {
            (None, _) => certificate::principal(&self.certificates, names)
                .map(|principal| Asker(Some(Arc::new(principal))))
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

    /// Principal of a token at this second.
    fn holder(&self, token: &str, now: u64) -> Result<Arc<Principal>, Unauthenticated> {
        let id = id_of(token).ok_or(Unauthenticated::Unknown)?;
        let hash = sha256(token.as_bytes());
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

impl Clone for Known {
    fn clone(&self) -> Self {
        Self {
            hash: self.hash,
            principal: Arc::clone(&self.principal),
            expires: self.expires,
            used: Arc::clone(&self.used),
        }
    }
}

/// This process itself: it asks its own gateway what the control API has allowed already.
fn own() -> Principal {
    Principal { name: "server".into(), grants: vec![Grant::everywhere(Role::Caller)] }
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
        }
    }

    fn sent(access: &Access, values: &[&str]) -> Result<Asker, Unauthenticated> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).expect("a value"));
        }
        access.asker(&headers, std::iter::empty())
    }

    #[test]
    fn a_token_is_known_until_it_is_revoked_or_expires() {
        let (access, secret) = (Access::required(), Secret::generate());
        let bearer = format!("Bearer {}", secret.reveal());
        assert_eq!(sent(&access, &[&bearer]).err(), Some(Unauthenticated::Untold));
        access.learn(&Snapshot { revision: 2, tokens: vec![record(&secret, Role::Viewer, Some(100))] });
        assert_eq!(sent(&access, &[&bearer]).err(), Some(Unauthenticated::Unknown), "it expired long ago");
        assert!(access.holder(secret.reveal(), 99).is_ok());
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
