//! The object that people put into etcd: read without trust, with every mistake named by its path.
//!
//! ```text
//! bytes under /models/deployments/NAME ──▶ Declared { generation, digest, spec or its mistakes, stored status }
//! ```

mod field;
mod source;
mod spec;

use std::{collections::BTreeMap, fmt, sync::Arc};

use berth_control::store::Rev;
use berth_spec::{Origin, manifest::ManifestFunction};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use self::field::Mistakes;
pub use self::{
    source::CodeUri,
    spec::{AzureApp, Bundler, Entrypoint, FunctionSpec, Language, Limits, NamedLimits, Platform},
};
use crate::status::Status;

/// The longest name: names are folders and parts of URLs.
const LONGEST_NAME: usize = 63;

/// The largest object. etcd takes 1.5 MiB; a spec is a few hundred bytes.
const LARGEST: usize = 256 << 10;

/// Name of a function: the last part of its key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionName(Arc<str>);

impl FunctionName {
    /// Reads a name: 1 to 63 letters, digits, dashes, underscores and dots, of which the first is a letter or a digit.
    ///
    /// # Errors
    /// The rule, where the text breaks it.
    pub fn new(text: &str) -> Result<Self, String> {
        let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
        let begins = text.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric());
        if begins && text.len() <= LONGEST_NAME && text.bytes().all(plain) {
            return Ok(Self(text.into()));
        }
        Err(format!(
            "the name {text:?} is invalid: use 1 to {LONGEST_NAME} letters, digits, dashes, underscores and dots, beginning with a letter or a digit"
        ))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
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
pub struct About {
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

impl Default for About {
    fn default() -> Self {
        Self { labels: BTreeMap::new(), annotations: BTreeMap::new(), origin: Origin::API, is_declared: false }
    }
}

impl About {
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
    pub about: About,
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
        if value.len() > LARGEST {
            return Self::unreadable(value, format!("the object has {} bytes, more than {LARGEST}", value.len()));
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
        let about = About::of(&object);
        Self {
            identity,
            spec,
            unknown,
            text,
            about,
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
            about: About::default(),
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
    let name = function.name.as_str();
    let object = json!({
        "apiVersion": "berth.dev/v1", "kind": "Function", "metadata": {"name": name}, "spec": function.spec,
    });
    Declared::of(name, object.to_string().as_bytes()).spec.map(drop)
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
