//! Objects rendered by version. A version never changes once it was shipped: golden files hold it.
//!
//! Rules of Kubernetes objects change with every operator (a new probe, another flag of an init container), and a changed pod
//! template restarts pods. So an object keeps the [`Record`] of its last spec change: version, and the image of Berth that is put
//! beside the user's. A newer operator renders old objects as before, byte for byte, until their spec changes.

mod picker;
mod v1;
mod v2;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::picker::{LISTEN as PICKER_PORT, METRICS as PICKER_METRICS_PORT, PickerWorkload};
pub(crate) use self::v2::executor::{ADMIN as EXECUTOR_ADMIN, FIRST_PORT as EXECUTOR_FIRST};
use crate::api::{ModelDeployment, model_deployment::Port};

/// Rules by version: the first is version 1. What was shipped stays in its place.
#[derive(Debug, Clone, Copy)]
pub struct Rules(&'static [Rule]);

/// The objects of a model, as one version makes them.
pub type Rule = fn(&ModelDeployment, &Record) -> Result<Vec<Value>, Error>;

/// The rules of this operator, oldest first; the place in the list, from 1, is the version.
pub const SHIPPED: Rules = Rules::new(&[v1::render, v2::render]);

/// Annotation of a Deployment: the [`Record`] that it was rendered by, for the case that the status was lost.
pub const RECORD: &str = "berth.dev/render";

/// Annotation of a Deployment, from version 2 on: the digest of its pod template.
pub const TEMPLATE: &str = "berth.dev/template-digest";

/// Annotation of each rendered object: the digest of what was rendered.
pub const DIGEST: &str = "berth.dev/rendered-digest";

/// Behind the name of a model, in the names of what its endpoint picker consists of.
pub const PICKER: &str = "-picker";

/// Label of an endpoint picker's objects: the name of the pool.
pub const PICKER_OF: &str = "berth.dev/picker";

/// The role of endpoint pickers, which the operator binds in the namespaces of pools.
pub const PICKER_ROLE: &str = "berth-picker";

/// Kinds of rendered objects whose custom resources a cluster may lack.
pub const OPTIONAL: [&str; 2] = ["InferencePool", "HTTPRoute"];

/// Between the name of a model and the digest, in the name of the ConfigMap of its executor.
pub const EXECUTOR: &str = "-executor-";

/// The name of the port with an executor's metrics.
pub const EXECUTOR_PORT: &str = "berth-executor";

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
    /// The image of the executors, where it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor_image: Option<String>,
    /// Executors are init containers that stay (Kubernetes 1.29).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub native_sidecars: bool,
    /// There is `policy/v1` (Kubernetes 1.21).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disruption_budgets: bool,
}

/// Settings of an operator, and the abilities of its cluster: the part of a [`Record`] that no object decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Installation {
    /// The image of Berth in pods that are rendered from now on.
    pub image: String,
    /// The image of executors; `None`: that of Berth.
    pub executor_image: Option<String>,
    /// The cluster has native sidecars, and they are wanted.
    pub native_sidecars: bool,
    /// The cluster has `policy/v1`.
    pub disruption_budgets: bool,
    /// The cluster has `autoscaling/v2`, and not `v2beta2` alone. No part of a record: the objects are the same.
    pub stable_autoscalers: bool,
}

/// The form of executors that somebody asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sidecars {
    /// Native where the cluster has them.
    #[default]
    Auto,
    /// Init containers that stay.
    Native,
    /// Ordinary containers.
    Container,
}

impl Installation {
    /// An installation into a cluster of a version, 1.`minor`.
    #[must_use]
    pub fn new(image: String, executor_image: Option<String>, sidecars: Sidecars, minor: u32) -> Self {
        let native_sidecars = match sidecars {
            Sidecars::Auto => minor >= 29,
            Sidecars::Native => true,
            Sidecars::Container => false,
        };
        let executor_image = executor_image.filter(|executor| !executor.is_empty() && *executor != image);
        let (disruption_budgets, stable_autoscalers) = (minor >= 21, minor >= 23);
        Self { image, executor_image, native_sidecars, disruption_budgets, stable_autoscalers }
    }

    /// A rendered object, as this cluster has it.
    #[must_use]
    pub fn adapt(&self, mut object: Value) -> Value {
        if object["kind"] == "HorizontalPodAutoscaler" && !self.stable_autoscalers {
            object["apiVersion"] = Value::from("autoscaling/v2beta2");
        }
        object
    }
}

impl From<&str> for Installation {
    /// Of an image, into a cluster without any ability.
    fn from(image: &str) -> Self {
        Self { image: image.to_owned(), ..Self::default() }
    }
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
    pub fn record(self, installation: &Installation, generation: i64) -> Record {
        let Installation { image, executor_image, native_sidecars, disruption_budgets, .. } = installation.clone();
        Record { version: self.newest(), image, generation, executor_image, native_sidecars, disruption_budgets }
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

/// The reason why the executor of a model cannot be configured as its spec says.
///
/// # Errors
/// The field and the remedy.
pub fn check_executor(model: &ModelDeployment) -> Result<(), String> {
    v2::executor::check(model)
}

/// Files that a model's executor needs and that are in no Secret: its image must have them.
#[must_use]
pub fn files_of_image(model: &ModelDeployment) -> Vec<String> {
    v2::executor::files_of_image(model)
}

/// The endpoint picker of a model's pool, whose uid is `pool`: it goes with it.
///
/// # Errors
/// The object does not come from an API server.
pub fn endpoint_picker(model: &ModelDeployment, record: &Record, pool: &str) -> Result<Vec<Value>, Error> {
    Ok(v2::pool::picker(model, record, pool)?.into_iter().map(with_digest).collect())
}

/// The form of the executor in rendered objects, for people; `None` by rules without one.
#[must_use]
pub fn executor_form(model: &ModelDeployment, record: &Record) -> Option<&'static str> {
    match (record.version, v2::executor::Executor::of(model), record.native_sidecars) {
        (..2, ..) => None,
        (_, None, _) => Some("Off"),
        (_, _, true) => Some("NativeSidecar"),
        (_, _, false) => Some("Container"),
    }
}

/// The ports of a model that take asynchronous requests, each with the section `async` of its settings; none by rules without an executor.
pub(crate) fn asynchronous<'a>(model: &'a ModelDeployment, record: &Record) -> Vec<(&'a Port, Value)> {
    match v2::executor::Executor::of(model) {
        Some(executor) if record.version >= 2 => executor.asynchronous(),
        _ => Vec::new(),
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
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove(DIGEST);
    }
    object["metadata"]["annotations"][DIGEST] = Value::String(digest(&object, 16));
    object
}

/// The first bytes of a value's SHA-256, as hexadecimal digits.
fn digest(value: &Value, bytes: usize) -> String {
    use sha2::Digest as _;

    let digest = sha2::Sha256::digest(canonical(value).as_bytes());
    digest.iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
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
