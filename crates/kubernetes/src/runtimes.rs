//! `ServingRuntime` and `ClusterServingRuntime`: whether the runtime that an object names could take its model.
//!
//! A worker runs what it was given (docs/runtimes.md), not the containers of these objects. What they say of themselves counts as it
//! does for KServe: a runtime that is missing, disabled or of other formats is told in the status of the model.

use berth_spec::ModelFormat;
use serde_json::Value;

use crate::{
    kind::Kind,
    objects::{Content, Key, KindState, Objects},
    plan::{Reason, Refusal},
};

/// The parts of a runtime that count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Runtime {
    disabled: bool,
    formats: Vec<String>,
}

impl Runtime {
    pub(crate) fn read(spec: &Value) -> Self {
        let formats = spec["supportedModelFormats"].as_array().into_iter().flatten();
        Self {
            disabled: spec["disabled"] == Value::Bool(true),
            formats: formats.filter_map(|format| format["name"].as_str().map(str::to_owned)).collect(),
        }
    }
}

/// The runtime that an object names, checked: `None` where the cluster has no runtimes, and nothing can be said.
///
/// # Errors
/// Why it cannot take the model, in KServe's words.
pub(crate) fn check(
    objects: &Objects,
    namespace: &str,
    name: &str,
    format: &ModelFormat,
) -> Result<Option<Kind>, Refusal> {
    let kinds = [Kind::ServingRuntime, Kind::ClusterServingRuntime];
    let found = kinds.into_iter().find_map(|kind| {
        let namespace = if kind == Kind::ServingRuntime { namespace } else { "" };
        let key = Key { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        match &objects.get(&key)?.content {
            Content::Runtime(runtime) => Some((kind, runtime)),
            _ => None,
        }
    });
    let Some((kind, runtime)) = found else {
        // Where a kind cannot be read, the runtime may be there; where there is no runtime at all, nobody uses them.
        let all_seen = kinds.iter().all(|kind| matches!(objects.known(*kind), KindState::Listed | KindState::Absent));
        let used = objects.iter().any(|(key, _)| kinds.contains(&key.kind));
        return if all_seen && used {
            let message = format!("there is no ServingRuntime or ClusterServingRuntime {name}: name another, or none");
            Err(Refusal { reason: Reason::RuntimeNotRecognized, message })
        } else {
            Ok(None)
        };
    };
    if runtime.disabled {
        let message = format!("the {} {name} is disabled: name another, or none", kind.name());
        return Err(Refusal { reason: Reason::RuntimeDisabled, message });
    }
    if !runtime.formats.iter().any(|known| known == format.name()) {
        let message = format!(
            "the {} {name} does not list the format {} in supportedModelFormats: name another, or none",
            kind.name(),
            format.name()
        );
        return Err(Refusal { reason: Reason::NoSupportingRuntime, message });
    }
    Ok(Some(kind))
}
