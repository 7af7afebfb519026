//! The object that people put into etcd: read without trust, with every mistake named by its path.
//!
//! ```text
//! bytes under /models/deployments/[NAMESPACE/]NAME ──▶ Declared { generation, digest, spec or its mistakes, stored status }
//! ```

mod entry;
mod field;
mod network;
mod source;
mod spec;

use std::{collections::BTreeMap, fmt, sync::Arc};

use berth_control::store::Rev;
use berth_spec::{DeploymentName, Namespace, Origin, id::DEFAULT_NAMESPACE, manifest::ManifestFunction};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use self::field::Mistakes;
pub use self::{
    entry::{AuthLevel, AzureEntry, ProgrammingModel},
    source::CodeUri,
    spec::{AzureApp, Bundler, Entrypoint, FunctionSpec, Language, Limits, NamedLimits, Platform},
};
use crate::status::Status;

/// The longest name: names are folders and parts of URLs.
const LONGEST_NAME: usize = 63;

/// The largest object. etcd takes 1.5 MiB; a spec is a few hundred bytes.
const MAX_OBJECT_BYTES: usize = 256 << 10;

/// Name of a function: a namespace, and a name in it. Its text is the written form of docs/names.md (`words`, `team/words`), and its
/// key in a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionName(DeploymentName);

impl FunctionName {
    /// Reads the written form: `NAME` in the default namespace, `NAMESPACE/NAME` in another. The name has 1 to 63 letters, digits,
    /// dashes, underscores and dots, of which the first is a letter or a digit.
    ///
    /// # Errors
    /// The rule, where the text breaks it.
    pub fn new(text: &str) -> Result<Self, String> {
        let (namespace, name) = parts_of(text);
        let namespace = Namespace::new(namespace).map_err(|why| format!("{namespace:?} is not a namespace: {why}"))?;
        let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
        let begins = name.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric());
        if !begins || name.len() > LONGEST_NAME || !name.bytes().all(plain) {
            return Err(format!(
                "the name {name:?} is invalid: use 1 to {LONGEST_NAME} letters, digits, dashes, underscores and dots, beginning with a letter or a digit"
            ));
        }
        let whole =
            DeploymentName::within(&namespace, name).map_err(|why| format!("the name {name:?} is invalid: {why}"))?;
        // A function has one key.
        if whole.as_str() != text {
            return Err(format!(
                "{text:?} is another way to write {name:?}: leave {DEFAULT_NAMESPACE}/ out of the key"
            ));
        }
        Ok(Self(whole))
    }

    /// The written form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The name in its namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.namespace()
    }

    /// The same as a type of its own.
    #[must_use]
    pub fn to_namespace(&self) -> Namespace {
        self.0.to_namespace()
    }
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<FunctionName> for DeploymentName {
    fn from(FunctionName(name): FunctionName) -> Self {
        name
    }
}

/// The namespace and the name of a key. A key may be any text: neither needs to be valid.
pub(crate) fn parts_of(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or((DEFAULT_NAMESPACE, key))
}

/// The path of a function below the address of a gateway, and below `/v1` of the control API.
pub(crate) fn path_of(key: &str) -> String {
    match parts_of(key) {
        (DEFAULT_NAMESPACE, name) => format!("/functions/{name}"),
        (namespace, name) => format!("/namespaces/{namespace}/functions/{name}"),
    }
}

/// The beginning of the names of files about a function: its key with `/` percent-coded. Names have no `%`; a key may be any text, and
/// one that looks like a coded name has files of its own.
pub(crate) fn file_stem(key: &str) -> String {
    key.replace('%', "%25").replace('/', "%2F")
}

/// The key of a function whose files begin so.
pub(crate) fn key_of_stem(stem: &str) -> String {
    stem.replace("%2F", "/").replace("%25", "%")
}

/// Identity of a desired state: a person's generation, if given, and the content of the spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `metadata.generation`, where it is above 0.
    pub generation: Option<i64>,
    /// `sha256:…` of the spec.
    pub digest: Arc<str>,
    /// A person asks for the end: `metadata.deletionTimestamp`.
    pub deleting: bool,
}

