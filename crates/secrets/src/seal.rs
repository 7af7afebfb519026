//! Encrypting files: new ones, changes with and without the private key, new recipients.
//!
//! What did not change keeps its ciphertext, so that a commit shows what did.

mod plain;

use std::collections::BTreeMap;

use aws_lc_rs::error::Unspecified;
use berth_spec::{
    Time, WorkerId,
    credential::{Credential, FieldValue, Kind},
};

pub use self::plain::{Plain, PlainEntry, plain_of};
use crate::{
    data_key::DataKey,
    document::{Document, MAX_KEYS, MAX_SECRETS, SecretEntry, Stored, WrappedKey},
    envelope::{DataId, Sealed},
    keys::PublicKey,
    open::{Keyring, OpenError},
};

/// Reason why a file cannot be encrypted. Names places, never values.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The existing file cannot be decrypted.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// A secret is not usable as it would be.
    #[error("the secret {secret} cannot be used: {reason}")]
    Fields {
        /// Name of the secret that was given.
        secret: String,
        /// Problem with the secret.
        reason: String,
    },
    /// Encrypted fields are bound to the plain ones beside them.
    #[error(
        "the plain fields of {secret} change, to which its encrypted field {field} is bound: give {field} as well, or use \
         `berth secrets edit` with the private key"
    )]
    Bound {
        /// Name of the secret whose plain fields change.
        secret: String,
        /// A field that would have to be encrypted again.
        field: String,
    },
    /// No public key was given: nobody could read the file.
    #[error("no recipient: give a public key with --key")]
    NoRecipient,
    /// The file would have more keys or secrets than one may.
    #[error("{0}")]
    TooMany(String),
    /// Randomness or a key failed us.
    #[error("the cryptographic library refused: is the public key a sound RSA key?")]
    Crypto,
}

impl From<Unspecified> for SealError {
    fn from(_: Unspecified) -> Self {
        Self::Crypto
    }
}

/// Encrypts secrets for the holders of some keys. With a `previous` file its other secrets and fields stay as they are, and
/// nobody needs a private key: what is new gets a data key of its own.
///
/// # Errors
/// Secrets that nobody could use, or that cannot be changed without the private key.
pub fn encrypt(
    worker: &WorkerId,
    plain: &Plain,
    recipients: &[PublicKey],
    previous: Option<&Document>,
    now: Time,
) -> Result<Document, SealError> {
    let mut keys = previous.map(|document| document.keys.clone()).unwrap_or_default();
    let data = next(&keys);
    let key = DataKey::generate()?;
    keys.extend(wrap(&key, data, recipients, now)?);
    let mut secrets = previous.map(|document| document.secrets.clone()).unwrap_or_default();
    for change in &plain.secrets {
        let old = secrets.iter().position(|entry| entry.name == change.name);
        let kept = old.map(|at| &secrets[at]).filter(|entry| entry.kind == change.kind);
        let entry = merged(worker, change, kept, &key, data)?;
        match old {
            Some(at) => secrets[at] = entry,
            None => secrets.push(entry),
        }
    }
    let (head, other_comments) = previous.map(|d| (d.head.clone(), d.other_comments)).unwrap_or_default();
    finish(Document { head, other_comments, worker: worker.clone(), secrets, keys, seal: none(data) }, &key)
}

