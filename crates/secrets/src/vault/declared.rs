//! Secrets in Vault that a worker's configuration declares.
//!
//! ```yaml
//! secrets:
//!   backend: vault
//!   vault_addr: https://vault.acme.com
//!   vault_namespace: model-workers
//!   paths:
//!     s3_credentials: secret/workers/us-east-1a/s3            # one of a type: called like it
//!     registry: {type: registry_credentials, path: secret/…}  # several of a type
//!     s3_temporary: {type: s3_credentials, path: aws/creds/reader, engine: dynamic, region: us-east-1}
//! ```

use std::{collections::BTreeMap, str::FromStr};

use berth_spec::{
    Secret,
    credential::{FieldValue, Fields, Kind},
    manifest::node::{Node, Value},
};
use url::Url;

use super::settings::address;
use crate::{
    document::{MAX_SECRETS, is_name, unknown},
    problem::{Problem, Problems},
};

/// Longest path in characters: more than people nest, and short enough for a message.
const MAX_PATH_CHARS: usize = 512;

/// Secrets engine behind a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// The key-value store with versions.
    Kv2,
    /// Key-value engine, version 1.
    Kv1,
    /// Engine that creates credentials on demand, such as `aws`, `database` or `gcp`.
    Dynamic,
}

impl FromStr for Engine {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "kv" | "kv2" => Ok(Self::Kv2),
            "kv1" => Ok(Self::Kv1),
            "dynamic" => Ok(Self::Dynamic),
            _ => Err(()),
        }
    }
}

/// One secret that a worker needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRequest {
    /// Type of the secret.
    pub kind: Kind,
    /// Path, as `vault kv get` and `vault read` take it.
    pub path: String,
    /// Engine behind the path.
    pub engine: Engine,
    /// Mount point of the engine; `None` means the path up to the first `/`.
    pub mount: Option<String>,
    /// Fields that Vault does not say: the region, what it is for.
    pub fields: Fields,
}

impl SecretRequest {
    /// API path below `/v1/`.
    #[must_use]
    pub fn api_path(&self) -> String {
        if self.engine != Engine::Kv2 {
            return self.path.clone();
        }
        let mount = self.mount.as_deref().unwrap_or_else(|| self.path.split('/').next().unwrap_or_default());
        let rest = self.path.strip_prefix(mount).unwrap_or_default().trim_start_matches('/');
        format!("{mount}/data/{rest}")
    }
}

/// All that a worker needs from Vault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// Address of Vault.
    pub addr: Url,
    /// The Vault namespace of the paths; `None`: the root one.
    pub namespace: Option<String>,
    /// Requests by the names that their secrets get.
    pub wants: BTreeMap<String, SecretRequest>,
}

/// True if a file's `secrets` refer to Vault. A secret may also be called `backend`, but is then a mapping.
pub(crate) fn is_declared(root: &Node) -> bool {
    root.get("secrets")
        .and_then(|secrets| secrets.get("backend"))
        .is_some_and(|backend| !matches!(backend.value, Value::Map(_)))
}

impl Declared {
    /// Reads the `secrets` of a worker's configuration. `file` and `path` are for messages.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(secrets: &Node, file: &str, path: &str) -> Result<Self, Vec<Problem>> {
        let mut problems = Problems::of(file);
        match Self::read(secrets, path, &mut problems) {
            Some(declared) => problems.or(declared),
            None => Err(problems.or(()).err().unwrap_or_default()),
        }
    }

    pub(crate) fn read(node: &Node, path: &str, problems: &mut Problems) -> Option<Self> {
        unknown(node, &["backend", "vault_addr", "vault_namespace", "paths"], path, problems);
        let backend = node.get("backend");
        if backend.and_then(Node::text) != Some("vault") {
            problems.add(
                node.place_of("backend"),
                format!("{path}.backend"),
                "there is no such backend",
                "write backend: vault",
            );
            return None;
        }
        let at = node.place_of("vault_addr");
        let addr = match node.get("vault_addr").and_then(Node::text).map(address) {
            Some(Ok(addr)) => Some(addr),
            Some(Err(reason)) => {
                problems.add(at, format!("{path}.vault_addr"), "it cannot be used", reason);
                None
            }
            None => {
                problems.add(
                    at,
                    format!("{path}.vault_addr"),
                    "it is missing",
                    "write vault_addr: https://HOST[:PORT]",
                );
                None
            }
        };
        let namespace =
            node.get("vault_namespace").map(|found| (found.at, found.text().unwrap_or_default().to_owned()));
        if let Some((at, name)) = &namespace
            && !is_path(name)
        {
            problems.add(
                *at,
                format!("{path}.vault_namespace"),
                "it is no namespace",
                "write for example teams/models",
            );
        }
        let wants = wants(node, path, problems);
        Some(Self { addr: addr?, namespace: namespace.map(|(_, name)| name), wants: wants? })
    }
}

