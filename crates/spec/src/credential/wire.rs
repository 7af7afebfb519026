//! A set of credentials as bytes, for the TLS line to its worker. Nothing else may carry or keep them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{Azure, Credential, CredentialSet, FieldValue, Fields, Gcs, GitAuth, Granted, Kind, Registry, S3, Secret};
use crate::{Generation, Time};

/// The most bytes that a set has on the wire: dozens of service accounts fit, and a wrong sender cannot fill a worker's
/// memory.
pub const MAX_WIRE: usize = 4 << 20;

/// The reason why bytes are no set of credentials. Says nothing of what is in them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWire {
    /// More than [`MAX_WIRE`].
    #[error("credentials of {0} bytes are more than the {MAX_WIRE} that one worker may have")]
    TooLarge(usize),
    /// Not the form that [`CredentialSet::to_wire`] writes.
    #[error("credentials cannot be read at byte {0}: the sender is another version of Berth, or not Berth")]
    Form(usize),
    /// A secret is not what it says.
    #[error("the secret {name} cannot be used: {reason}")]
    Secret {
        /// The secret's name.
        name: String,
        /// The error that [`Credential::build`] gives, without values.
        reason: String,
    },
}

#[derive(Serialize, Deserialize)]
struct SetOnWire<'a> {
    generation: u64,
    #[serde(borrow)]
    secrets: BTreeMap<String, SecretOnWire<'a>>,
}

#[derive(Serialize, Deserialize)]
struct SecretOnWire<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    fields: BTreeMap<String, Value>,
}

/// Dropped like a [`Secret`]: what is decoded moves into one, what is encoded is wiped here.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(Zeroed),
    List(Vec<String>),
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Zeroed(#[serde(with = "zeroed")] Zeroizing<String>);

mod zeroed {
    use serde::{Deserialize, Deserializer, Serializer};
    use zeroize::Zeroizing;

    pub(super) fn serialize<S: Serializer>(text: &Zeroizing<String>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Zeroizing<String>, D::Error> {
        String::deserialize(from).map(Zeroizing::new)
    }
}

impl CredentialSet {
    /// JSON with every value in the clear, for a TLS line to the one worker that they are for. Not for files, logs or the
    /// store. The buffer is wiped when it is dropped.
    #[must_use]
    pub fn to_wire(&self) -> Zeroizing<Vec<u8>> {
        let secrets: BTreeMap<String, SecretOnWire<'_>> = self
            .secrets
            .iter()
            .map(|(name, granted)| {
                let kind = granted.credential.kind().as_str();
                let fields = fields_of(granted).into_iter().map(|(name, value)| (name, Value::from(value)));
                (name.clone(), SecretOnWire { kind, expires: granted.expires.map(|at| at.0), fields: fields.collect() })
            })
            .collect();
        let set = SetOnWire { generation: self.generation.0, secrets };
        // Counted first: a buffer that grows leaves copies behind.
        let mut size = Counted(0);
        let counted = serde_json::to_writer(&mut size, &set);
        let mut bytes = Zeroizing::new(Vec::with_capacity(size.0));
        let written = serde_json::to_writer(&mut *bytes, &set);
        debug_assert!(counted.is_ok() && written.is_ok(), "texts and numbers have a JSON form");
        bytes
    }

    /// Reads what [`Self::to_wire`] wrote.
    ///
    /// # Errors
    /// Too large, of another form, or a secret with wrong fields; never a value.
    pub fn from_wire(bytes: &[u8]) -> Result<Self, InvalidWire> {
        if bytes.len() > MAX_WIRE {
            return Err(InvalidWire::TooLarge(bytes.len()));
        }
        // The reader's own words may quote a value: only the place is told.
        let set: SetOnWire<'_> = serde_json::from_slice(bytes).map_err(|error| InvalidWire::Form(error.column()))?;
        let mut secrets = BTreeMap::new();
        for (name, found) in set.secrets {
            let wrong = |reason: String| InvalidWire::Secret { name: name.clone(), reason };
            let kind: Kind = found.kind.parse().map_err(|_| wrong("it is of an unknown type".to_owned()))?;
            let fields: Fields = found.fields.into_iter().map(|(name, value)| (name, value.into())).collect();
            let (credential, scope) = Credential::build(kind, fields)
                .map_err(|all| wrong(all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))?;
            let granted = Granted { credential, scope, expires: found.expires.map(Time) };
            secrets.insert(name.clone(), granted);
        }
        Ok(Self { generation: Generation(set.generation), secrets })
    }
}

/// Counts the bytes that are written to it: the buffer gets its size before any secret is in it.
struct Counted(usize);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl From<FieldValue> for Value {
    fn from(value: FieldValue) -> Self {
        match value {
            FieldValue::Text(text) => Self::Text(Zeroed(Zeroizing::new(text.expose().to_owned()))),
            FieldValue::List(items) => Self::List(items),
        }
    }
}

impl From<Value> for FieldValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Text(text) => Self::Text(text.0.into()),
            Value::List(items) => Self::List(items),
        }
    }
}

/// Fields from which [`Credential::build`] makes the same.
fn fields_of(granted: &Granted) -> Fields {
    let mut fields = Fields::new();
    let mut text = |name: &str, value: Option<&Secret>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), FieldValue::Text(value.clone()));
        }
    };
    let plain = |value: &str| Some(Secret::new(value));
    let mut scopes = &Vec::new();
    match &granted.credential {
        Credential::S3(S3 { access_key_id, secret_access_key, region, session_token, endpoint }) => {
            text("access_key_id", Some(access_key_id));
            text("secret_access_key", Some(secret_access_key));
            text("session_token", session_token.as_ref());
            text("region", plain(region).as_ref());
            text("endpoint", endpoint.as_deref().and_then(plain).as_ref());
        }
        Credential::Gcs(Gcs { credentials_json }) => text("credentials_json", Some(credentials_json)),
        Credential::Azure(Azure { account_name, account_key, connection_string }) => {
            text("account_name", account_name.as_deref().and_then(plain).as_ref());
            text("account_key", account_key.as_ref());
            text("connection_string", connection_string.as_ref());
        }
        Credential::Git(git) => {
            scopes = &git.scopes;
            match &git.auth {
                GitAuth::Token { username, token } => {
                    text("username", username.as_deref().and_then(plain).as_ref());
                    text("token", Some(token));
                }
                GitAuth::DeployKey { deploy_key, known_hosts } => {
                    text("deploy_key", Some(deploy_key));
                    text("known_hosts", known_hosts.as_deref().and_then(plain).as_ref());
                }
            }
        }
        Credential::Registry(Registry { username, password, registry_url }) => {
            text("username", plain(username).as_ref());
            text("password", Some(password));
            text("registry_url", plain(registry_url).as_ref());
        }
    }
    let lists = [("scopes", scopes.clone()), ("hosts", granted.scope.hosts()), ("urls", granted.scope.urls())];
    for (name, items) in lists.into_iter().filter(|(_, items)| !items.is_empty()) {
        fields.insert(name.to_owned(), FieldValue::List(items));
    }
    fields
}