/// One changed secret without the private key: given fields are encrypted, others kept.
fn merged(
    worker: &WorkerId,
    change: &PlainEntry,
    kept: Option<&SecretEntry>,
    key: &DataKey,
    data: DataId,
) -> Result<SecretEntry, SealError> {
    let mut entry = SecretEntry { name: change.name.clone(), kind: change.kind, fields: Vec::new() };
    let given: BTreeMap<&str, &FieldValue> = change.fields.iter().map(|(name, value)| (name.as_str(), value)).collect();
    for (name, stored) in kept.iter().flat_map(|entry| &entry.fields) {
        if !given.contains_key(name.as_str()) {
            entry.fields.push((name.clone(), stored.clone()));
        }
    }
    let retained: Vec<String> =
        entry.fields.iter().filter(|(_, s)| matches!(s, Stored::Sealed(_))).map(|(n, _)| n.clone()).collect();
    check(change, kept)?;
    for (name, value) in given.iter().filter(|(name, _)| !is_secret(change.kind, name)) {
        entry.fields.push(((*name).to_owned(), plain_stored(value)));
    }
    if let (Some(kept), Some(field)) = (kept, retained.first())
        && kept.bound_to(worker, field) != entry.bound_to(worker, field)
    {
        return Err(SealError::Bound { secret: entry.name, field: field.clone() });
    }
    for (name, value) in given.iter().filter(|(name, _)| is_secret(change.kind, name)) {
        let FieldValue::Text(text) = value else { continue }; // `check` has refused lists
        let sealed = key.seal(data, text.expose().as_bytes(), &entry.bound_to(worker, name))?;
        entry.fields.push(((*name).to_owned(), Stored::Sealed(sealed)));
    }
    in_order(&mut entry);
    let has = |field: &str| entry.fields.iter().any(|(name, _)| name == field);
    if has("token") && has("deploy_key") {
        let reason =
            "it would have a token and a deploy_key: give it another name, or use `berth secrets edit`".to_owned();
        return Err(SealError::Fields { secret: entry.name, reason });
    }
    Ok(entry)
}

/// Checks a secret before encryption: completely if all fields are given, else the given fields only.
fn check(change: &PlainEntry, kept: Option<&SecretEntry>) -> Result<(), SealError> {
    let fields = change.fields.iter().cloned().collect();
    let Err(mut wrong) = Credential::build(change.kind, fields).map(drop) else { return Ok(()) };
    // What is missing may be in the file.
    let has = |field: &str| kept.is_some_and(|entry| entry.fields.iter().any(|(name, _)| name == field));
    let given = |field: &str| change.fields.iter().any(|(name, _)| name == field);
    wrong.retain(|wrong| given(&wrong.field) || (kept.is_none() || !has(&wrong.field)) && !excused(change.kind, kept));
    if wrong.is_empty() {
        return Ok(());
    }
    let reason = wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    Err(SealError::Fields { secret: change.name.clone(), reason })
}

/// Types whose fields are alternatives: a missing field may exist in another form.
fn excused(kind: Kind, kept: Option<&SecretEntry>) -> bool {
    matches!(kind, Kind::Azure | Kind::Git) && kept.is_some()
}

/// Makes the file hold what `plain` says, all of it, with the private key: what did not change keeps its ciphertext.
///
/// # Errors
/// The file cannot be decrypted, or a secret would not be usable.
pub fn reseal(document: &Document, keyring: &Keyring, plain: &Plain) -> Result<Document, SealError> {
    keyring.verify(document)?;
    let data = document.seal.data;
    let key = keyring.data_key(document, data)?;
    let mut secrets = Vec::with_capacity(plain.secrets.len());
    for wanted in &plain.secrets {
        check(wanted, None)?;
        let old = document.secrets.iter().find(|entry| entry.name == wanted.name && entry.kind == wanted.kind);
        let mut entry = SecretEntry { name: wanted.name.clone(), kind: wanted.kind, fields: Vec::new() };
        for (name, value) in wanted.fields.iter().filter(|(name, _)| !is_secret(wanted.kind, name)) {
            entry.fields.push((name.clone(), plain_stored(value)));
        }
        for (name, value) in wanted.fields.iter().filter(|(name, _)| is_secret(wanted.kind, name)) {
            let FieldValue::Text(text) = value else { continue };
            let bound_to = entry.bound_to(&document.worker, name);
            let same = match old.and_then(|old| Some((old, sealed_field(old, name)?))) {
                Some((old, sealed)) if old.bound_to(&document.worker, name) == bound_to => {
                    (keyring.value(document, old, name, sealed)? == *text).then(|| sealed.clone())
                }
                _ => None,
            };
            let sealed = match same {
                Some(sealed) => sealed,
                None => key.seal(data, text.expose().as_bytes(), &bound_to)?,
            };
            entry.fields.push((name.clone(), Stored::Sealed(sealed)));
        }
        in_order(&mut entry);
        secrets.push(entry);
    }
    let changed = Document { secrets, ..document.clone() };
    if changed.sealed_text() == document.sealed_text() { Ok(document.clone()) } else { finish(changed, &key) }
}