fn wants(node: &Node, path: &str, problems: &mut Problems) -> Option<BTreeMap<String, SecretRequest>> {
    let at = node.place_of("paths");
    let Some(Value::Map(entries)) = node.get("paths").map(|paths| &paths.value) else {
        problems.add(at, format!("{path}.paths"), "it is missing, or no mapping", "write paths: {TYPE: PATH}");
        return None;
    };
    if entries.len() > MAX_SECRETS {
        let message = format!("{} secrets are more than the {MAX_SECRETS} of one worker", entries.len());
        problems.add(at, format!("{path}.paths"), message, "remove those that it does not need");
        return None;
    }
    let mut wants = BTreeMap::new();
    for (key, value) in entries {
        let path = format!("{path}.paths.{}", key.name);
        if !is_name(&key.name) {
            problems.add(key.at, path, "this cannot be the name of a secret", "use letters, digits, '_', '-' and '.'");
            continue;
        }
        let want = match &value.value {
            Value::Text(text) => match key.name.parse::<Kind>() {
                Ok(kind) => {
                    checked(text.clone(), kind, engine_of(text), None, Fields::new()).map_err(|(message, remedy)| {
                        problems.add(value.at, path, message, remedy);
                    })
                }
                Err(_) => {
                    let remedy = format!("write {{type: TYPE, path: PATH}}; only {} may stand alone", Kind::names());
                    problems.add(key.at, path, "this is no type of secret", remedy);
                    continue;
                }
            },
            Value::Map(_) => named(value, &path, problems).ok_or(()),
            _ => {
                problems.add(
                    value.at,
                    path,
                    "this is neither a path nor a mapping",
                    "write PATH, or {type: TYPE, path: PATH}",
                );
                continue;
            }
        };
        if let Ok(want) = want {
            wants.insert(key.name.clone(), want);
        }
    }
    Some(wants)
}

fn named(node: &Node, path: &str, problems: &mut Problems) -> Option<SecretRequest> {
    let Value::Map(entries) = &node.value else { return None };
    let text = |name: &str| node.get(name).and_then(Node::text);
    let kind = match text("type").map(str::parse::<Kind>) {
        Some(Ok(kind)) => kind,
        Some(Err(remedy)) => {
            problems.add(node.place_of("type"), format!("{path}.type"), "there is no such type", remedy);
            return None;
        }
        None => {
            let remedy = format!("write one of {}", Kind::names());
            problems.add(node.at, format!("{path}.type"), "its type is missing", remedy);
            return None;
        }
    };
    let Some(place) = text("path") else {
        problems.add(node.at, format!("{path}.path"), "its path is missing", "write path: secret/…");
        return None;
    };
    let engine = match text("engine").map(Engine::from_str) {
        None => engine_of(place),
        Some(Ok(engine)) => engine,
        Some(Err(())) => {
            problems.add(
                node.place_of("engine"),
                format!("{path}.engine"),
                "there is no such engine",
                "write kv2, kv1 or dynamic",
            );
            return None;
        }
    };
    let mut fields = Fields::new();
    for (key, value) in
        entries.iter().filter(|(key, _)| !["type", "path", "engine", "mount"].contains(&key.name.as_str()))
    {
        let path = format!("{path}.{}", key.name);
        match kind.field(&key.name) {
            Err(wrong) => problems.add(key.at, path, wrong.message, wrong.remedy),
            Ok(field) if field.secret => {
                problems.add(value.at, path, "this is a secret in plain text", "keep it in Vault, and revoke this one");
            }
            Ok(_) => match &value.value {
                Value::Text(text) => {
                    fields.insert(key.name.clone(), FieldValue::Text(Secret::new(text.as_str())));
                }
                Value::List(items) if items.iter().all(|item| item.text().is_some()) => {
                    let items = items.iter().filter_map(Node::text).map(ToOwned::to_owned).collect();
                    fields.insert(key.name.clone(), FieldValue::List(items));
                }
                _ => problems.add(value.at, path, "this is neither text nor a list of texts", "put quotes around it"),
            },
        }
    }
    match checked(place.to_owned(), kind, engine, text("mount").map(ToOwned::to_owned), fields) {
        Ok(want) => Some(want),
        Err((message, remedy)) => {
            problems.add(node.place_of("path"), format!("{path}.path"), message, remedy);
            None
        }
    }
}

/// Default engine of a path: `…/creds/…` and `…/sts/…` belong to engines that create credentials.
fn engine_of(path: &str) -> Engine {
    match path.split('/').nth(1) {
        Some("creds" | "sts" | "static-creds") => Engine::Dynamic,
        _ => Engine::Kv2,
    }
}

fn checked(
    path: String,
    kind: Kind,
    engine: Engine,
    mount: Option<String>,
    fields: Fields,
) -> Result<SecretRequest, (&'static str, &'static str)> {
    if !is_path(&path) || !path.contains('/') {
        return Err((
            "this is no path of Vault",
            "write MOUNT/PATH as `vault kv get` and `vault read` take it, without v1/",
        ));
    }
    if (kind, engine) == (Kind::Azure, Engine::Dynamic) {
        return Err((
            "Vault's Azure engine makes service principals, and azure_blob_credentials is the key of an account",
            "keep account_key, or a connection_string with a SharedAccessSignature, in a key-value store",
        ));
    }
    if path.starts_with("sys/") || path.starts_with("auth/") {
        return Err(("no secrets are kept there", "write the path of a secret"));
    }
    let mount = mount.map(|mount| mount.trim_matches('/').to_owned());
    if mount.as_ref().is_some_and(|mount| !path.starts_with(&format!("{mount}/"))) {
        return Err(("it is not below its mount", "let path begin with mount"));
    }
    if engine == Engine::Kv2 && mount.is_none() && path.split('/').nth(1) == Some("data") {
        return Err(("it has the data/ of the API in it", "leave data/ out, or write the mount as well"));
    }
    Ok(SecretRequest { kind, path, engine, mount, fields })
}

fn is_path(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '@' | '+' | '=');
    let parts = text.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    text.len() <= MAX_PATH_CHARS && parts && text.chars().all(fine)
}
