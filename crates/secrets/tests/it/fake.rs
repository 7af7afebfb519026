//! A Vault as far as Berth uses one: seals, AppRole, tokens and leases that end with them, a key-value store, a dynamic
//! engine, policies, an audit log. Its clock is whatever the caller says.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

pub(crate) type Seconds = u64;

/// A request as it arrives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Below `/v1/`.
    pub(crate) path: String,
    pub(crate) token: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) worker: Option<String>,
    pub(crate) body: Value,
}

/// A line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Audit {
    pub(crate) at: Seconds,
    pub(crate) path: String,
    pub(crate) worker: Option<String>,
    pub(crate) status: u16,
}

#[derive(Debug, Clone)]
struct Token {
    until: Seconds,
    most: Seconds,
}

#[derive(Debug, Clone)]
pub(crate) struct Lease {
    token: String,
    pub(crate) until: Seconds,
    most: Seconds,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) ttl: Seconds,
    pub(crate) most: Seconds,
    pub(crate) renewable: bool,
}

#[derive(Debug)]
pub(crate) struct FakeVault {
    pub(crate) sealed: bool,
    pub(crate) namespace: Option<String>,
    pub(crate) role_id: String,
    pub(crate) secret_ids: BTreeSet<String>,
    pub(crate) token_terms: Terms,
    pub(crate) lease_terms: Terms,
    /// True if the role's policy permits revoking leases.
    pub(crate) may_revoke: bool,
    /// Paths below `/v1/` that the role's policy lets it read, by their beginnings.
    pub(crate) policy: BTreeSet<String>,
    /// By path, as `vault kv get` takes it.
    pub(crate) kv: BTreeMap<String, Value>,
    pub(crate) leases: BTreeMap<String, Lease>,
    pub(crate) audit: Vec<Audit>,
    tokens: BTreeMap<String, Token>,
    issued: u64,
}

impl FakeVault {
    pub(crate) fn new() -> Self {
        Self {
            sealed: false,
            namespace: None,
            role_id: "role".to_owned(),
            secret_ids: ["secret-id".to_owned()].into(),
            token_terms: Terms { ttl: 1200, most: 1_000_000_000, renewable: true },
            lease_terms: Terms { ttl: 3600, most: 14_400, renewable: true },
            may_revoke: true,
            policy: ["secret/data/", "aws/creds/"].map(str::to_owned).into(),
            kv: BTreeMap::new(),
            leases: BTreeMap::new(),
            audit: Vec::new(),
            tokens: BTreeMap::new(),
            issued: 0,
        }
    }

    /// Emergency revocation by an operator.
    pub(crate) fn revoke_all_tokens(&mut self) {
        self.tokens.clear();
        self.leases.clear();
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn asked(&self, path: &str) -> usize {
        self.audit.iter().filter(|line| line.path == path).count()
    }

    pub(crate) fn answer(&mut self, request: &Request, now: Seconds) -> (u16, Value) {
        self.tokens.retain(|_, token| token.until > now);
        let alive: BTreeSet<String> = self.tokens.keys().cloned().collect();
        self.leases.retain(|_, lease| lease.until > now && alive.contains(&lease.token));
        let (status, body) = self.decide(request, now);
        self.audit.push(Audit { at: now, path: request.path.clone(), worker: request.worker.clone(), status });
        (status, body)
    }

    fn decide(&mut self, request: &Request, now: Seconds) -> (u16, Value) {
        let refused = |status, words: &str| (status, json!({"errors": [words]}));
        if self.sealed {
            return refused(503, "Vault is sealed");
        }
        let namespace = self.namespace.clone();
        if request.namespace != namespace {
            return refused(403, "permission denied");
        }
        let text = |name: &str| request.body.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        if (request.method.as_str(), request.path.as_str()) == ("POST", "auth/approle/login") {
            if text("role_id") != self.role_id || !self.secret_ids.contains(&text("secret_id")) {
                return refused(400, "invalid role or secret ID");
            }
            self.issued += 1;
            let (name, terms) = (format!("hvs.token-{}", self.issued), self.token_terms);
            self.tokens.insert(name.clone(), Token { until: now + terms.ttl, most: now + terms.most });
            return (200, auth(&name, terms.ttl, terms.renewable));
        }
        let Some(name) = request.token.clone().filter(|name| self.tokens.contains_key(name)) else {
            return refused(403, "permission denied");
        };
        match (request.method.as_str(), request.path.as_str()) {
            ("PUT", "auth/token/renew-self") => {
                if !self.token_terms.renewable {
                    return refused(400, "lease is not renewable");
                }
                let ttl = self.token_terms.ttl;
                let token = self.tokens.get_mut(&name).expect("it was found");
                token.until = (now + ttl).min(token.most);
                let left = token.until - now;
                (200, auth(&name, left, true))
            }
            ("GET", "auth/token/lookup-self") => (200, json!({"data": {}})),
            ("PUT", "auth/token/revoke-self") => {
                self.tokens.remove(&name);
                self.leases.retain(|_, lease| lease.token != name);
                (204, Value::Null)
            }
            ("PUT", "sys/leases/renew") => {
                let id = text("lease_id");
                let Some(lease) = self.leases.get_mut(&id) else { return refused(400, "lease not found") };
                if !self.lease_terms.renewable {
                    return refused(400, "lease is not renewable");
                }
                let increment = request.body.get("increment").and_then(Value::as_u64).unwrap_or(0);
                lease.until = (now + increment.min(self.lease_terms.ttl)).min(lease.most);
                (200, json!({"lease_id": id, "lease_duration": lease.until - now, "renewable": true}))
            }
            ("PUT", "sys/leases/revoke") if !self.may_revoke => refused(403, "permission denied"),
            ("PUT", "sys/leases/revoke") => {
                self.leases.remove(&text("lease_id"));
                (204, Value::Null)
            }
            ("GET", path) if !self.policy.iter().any(|allowed| path.starts_with(allowed)) => {
                refused(403, "1 error occurred: permission denied")
            }
            ("GET", path) if path.starts_with("aws/creds/") => self.lend(&name, path, now),
            ("GET", path) => match path.strip_prefix("secret/data/").and_then(|rest| self.kv.get(rest)) {
                Some(data) => (200, json!({"data": {"data": data, "metadata": {"version": 1}}, "lease_duration": 0})),
                None => (404, json!({"errors": []})),
            },
            _ => refused(405, "unsupported operation"),
        }
    }

    fn lend(&mut self, token: &str, path: &str, now: Seconds) -> (u16, Value) {
        self.issued += 1;
        let (id, terms) = (format!("{path}/{}", self.issued), self.lease_terms);
        let lease = Lease { token: token.to_owned(), until: now + terms.ttl, most: now + terms.most };
        self.leases.insert(id.clone(), lease);
        let data = json!({"access_key": format!("AKIA{}", self.issued), "secret_key": "s-SECRET", "security_token": null, "arn": "x"});
        (200, json!({"lease_id": id, "lease_duration": terms.ttl, "renewable": terms.renewable, "data": data}))
    }
}

fn auth(token: &str, ttl: Seconds, renewable: bool) -> Value {
    json!({"auth": {"client_token": token, "lease_duration": ttl, "renewable": renewable, "policies": ["default", "berth"]}})
}
