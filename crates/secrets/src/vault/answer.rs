//! Interprets Vault's answers.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_spec::{
    Secret,
    credential::{Credential, FieldValue, Kind, Scope},
};
use serde_json::Value;

use super::{Engine, Reply, SecretRequest};

/// The longest message of Vault that is repeated, in characters: the cause fits, in a line or two of a log.
const MOST_SAID: usize = 200;

/// The longest lease that is believed, about ten years: beyond it arithmetic with times ends.
const MAX_LEASE_SECONDS: u64 = 10 * 365 * 86_400;

/// An answer, sorted by what to do about it.
#[derive(Debug)]
pub(super) enum Outcome {
    /// As asked; what it says.
    Done(Value),
    /// Vault is unreachable, sealed or overloaded; the request was not processed.
    Unavailable(String),
    /// The token is not good, or its policy does not allow this.
    Denied,
    /// No secret at the path.
    Missing,
    /// The request makes no sense to Vault.
    Rejected(String),
}

/// Lease of a secret or token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) id: String,
    pub(super) ttl: Duration,
    pub(super) renewable: bool,
}

pub(super) fn outcome(reply: Result<Reply, String>) -> Outcome {
    let reply = match reply {
        Ok(reply) => reply,
        Err(reason) => return Outcome::Unavailable(format!("Vault does not answer: {reason}")),
    };
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
    match reply.status {
        200..=299 => Outcome::Done(body),
        403 => Outcome::Denied,
        404 => Outcome::Missing,
        503 => Outcome::Unavailable(format!("Vault is sealed or not ready ({})", said(&body, reply.status))),
        301..=308 => Outcome::Unavailable(
            "this Vault sends us elsewhere: give the address of the active one, or of what stands before all"
                .to_owned(),
        ),
        429 | 472 | 473 | 500..=599 => Outcome::Unavailable(format!("Vault says {}", said(&body, reply.status))),
        status => Outcome::Rejected(said(&body, status)),
    }
}

/// Vault's own words, which hold no secrets.
fn said(body: &Value, status: u16) -> String {
    let errors = body.get("errors").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let words: Vec<&str> = errors.iter().filter_map(Value::as_str).collect();
    let words: String =
        words.join("; ").chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST_SAID).collect();
    if words.is_empty() { format!("status {status}") } else { format!("{words}, status {status}") }
}

/// The token of a login or its renewal.
pub(super) fn token(body: &Value) -> Option<(Secret, Lease)> {
    let auth = body.get("auth")?;
    let secret = Secret::new(auth.get("client_token")?.as_str()?);
    (!secret.expose().is_empty()).then(|| (secret, lease_in(auth)))
}

/// The time of a renewed lease.
pub(super) fn lease(body: &Value) -> Lease {
    lease_in(body)
}

fn lease_in(value: &Value) -> Lease {
    let seconds = value.get("lease_duration").and_then(Value::as_u64).unwrap_or(0).min(MAX_LEASE_SECONDS);
    Lease {
        id: value.get("lease_id").and_then(Value::as_str).unwrap_or_default().to_owned(),
        ttl: Duration::from_secs(seconds),
        renewable: value.get("renewable").and_then(Value::as_bool).unwrap_or(false),
    }
}

/// The credential in what was read, and its lease if it has one.
pub(super) fn credential(want: &SecretRequest, body: &Value) -> Result<(Credential, Scope, Option<Lease>), String> {
    let data = match want.engine {
        Engine::Kv2 => body.pointer("/data/data"),
        Engine::Kv1 | Engine::Dynamic => body.get("data"),
    };
    let Some(data) = data.and_then(Value::as_object) else {
        return Err(match want.engine {
            Engine::Kv2 => {
                "the answer is not of a key-value store with versions: write engine: kv1, or dynamic".to_owned()
            }
            _ => "the answer holds no data: is engine right?".to_owned(),
        });
    };
    let mut fields = want.fields.clone();
    for (name, value) in data {
        let Some((name, text)) = field(want, name, value)? else { continue };
        fields.insert(name, text);
    }
    let lease = (want.engine == Engine::Dynamic)
        .then(|| lease_in(body))
        .filter(|lease| !lease.id.is_empty() || lease.ttl > Duration::ZERO);
    let (credential, scope) = Credential::build(want.kind, fields)
        .map_err(|wrong| wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    Ok((credential, scope, lease))
}

/// One field by our name; `None` for what an engine adds and we do not need.
fn field(want: &SecretRequest, name: &str, value: &Value) -> Result<Option<(String, FieldValue)>, String> {
    let ours = if want.engine == Engine::Dynamic { renamed(want.kind, name) } else { name };
    let Ok(field) = want.kind.field(ours) else {
        // What a person stored is meant; what an engine says beside it (`arn`, `ttl`) is not.
        return if want.engine == Engine::Dynamic {
            Ok(None)
        } else {
            Err(format!("it has a field {name:?} that {} does not have: rename or remove it", want.kind))
        };
    };
    let text = |text: &str| FieldValue::Text(Secret::new(text));
    let value = match value {
        Value::Null => return Ok(None),
        Value::String(all) if field.list => {
            FieldValue::List(all.split(',').map(|item| item.trim().to_owned()).collect())
        }
        Value::String(encoded) if name == "private_key_data" => text(&decoded(encoded)?),
        Value::String(value) => text(value),
        Value::Array(items) if field.list => {
            let texts: Option<Vec<String>> = items.iter().map(|item| item.as_str().map(ToOwned::to_owned)).collect();
            FieldValue::List(texts.ok_or_else(|| format!("its field {name} is a list of texts"))?)
        }
        Value::Object(_) if ours == "credentials_json" => text(&value.to_string()),
        _ => return Err(format!("its field {name} is not text")),
    };
    Ok(Some((ours.to_owned(), value)))
}

/// Name that an engine uses for one of our fields.
fn renamed(kind: Kind, name: &str) -> &str {
    match (kind, name) {
        (Kind::S3, "access_key") => "access_key_id",
        (Kind::S3, "secret_key") => "secret_access_key",
        (Kind::S3, "security_token") => "session_token",
        (Kind::Gcs, "private_key_data") => "credentials_json",
        _ => name,
    }
}

fn decoded(encoded: &str) -> Result<String, String> {
    let bytes = STANDARD.decode(encoded).map_err(|_| "its private_key_data is not base64".to_owned())?;
    String::from_utf8(bytes).map_err(|_| "its private_key_data is not text".to_owned())
}
