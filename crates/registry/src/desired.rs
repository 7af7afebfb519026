//! Desired state of a commit that has passed validation.

use std::{collections::BTreeMap, sync::Arc};

use berth_git::{Oid, Signer};
use berth_spec::{
    ModelCard,
    manifest::{ManifestAlias, ManifestFunction},
};

use crate::{DeploymentManifest, Environment, Settings, WorkerConfig};

/// Everything that one commit of a registry wants.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// The commit; `None` for a folder.
    pub commit: Option<Oid>,
    /// Author as `Name <address>`; empty for a folder.
    pub author: String,
    /// Signer, by a trusted key; `None` where the registry requires no signatures.
    pub signer: Option<Signer>,
    /// Commit time in seconds since 1970; 0 for a folder.
    pub time: i64,
    /// The first line of its message.
    pub subject: String,
    /// In order of their ids.
    pub deployments: Vec<DesiredDeployment>,
    /// In order of their names. Their targets are deployments of the commit.
    pub aliases: Vec<ManifestAlias>,
    /// In order of their names.
    pub functions: Vec<ManifestFunction>,
    /// In order of their ids.
    pub workers: Vec<WorkerConfig>,
    /// The files of `workers/secrets`, as they are: encrypted.
    pub secret_files: Vec<SecretFile>,
    /// Settings from `registry.yaml`.
    pub settings: Settings,
}

/// One deployment, with the card that it pins.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredDeployment {
    /// The `id` of the manifest, which is the deployment's name.
    pub id: String,
    /// The manifest's file, from the registry's root.
    pub path: String,
    /// Environment, by the folder of its manifest.
    pub environment: Environment,
    /// The manifest as its file has it.
    pub manifest: Arc<DeploymentManifest>,
    /// Model card that the manifest pins.
    pub card: Arc<ModelCard>,
    /// The commit that the card's ref leads to.
    pub card_commit: Oid,
    /// The commit of the code that the card names.
    pub code_commit: Oid,
}

/// The secrets of one worker, encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretFile {
    /// Worker that the secrets belong to.
    pub worker: String,
    /// The file, from the registry's root.
    pub path: String,
    /// Text of the file; values in it are encrypted.
    pub text: Arc<str>,
}

/// Difference of a deployment from the earlier desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// New deployment.
    Added {
        /// Id of the new deployment.
        id: String,
    },
    /// Deployment that the commit no longer has.
    Removed {
        /// Id of the removed deployment.
        id: String,
    },
    /// New version of the model.
    Version {
        /// Id of the deployment.
        id: String,
        /// The version before, and the commit of its card.
        before: (String, Oid),
        /// The version now, and the commit of its card.
        after: (String, Oid),
    },
    /// New number of replicas; 0 where disabled.
    Scale {
        /// Id of the deployment.
        id: String,
        /// Replicas before; 0 where it was disabled.
        before: u32,
        /// Replicas now.
        after: u32,
    },
    /// Deployment that the commit disables: its manifest stays.
    Disabled {
        /// Id of the disabled deployment.
        id: String,
    },
    /// Deployment that was enabled again.
    Enabled {
        /// Id of the enabled deployment.
        id: String,
    },
    /// Something else of its manifest differs: priority, labels, endpoint, owner, or its place in the registry.
    Settings {
        /// Id of the deployment.
        id: String,
    },
}

impl Change {
    /// Id of the deployment, which every change has.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Added { id }
            | Self::Removed { id }
            | Self::Version { id, .. }
            | Self::Scale { id, .. }
            | Self::Disabled { id }
            | Self::Enabled { id }
            | Self::Settings { id } => id,
        }
    }
}

impl Desired {
    /// The deployment of this id; `None`: the commit has none.
    #[must_use]
    pub fn deployment(&self, id: &str) -> Option<&DesiredDeployment> {
        self.deployments.binary_search_by(|one| one.id.as_str().cmp(id)).ok().map(|at| &self.deployments[at])
    }

    /// Lists the differences from `before` in order of deployment ids. One deployment may appear several times.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<Change> {
        let old: BTreeMap<&str, &DesiredDeployment> =
            before.deployments.iter().map(|one| (one.id.as_str(), one)).collect();
        let mut changes: Vec<Change> = Vec::new();
        for now in &self.deployments {
            match old.get(now.id.as_str()) {
                None => changes.push(Change::Added { id: now.id.clone() }),
                Some(old) => changes.extend(now.changes_since(old)),
            }
        }
        let gone = before.deployments.iter().filter(|old| self.deployment(&old.id).is_none());
        changes.extend(gone.map(|old| Change::Removed { id: old.id.clone() }));
        changes.sort_by(|a, b| a.id().cmp(b.id()));
        changes
    }
}

impl DesiredDeployment {
    fn changes_since(&self, old: &Self) -> Vec<Change> {
        let id = || self.id.clone();
        let mut changes = Vec::new();
        if (&self.card_commit, &self.code_commit, &self.card) != (&old.card_commit, &old.code_commit, &old.card) {
            let version = |one: &Self| (one.card.metadata.version.clone(), one.card_commit.clone());
            changes.push(Change::Version { id: id(), before: version(old), after: version(self) });
        }
        match (old.manifest.enabled, self.manifest.enabled) {
            (true, false) => changes.push(Change::Disabled { id: id() }),
            (false, true) => changes.push(Change::Enabled { id: id() }),
            _ => {}
        }
        let (before, after) = (old.manifest.deployment_config.replicas, self.manifest.deployment_config.replicas);
        if before != after {
            changes.push(Change::Scale { id: id(), before, after });
        }
        // What has its own name above does not count again.
        let rest = |one: &Self| {
            let mut manifest = (*one.manifest).clone();
            manifest.enabled = true;
            manifest.deployment_config.replicas = 0;
            manifest.model_card_ref.reference.clear();
            (manifest, one.environment)
        };
        if rest(self) != rest(old) {
            changes.push(Change::Settings { id: id() });
        }
        changes
    }
}