/// Labels, annotations and owner of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectMeta {
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`, without the owner.
    pub annotations: BTreeMap<String, String>,
    /// The source that declared it; [`Origin::API`] also for what somebody wrote into etcd.
    pub origin: Origin,
    /// True if the object names that source.
    pub is_declared: bool,
}

/// The annotation that names the source of an object.
pub(crate) const ORIGIN: &str = "berth.dev/origin";

/// The annotation that asks for the artifact of an earlier deployment of the same spec, as `DIGEST` or, in an object, as
/// `DIGEST GENERATION`: a later generation is built from its code.
pub(crate) const ARTIFACT: &str = "berth.dev/artifact";

impl Default for ObjectMeta {
    fn default() -> Self {
        Self { labels: BTreeMap::new(), annotations: BTreeMap::new(), origin: Origin::API, is_declared: false }
    }
}

impl ObjectMeta {
    fn of(object: &Map<String, Value>) -> Self {
        let texts = |field: &str| -> BTreeMap<String, String> {
            let fields = object.get("metadata").and_then(|metadata| metadata.get(field)?.as_object());
            let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
            fields.into_iter().flatten().filter_map(text).collect()
        };
        let mut annotations = texts("annotations");
        let named = annotations.remove(ORIGIN);
        let is_declared = named.is_some();
        let origin = named.map_or(Origin::API, |text| Origin::read(&text));
        Self { labels: texts("labels"), annotations, origin, is_declared }
    }

    /// The source that declared it, for people; `etcd` where somebody put it there.
    #[must_use]
    pub fn owner(&self) -> String {
        if self.is_declared { self.origin.to_string() } else { "etcd".to_owned() }
    }
}

/// An object as it was found.
#[derive(Debug, Clone)]
pub struct Declared {
    /// Identity of the desired state.
    pub identity: Identity,
    /// The spec, or everything that is wrong with it.
    pub spec: Result<Arc<FunctionSpec>, String>,
    /// Fields that are not known, for a warning.
    pub unknown: Vec<String>,
    /// The spec as JSON text; empty where there is none.
    pub text: Arc<str>,
    /// Labels, annotations, owner.
    pub metadata: ObjectMeta,
    /// The status in the object; empty where there is none, or another program's.
    pub status: Status,
    /// True if the value is a JSON object, which a status can be written into.
    pub writable: bool,
    /// Revision of the store at which it was written.
    pub rev: Rev,
}

impl Declared {
    /// Reads the value of the key `key`, written at `rev`.
    #[must_use]
    pub fn read(key: &str, value: &[u8], rev: Rev) -> Self {
        Self { rev, ..Self::of(key, value) }
    }

    fn of(key: &str, value: &[u8]) -> Self {
        if value.len() > MAX_OBJECT_BYTES {
            return Self::unreadable(
                value,
                format!(
                    "the object has {} bytes, more than {MAX_OBJECT_BYTES}: keep what is large with the code",
                    value.len()
                ),
            );
        }
        let object = match serde_json::from_slice::<Value>(value) {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Self::unreadable(value, "the value is not a JSON object".to_owned()),
            Err(error) => return Self::unreadable(value, format!("the value is not JSON: {error}")),
        };
        let status = object.get("status").and_then(|status| serde_json::from_value(status.clone()).ok());
        let identity = identity(&object);
        let mut mistakes = Mistakes::default();
        let spec = spec::read(key, &object, &mut mistakes);
        let (wrong, unknown) = mistakes.done();
        let spec = match spec {
            Some(spec) if wrong.is_empty() => Ok(Arc::new(spec)),
            _ => Err(wrong.join("; ")),
        };
        let text = object.get("spec").map(Value::to_string).unwrap_or_default().into();
        let metadata = ObjectMeta::of(&object);
        Self {
            identity,
            spec,
            unknown,
            text,
            metadata,
            status: status.unwrap_or_default(),
            writable: true,
            rev: Rev::NONE,
        }
    }

    fn unreadable(value: &[u8], message: String) -> Self {
        let identity = Identity { generation: None, digest: digest(value).into(), deleting: false };
        Self {
            identity,
            spec: Err(message),
            unknown: Vec::new(),
            text: "".into(),
            metadata: ObjectMeta::default(),
            status: Status::default(),
            writable: false,
            rev: Rev::NONE,
        }
    }
}

/// Checks a manifest as its object will be read.
///
/// # Errors
/// Every mistake, by its path.
pub fn check(function: &ManifestFunction) -> Result<(), String> {
    let (name, namespace) = (function.name.name(), function.name.namespace());
    let metadata = json!({"name": name, "namespace": namespace});
    let object = json!({"apiVersion": "berth.dev/v1", "kind": "Function", "metadata": metadata, "spec": function.spec});
    Declared::of(function.name.as_str(), object.to_string().as_bytes()).spec.map(drop)
}

/// Identity of the desired state of an object; `None` where it is none.
#[must_use]
pub fn identity_of(value: &[u8]) -> Option<Identity> {
    match serde_json::from_slice::<Value>(value) {
        Ok(Value::Object(object)) => Some(identity(&object)),
        _ => None,
    }
}

fn identity(object: &Map<String, Value>) -> Identity {
    let metadata = object.get("metadata");
    let generation = metadata.and_then(|metadata| metadata.get("generation")?.as_i64()).filter(|number| *number > 0);
    let deleting = metadata.and_then(|metadata| metadata.get("deletionTimestamp")).is_some_and(|at| !at.is_null());
    // All but the status decides: a wrong name or version is mended by a change outside the spec.
    let mut desired = object.clone();
    desired.remove("status");
    if let Some(metadata) = desired.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("generation");
        metadata.remove("deletionTimestamp");
    }
    let digest = digest(Value::Object(desired).to_string().as_bytes()).into();
    Identity { generation, digest, deleting }
}

/// The SHA-256 of bytes, as text.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex("sha256:", &Sha256::digest(bytes))
}

/// Hexadecimal digits after a word.
pub(crate) fn hex(before: &str, bytes: &[u8]) -> String {
    use fmt::Write as _;
    let mut text = String::with_capacity(before.len() + 2 * bytes.len());
    text.push_str(before);
    for byte in bytes {
        // A string takes all that is written.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests;
