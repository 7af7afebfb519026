//! The stored form of aliases. They share their names with deployments: the write of a new alias compares the key of the
//! deployment, and the write of new deployments compares [`MARK`], which every new alias writes. A deployment that goes unless
//! an alias leads to it compares [`TARGETS_MARK`].

use std::sync::Arc;

use berth_spec::{
    Alias, DeploymentName, Generation, Origin, Time,
    manifest::{ManifestAlias, ParseContext},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Entry, StoreError,
    layout::{self, FORM},
};

/// The prefix of aliases.
pub const ALIASES: &str = "/aliases/";
/// The key that every new alias writes. A new deployment compares it, so that the two never get one name.
pub const MARK: &str = "/meta/aliases";
/// The key that every alias writes that gains a target.
pub const TARGETS_MARK: &str = "/meta/alias-targets";

/// The key of an alias.
#[must_use]
pub fn alias_key(name: &DeploymentName) -> String {
    format!("{ALIASES}{name}")
}

/// The value of an alias's key, JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredAlias {
    v: u32,
    /// The manifest as its author wrote it, without defaults.
    pub manifest: Value,
    /// Counts changes of targets and stickiness.
    pub generation: u64,
    /// The source that it comes from: `KIND:ID`; absent: the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    /// Nanoseconds since the Unix epoch.
    pub created: u64,
}

impl StoredAlias {
    /// The stored form of an alias that came with this manifest.
    #[must_use]
    pub fn of(alias: &Alias, manifest: Value) -> Self {
        let origin = (alias.origin != Origin::API).then(|| alias.origin.to_string());
        Self { v: FORM, manifest, generation: alias.generation.0, origin, created: alias.created.0 }
    }

    /// The source that declared it.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin.as_deref().map_or(Origin::API, Origin::read)
    }

    /// Decodes an entry's value. [`StoreError::Corrupt`] if it has another form.
    pub fn read(entry: &Entry) -> Result<Self, StoreError> {
        layout::read(entry)
    }

    /// Decodes an entry and parses its manifest. [`StoreError::Corrupt`] if this version does not take it any more.
    pub fn read_alias(entry: &Entry) -> Result<Arc<Alias>, StoreError> {
        let corrupt = |reason: String| StoreError::Corrupt { key: entry.key.clone(), reason };
        let stored = Self::read(entry)?;
        let namespace = layout::name_in(&entry.key, ALIASES).map(|name| name.to_namespace()).unwrap_or_default();
        let context = ParseContext { file: "the store".to_owned(), namespace, ..ParseContext::default() };
        let manifest = ManifestAlias::from_value(&stored.manifest, &context)
            .map_err(|errors| corrupt(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))?;
        Ok(Arc::new(Alias {
            name: manifest.name,
            generation: Generation(stored.generation),
            labels: manifest.labels,
            origin: stored.origin(),
            created: Time(stored.created),
            targets: manifest.targets,
            sticky: manifest.sticky,
        }))
    }

    /// The value to store, as JSON.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        layout::bytes(self)
    }
}
