//! The manifest of one deployment, as operations write it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::document::{Document, whole};

/// A file below `models/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentManifest {
    /// The deployment's name.
    pub id: String,
    /// Which model.
    pub model_card_ref: CardRef,
    /// Whether it is to be loaded.
    pub enabled: bool,
    /// Where, how often, how important.
    pub deployment_config: DeploymentConfig,
    /// Who answers for it.
    #[serde(default)]
    pub metadata: ManifestMetadata,
}

/// Where a model card is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CardRef {
    /// The URL of its repository.
    pub repository: String,
    /// The file in it.
    pub path: String,
    /// A tag or a commit.
    #[serde(rename = "ref")]
    pub reference: String,
}

/// Where, how often, how important.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentConfig {
    /// A cloud region.
    pub region: String,
    /// On how many workers.
    pub replicas: u32,
    /// 1 to 100.
    pub priority: u8,
    /// Labels that a worker must have.
    #[serde(default)]
    pub worker_selector: BTreeMap<String, String>,
    /// The public address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// Who answers for a deployment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestMetadata {
    /// An address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed_at: Option<String>,
    /// An address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed_by: Option<String>,
}

/// Fields that may stand at the top, too.
pub(crate) const EITHER: [&str; 2] = ["worker_selector", "endpoint"];

impl DeploymentManifest {
    /// From JSON that follows the schema; `Err` points at a field that is given twice, or at what does not fit.
    pub(crate) fn of(mut json: serde_json::Value) -> Result<Self, (String, String)> {
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

    /// Labels that a worker must have, the region among them.
    #[must_use]
    pub fn required_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.deployment_config.worker_selector.clone();
        labels.entry("region".to_owned()).or_insert_with(|| self.deployment_config.region.clone());
        labels
    }

    /// How many replicas are wanted in the end: none where it is not enabled.
    #[must_use]
    pub const fn wanted(&self) -> u32 {
        if self.enabled { self.deployment_config.replicas } else { 0 }
    }
}
