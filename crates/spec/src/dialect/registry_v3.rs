//! Manifests 3.0 and 3.1 of a Git registry, with the model cards that they pin. `berth-registry` reads and checks the
//! files; here are their types and the way to the hub version and back.

mod convert;
mod extension;
mod table;

use std::{collections::BTreeMap, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use extension::{Extension, RolloutExtension};
pub use table::DIALECT;

use crate::PinnedCard;

/// A file below `models/`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentManifest {
    /// The name of the deployment.
    pub id: String,
    /// The model card that describes the model.
    pub model_card_ref: CardRef,
    /// False: the deployment stays declared, with no replica.
    pub enabled: bool,
    /// Place, number and importance of the replicas.
    pub deployment_config: DeploymentConfig,
    /// The people behind it.
    #[serde(default)]
    pub metadata: ManifestMetadata,
    /// Settings that the format has no field for.
    #[serde(default, skip_serializing_if = "Extension::is_empty")]
    pub berth: Extension,
}

/// The place of a model card.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct CardRef {
    /// The URL of its Git repository.
    pub repository: String,
    /// The card's file, from the repository's root.
    pub path: String,
    /// A tag or a commit.
    #[serde(rename = "ref")]
    pub reference: String,
}

/// Place, number and importance of the replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentConfig {
    /// The region, which workers have as a label; the extension may name several in its place.
    pub region: String,
    /// The number of workers that hold it.
    pub replicas: u32,
    /// 1 to 100.
    pub priority: u8,
    /// Labels that a worker must have.
    #[serde(default)]
    pub worker_selector: BTreeMap<String, String>,
    /// The path at which the gateway answers in the model's own JSON, or a URL with that path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// The people behind a deployment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestMetadata {
    /// An e-mail address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed_at: Option<String>,
    /// An e-mail address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed_by: Option<String>,
}

impl DeploymentManifest {
    /// Labels that a worker must have, the region among them where there is only one.
    #[must_use]
    pub fn required_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.deployment_config.worker_selector.clone();
        if !self.berth.regions.is_empty() {
            return labels;
        }
        labels.entry(REGION.to_owned()).or_insert_with(|| self.deployment_config.region.clone());
        labels
    }

    /// The regions that it runs in: those of the extension, else the one of the config.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        let only = self.berth.regions.is_empty().then_some(self.deployment_config.region.as_str());
        only.into_iter().chain(self.berth.regions.keys().map(String::as_str))
    }

    /// The most replicas: none while it is disabled.
    #[must_use]
    pub const fn wanted(&self) -> u32 {
        if self.enabled { self.deployment_config.replicas } else { 0 }
    }
}

/// A manifest and what the registry knows beside it: all that the hub version is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Declaration {
    /// The manifest as its file has it.
    pub manifest: Arc<DeploymentManifest>,
    /// The card, pinned to the commits that it and its code were read at.
    pub card: Arc<PinnedCard>,
    /// `production` or `staging`.
    pub environment: String,
    /// The manifest's file, from the registry's root.
    pub path: String,
    /// The commit of the registry that last changed the deployment; `None` for a folder.
    pub commit: Option<String>,
}

/// The label of the region, of deployments and workers.
const REGION: &str = "region";

/// The prefix of the annotations that a registry adds.
const PREFIX: &str = "registry.berth.dev/";

/// The annotation with the commit that last changed a deployment.
pub const COMMIT: &str = "registry.berth.dev/commit";

/// The annotation that says `false` while the registry disables a deployment.
pub const ENABLED: &str = "registry.berth.dev/enabled";
