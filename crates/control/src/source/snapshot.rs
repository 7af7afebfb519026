//! The state that a source wants: all of its deployments at one revision, and its settings of workers.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{
    DeploymentName, UnknownWorkers, WorkerId, WorkerTerms,
    manifest::{ManifestAlias, ManifestDeployment, ManifestFunction},
};
use serde_json::Value;

/// The annotation with the revision that last changed a deployment. A manifest that differs in nothing else is unchanged.
pub const REVISION: &str = berth_spec::dialect::registry_v3::COMMIT;

/// All that a source wants at one revision.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The revision: a commit, or a digest of the content.
    pub revision: String,
    /// Its deployments. Of two with one name, the first counts.
    pub deployments: Vec<ManifestDeployment>,
    /// Its aliases. Of two with one name, the first counts.
    pub aliases: Vec<ManifestAlias>,
    /// Its functions. Of two with one name, the first counts.
    pub functions: Vec<ManifestFunction>,
    /// The deletion of deployments, aliases and functions that the source owns and this snapshot lacks.
    pub prune: Prune,
    /// The settings of workers; `None`: the source has none to give, and those in the store stay.
    pub workers: Option<WorkerSettings>,
}

/// The fate of deployments and aliases that a source owns and its snapshot lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Prune {
    /// Deletes them: the snapshot is complete.
    #[default]
    All,
    /// Keeps them: the snapshot is incomplete.
    None,
    /// Only these are deleted: the source knows that it declared them.
    Only(BTreeSet<DeploymentName>),
    /// All but these are deleted: the source wants them, and cannot say how.
    Except(BTreeSet<DeploymentName>),
}

impl Prune {
    pub(super) fn deletes(&self, name: &DeploymentName) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Only(names) => names.contains(name),
            Self::Except(names) => !names.contains(name),
        }
    }
}

/// The part of a source that is about workers: the settings of each, and the treatment of others.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerSettings {
    /// Capacity, labels and eviction, by worker.
    pub terms: BTreeMap<WorkerId, WorkerTerms>,
    /// The treatment of workers that no source names.
    pub unknown: UnknownWorkers,
}

/// A manifest without the annotation [`REVISION`].
pub(crate) fn without_revision(manifest: &Value) -> Value {
    let mut value = manifest.clone();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut)
    {
        annotations.remove(REVISION);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    value
}
