//! The manifest of one deployment, as operations write it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::document::{Document, whole};

/// A file below `models/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentManifest {
    /// Deployment id.
    pub id: String,
    /// Reference to the model card.
    pub model_card_ref: CardRef,
    /// True if the model should be loaded.
    pub enabled: bool,
    /// Placement, replicas and priority.
    pub deployment_config: DeploymentConfig,
    /// Owner and contact.
    #[serde(default)]
    pub metadata: ManifestMetadata,
}

/// Location of a model card.
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

/// Placement, replicas and priority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentConfig {
    /// Cloud region.
    pub region: String,
    /// On how many workers.
    pub replicas: u32,
    /// Priority from 1 to 100.
    pub priority: u8,
    /// Labels that a worker must have.
    #[serde(default)]
    pub worker_selector: BTreeMap<String, String>,
    /// Public address of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// Contact for a deployment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestMetadata {
    /// Email address of the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Time as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed_at: Option<String>,
    /// Email address of the person who deployed it.
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

    /// Number of replicas in the end; 0 where the deployment is disabled.
    #[must_use]
    pub const fn wanted(&self) -> u32 {
        if self.enabled { self.deployment_config.replicas } else { 0 }
    }
}