/// Wraps the data keys of a file for these recipients and nobody else; with `fresh` under one new data key, so that
/// whoever had the old ones reads nothing that is added from now on.
///
/// # Errors
/// The file cannot be decrypted.
pub fn rewrap(
    document: &Document,
    keyring: &Keyring,
    recipients: &[PublicKey],
    fresh: bool,
    now: Time,
) -> Result<Document, SealError> {
    keyring.verify(document)?;
    if !fresh {
        let mut keys = Vec::new();
        for data in document.used() {
            let key = keyring.data_key(document, data)?;
            let created = document.keys.iter().find(|key| key.data == data).map(|key| key.created.clone());
            for mut wrapped in wrap(&key, data, recipients, now)? {
                let same = document.keys.iter().find(|old| old.data == data && old.id == wrapped.id);
                match same {
                    Some(old) => wrapped = old.clone(),
                    None => wrapped.created = created.clone().unwrap_or(wrapped.created),
                }
                keys.push(wrapped);
            }
        }
        return bounded(Document { keys, ..document.clone() });
    }
    let (key, data) = (DataKey::generate()?, next(&document.keys));
    let mut changed = Document { keys: wrap(&key, data, recipients, now)?, seal: none(data), ..document.clone() };
    for entry in &mut changed.secrets {
        let old = entry.clone();
        for (name, stored) in &mut entry.fields {
            if let Stored::Sealed(sealed) = stored {
                let text = keyring.value(document, &old, name, sealed)?;
                *sealed = key.seal(data, text.expose().as_bytes(), &old.bound_to(&document.worker, name))?;
            }
        }
    }
    finish(changed, &key)
}

/// Drops keys that nothing is encrypted with any more, and seals.
fn finish(mut document: Document, key: &DataKey) -> Result<Document, SealError> {
    let text = document.sealed_text();
    document.seal = key.seal(document.seal.data, &[], &text)?;
    let used = document.used();
    document.keys.retain(|key| used.contains(&key.data));
    bounded(document)
}

fn bounded(document: Document) -> Result<Document, SealError> {
    if document.keys.len() > MAX_KEYS {
        let message = format!(
            "the file would have more than {MAX_KEYS} wrapped keys: run `berth secrets rotate --values` once, which leaves one \
             data key"
        );
        return Err(SealError::TooMany(message));
    }
    if document.secrets.len() > MAX_SECRETS {
        return Err(SealError::TooMany(format!("a worker has at most {MAX_SECRETS} secrets")));
    }
    Ok(document)
}

fn wrap(key: &DataKey, data: DataId, recipients: &[PublicKey], now: Time) -> Result<Vec<WrappedKey>, SealError> {
    if recipients.is_empty() {
        return Err(SealError::NoRecipient);
    }
    let wrapped = recipients.iter().map(|recipient| {
        let wrapped = recipient.wrap(key.bytes())?;
        Ok(WrappedKey { data, id: recipient.id().clone(), created: now.to_string(), wrapped })
    });
    wrapped.collect()
}

/// A seal yet to be made.
const fn none(data: DataId) -> Sealed {
    Sealed { data, bytes: Vec::new() }
}

fn next(keys: &[WrappedKey]) -> DataId {
    DataId(keys.iter().map(|key| key.data.0).max().unwrap_or(0) + 1)
}

fn is_secret(kind: Kind, name: &str) -> bool {
    kind.field(name).is_ok_and(|field| field.secret)
}

fn plain_stored(value: &FieldValue) -> Stored {
    match value {
        FieldValue::Text(text) => Stored::Plain(text.expose().to_owned()),
        FieldValue::List(items) => Stored::List(items.clone()),
    }
}

fn sealed_field<'a>(entry: &'a SecretEntry, field: &str) -> Option<&'a Sealed> {
    entry.fields.iter().find(|(name, _)| name == field).and_then(|(_, stored)| match stored {
        Stored::Sealed(sealed) => Some(sealed),
        _ => None,
    })
}

/// Fields in the order of their type's table, so that files look alike.
fn in_order(entry: &mut SecretEntry) {
    let place = |name: &str| entry.kind.fields().iter().position(|field| field.name == name);
    entry.fields.sort_by_key(|(name, _)| place(name));
}
