//! Reads the manifest of one deployment. Its types are those of the dialect
//! ([`berth_spec::dialect::registry_v3`]).

pub use berth_spec::dialect::registry_v3::{CardRef, DeploymentConfig, DeploymentManifest, ManifestMetadata};

use crate::document::{Document, whole};

/// Fields that may also stand at the top.
pub(crate) const EITHER: [&str; 2] = ["worker_selector", "endpoint"];

/// Reads JSON that follows the schema; `Err` points at a field that is given twice, or that does not fit.
pub(crate) fn read(mut json: serde_json::Value) -> Result<DeploymentManifest, (String, String)> {
    for field in EITHER {
        let Some(value) = json.as_object_mut().and_then(|top| top.remove(field)) else { continue };
        let Some(config) = json.get_mut("deployment_config").and_then(serde_json::Value::as_object_mut) else {
            continue;
        };
        if config.insert(field.to_owned(), value).is_some() {
            return Err((format!("/{field}"), format!("{field} is given here and in deployment_config")));
        }
    }
    whole(&mut json);
    Document::typed(json)
}
