//! Objects rendered by version. A version never changes once it was shipped: golden files hold it.
//!
//! Rules of Kubernetes objects change with every operator (a new probe, another flag of an init container), and a changed pod
//! template restarts pods. So an object keeps the [`Record`] of its last spec change: version, and the image of Berth that is put
//! beside the user's. A newer operator renders old objects as before, byte for byte, until their spec changes.

mod v1;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::ModelDeployment;

/// Rules by version: the first is version 1. What was shipped stays in its place.
#[derive(Debug, Clone, Copy)]
pub struct Rules(&'static [Rule]);

/// The objects of a model, as one version makes them.
pub type Rule = fn(&ModelDeployment, &Record) -> Result<Vec<Value>, Error>;

/// The rules of this operator.
pub const SHIPPED: Rules = Rules::new(&[v1::render]);

/// Annotation of a Deployment: the [`Record`] that it was rendered by, for the case that the status was lost.
pub const RECORD: &str = "berth.dev/render";

/// Annotation of each rendered object: the digest of what was rendered.
pub const DIGEST: &str = "berth.dev/rendered-digest";

/// Label of each rendered object; the operator watches no other.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "berth");

/// The label that selects the pods of a model.
pub const SELECTOR: &str = "berth.dev/model";

/// The rules that an object is rendered by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The version of the rules.
    pub version: u32,
    /// The image of Berth in the pods: of the init containers that fetch parameters.
    pub image: String,
    /// The generation of the spec that was rendered by it first.
    pub generation: i64,
}

/// A model that cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A newer operator rendered it.
    #[error("it was rendered by version {0}, which this operator does not know: start the newer operator again")]
    Unknown(u32),
    /// The API server gave an object without a name, namespace or uid.
    #[error("the object has no {0}")]
    Incomplete(&'static str),
}

impl Rules {
    /// These rules; the last are the newest.
    #[must_use]
    pub const fn new(versions: &'static [Rule]) -> Self {
        Self(versions)
    }

    /// The version for objects whose spec changes now.
    #[must_use]
    pub fn newest(self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// The record of a spec that is rendered for the first time.
    #[must_use]
    pub fn record(self, image: &str, generation: i64) -> Record {
        Record { version: self.newest(), image: image.to_owned(), generation }
    }

    /// True if these rules have the version.
    #[must_use]
    pub fn know(self, version: u32) -> bool {
        (1..=self.newest()).contains(&version)
    }

    /// The objects of a model, in the order in which they are applied.
    ///
    /// # Errors
    /// The record is of a newer operator, or the object does not come from an API server.
    pub fn render(self, model: &ModelDeployment, record: &Record) -> Result<Vec<Value>, Error> {
        let place = usize::try_from(record.version).ok().and_then(|version| version.checked_sub(1));
        let rule = place.and_then(|place| self.0.get(place)).ok_or(Error::Unknown(record.version))?;
        Ok(rule(model, record)?.into_iter().map(with_digest).collect())
    }
}

/// Name and owner of what is rendered.
struct Identity {
    name: String,
    namespace: String,
    uid: String,
}

impl Identity {
    fn of(model: &ModelDeployment) -> Result<Self, Error> {
        let metadata = &model.metadata;
        Ok(Self {
            name: metadata.name.clone().ok_or(Error::Incomplete("name"))?,
            namespace: metadata.namespace.clone().ok_or(Error::Incomplete("namespace"))?,
            uid: metadata.uid.clone().ok_or(Error::Incomplete("uid"))?,
        })
    }
}

/// The object, with the digest of all that is in it among its annotations: a field that is rendered no more changes it.
#[must_use]
pub fn with_digest(mut object: Value) -> Value {
    use sha2::Digest as _;

    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove(DIGEST);
    }
    let digest = sha2::Sha256::digest(canonical(&object).as_bytes());
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    object["metadata"]["annotations"][DIGEST] = Value::String(hex);
    object
}

/// JSON with sorted keys: one text per value, whatever keeps the order of keys in this build.
#[must_use]
pub fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            let one = |(name, value): (&String, &Value)| format!("{}:{}", Value::from(name.as_str()), canonical(value));
            format!("{{{}}}", fields.into_iter().map(one).collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        scalar => scalar.to_string(),
    }
}
