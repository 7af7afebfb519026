//! The keys that exist, and the form of what is under them. This page is the stored format: the structs here are its only
//! definition, so that a change of a noun in `spec` cannot change what is on disk. Each value is JSON and begins with
//! its form's number `v`.
//!
//! NAME is the written form of a deployment's name (docs/names.md): `iris` in the default namespace, `team/iris` in
//! another, `default/a/b` where the name itself has a slash. Keys of deployments that were written before there were
//! namespaces have no slash, and mean the same now as then.
//!
//! | key | value | only writer |
//! |---|---|---|
//! | `/deployments/NAME` | [`StoredDeployment`]: the manifest as the user wrote it, and what the system adds | a person, through a source; the controller removes it once a deletion is done |
//! | `/aliases/NAME` | [`StoredAlias`](super::aliases::StoredAlias): the manifest of an alias as the user wrote it, and what the system adds. No deployment has the same NAME | a person, through a source |
//! | `/meta/aliases` | written with every new alias, so that a new deployment of its name notices it | a person |
//! | `/meta/alias-targets` | written with every alias that gains a target, so that the deletion of a deployment that none leads to notices it | a person |
//! | `/records/NAME` | the plan's record of a deployment: what is placed where, and how far a rollout has got | the controller |
//! | `/history/NAME` | [`StoredHistory`]: the last generations that were replaced | whoever replaces one; gone with the deployment |
//! | `/measured/DIGEST` | [`StoredMeasure`]: the memory that the artifact of this SHA-256 took | the controller |
//! | `/workers/NAME` | [`StoredCordon`]: no new replicas go there, or all of them move away | a person |
//! | `/terms/NAME` | [`terms`](super::terms)' form: the settings that a source gives a worker | that source |
//! | `/meta/terms` | the same: the treatment of workers that no source names, by source | sources |
//! | `/sources/NAME/paused` | [`StoredPause`]: a person has paused the source | a person |
//! | `/sources/NAME/SLOT` | the checkpoint of a source: bytes of its own, in its own slots (`checkpoint`, `notified`) | that source |
//! | `/functions/NAME` | NAME is that of the function, in the same form. A function's object, JSON without a form's number: its manifest, and its status (`berth_functions`) | a person, through a source: all but the status; the controller of functions: the status |
//! | `/tokens/ID` | [`StoredToken`](super::tokens::StoredToken): the hash of a token, and the rights of its holder | an admin |
//! | `/join-tokens/ID` | [`StoredJoinToken`](super::join_tokens::StoredJoinToken): the hash of a join token, its nodes, and who joined with it | an admin; the leader counts who joins, and removes those that have expired |
//! | `/revocations/ID` | [`StoredRevocation`](super::revocations::StoredRevocation): certificates of nodes that no node takes any more | an admin; the leader removes those whose certificates have ended |
//! | `/leader` | who leads ([`crate::leadership::LeaderRecord`]), for as long as its lease is kept | the leader |
//! | `/meta/plan` | [`StoredPlan`]: the number of the last plan; every plan is a compare-and-set on it | the controller |

use std::sync::Arc;

use berth_plan::Record;
use berth_spec::{
    ByteSize, Cordon, Deployment, DeploymentName, Digest, Generation, Namespace, Origin, Time, WorkerId,
    manifest::raw::RawDeployment,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Entry, Rev, StoreError};
use crate::source::SourceName;

/// Prefix of deployments.
pub const DEPLOYMENTS: &str = "/deployments/";
/// Prefix of the plan's records.
pub const RECORDS: &str = "/records/";
/// Prefix of replaced generations.
pub const HISTORY: &str = "/history/";
/// Prefix of measured sizes.
pub const MEASURED: &str = "/measured/";
/// Prefix of operators' settings for workers.
pub const WORKERS: &str = "/workers/";
/// Prefix of the settings that sources give workers.
pub const TERMS: &str = "/terms/";
/// The key of the treatment of workers that no source names.
pub const UNKNOWN_WORKERS: &str = "/meta/terms";
/// Prefix of what sources keep for the next leader, `NAME/SLOT`.
pub const SOURCES: &str = "/sources/";
/// The slot that says that a source is paused.
pub const PAUSED: &str = "paused";
/// The checkpoint of the only source, as earlier versions wrote it.
pub const OLD_GIT_SOURCE: &str = "/sources/git";
/// The messages that it had sent, as earlier versions wrote them.
pub const OLD_GIT_TOLD: &str = "/sources/git-told";
/// Prefix of the objects of functions.
pub const FUNCTIONS: &str = "/functions/";
/// The key that shows who leads.
pub const LEADER: &str = "/leader";
/// The key of the last plan's number.
pub const PLAN: &str = "/meta/plan";

/// The number of the stored forms, `v` in each. A change that an older Berth cannot read makes it one more.
pub(super) const FORM: u32 = 1;

/// The key of a deployment.
#[must_use]
pub fn deployment_key(name: &DeploymentName) -> String {
    format!("{DEPLOYMENTS}{name}")
}

/// The key of a deployment's record.
#[must_use]
pub fn record_key(name: &DeploymentName) -> String {
    format!("{RECORDS}{name}")
}

/// The key of a deployment's replaced generations.
#[must_use]
pub fn history_key(name: &DeploymentName) -> String {
    format!("{HISTORY}{name}")
}

/// The key of an artifact's measured size.
#[must_use]
pub fn measured_key(digest: &Digest) -> String {
    format!("{MEASURED}{digest}")
}

/// The key of what people say of a worker.
#[must_use]
pub fn worker_key(worker: &WorkerId) -> String {
    format!("{WORKERS}{worker}")
}

/// The key of a slot of a source.
#[must_use]
pub fn source_key(name: &SourceName, slot: &str) -> String {
    format!("{SOURCES}{name}/{slot}")
}

/// The source that a key belongs to; `None`: it is of an earlier version.
#[must_use]
pub fn source_in(key: &str) -> Option<SourceName> {
    let (name, _) = key.strip_prefix(SOURCES)?.split_once('/')?;
    SourceName::new(name).ok()
}

/// A person has paused a source; the key is there while that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPause {
    v: u32,
    /// Nanoseconds since the Unix epoch.
    since: u64,
}

/// The value that pauses a source, as JSON.
#[must_use]
pub fn pause_bytes(since: Time) -> Bytes {
    bytes(&StoredPause { v: FORM, since: since.0 })
}

/// The value of a deployment's key, JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredDeployment {
    v: u32,
    /// The manifest as its author wrote it, without defaults.
    pub manifest: Value,
    /// Base of relative locations in the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Counts changes of the spec.
    pub generation: u64,
    /// The source that it comes from: `KIND:ID`; absent: the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    /// The folder that it comes from, as earlier versions wrote it. Read, never written.
    #[serde(default, skip_serializing)]
    directory: Option<String>,
    /// The Git registry that it comes from, as earlier versions wrote it. Read, never written.
    #[serde(default, skip_serializing)]
    git: Option<String>,
    /// Nanoseconds since the Unix epoch.
    pub created: u64,
    /// True from the request for deletion on, until its replicas are gone and the key is removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// The SHA-256 of a local artifact, hashed when it was declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The size of that artifact in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<u64>,
}

impl StoredDeployment {
    /// Builds the stored form of a deployment and its manifest.
    #[must_use]
    pub fn of(deployment: &Deployment, manifest: Value, base: Option<String>) -> Self {
        Self {
            v: FORM,
            manifest,
            base,
            generation: deployment.generation.0,
            origin: (deployment.origin != Origin::API).then(|| deployment.origin.to_string()),
            directory: None,
            git: None,
            created: deployment.created.0,
            deleting: deployment.deleting,
            digest: deployment.digest.map(|digest| digest.to_string()),
            artifact: deployment.artifact.map(|size| size.0),
        }
    }

    /// The source that owns it, from whichever form was written.
    #[must_use]
    pub fn origin(&self) -> Origin {
        match (&self.origin, &self.directory, &self.git) {
            (Some(text), ..) => Origin::read(text),
            (None, Some(folder), _) => Origin::directory(folder),
            (None, None, Some(registry)) => Origin::git(registry),
            (None, None, None) => Origin::API,
        }
    }

    /// The deployment that it is; `namespace` is that of its key. Fails if this version of Berth does not take the manifest any more.
    fn deployment(&self, namespace: &Namespace, rev: Rev) -> Result<Deployment, String> {
        let document = RawDeployment::read(&self.manifest)?;
        let (labels, spec) = (document.labels().into(), document.resolve(self.base.as_deref())?);
        let digest = self.digest.as_deref().map(str::parse).transpose().map_err(|error| format!("{error}"))?;
        Ok(Deployment {
            name: document.name(namespace),
            generation: Generation(self.generation),
            labels,
            origin: self.origin(),
            created: Time(self.created),
            deleting: self.deleting,
            resource_version: rev.0,
            spec,
            digest,
            artifact: self.artifact.map(ByteSize),
        })
    }

    /// Decodes an entry's value, but not the manifests in it. [`StoreError::Corrupt`] if it has another form.
    pub fn read(entry: &Entry) -> Result<Self, StoreError> {
        read(entry)
    }

    /// Decodes an entry and parses its manifest. [`StoreError::Corrupt`] if this version does not take it any more.
    pub fn read_deployment(entry: &Entry) -> Result<Arc<Deployment>, StoreError> {
        let stored = Self::read(entry)?;
        let namespace = name_in(&entry.key, DEPLOYMENTS).map(|name| name.to_namespace()).unwrap_or_default();
        stored
            .deployment(&namespace, entry.modified)
            .map(Arc::new)
            .map_err(|reason| StoreError::Corrupt { key: entry.key.clone(), reason })
    }

    /// The value to store, as JSON.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        bytes(self)
    }
}

/// The generations of a deployment that were replaced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredHistory {
    v: u32,
    /// The latest first.
    pub items: Vec<Replaced>,
}

/// A generation that was replaced, kept so that people can go back to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replaced {
    /// Number of the generation, as it was while it was in force.
    pub generation: u64,
    /// Id of the revision that it wanted.
    pub revision: String,
    /// The source that had declared it, `KIND:ID`.
    pub origin: String,
    /// When it was replaced: nanoseconds since the Unix epoch.
    pub at: u64,
    /// Its manifest as the user wrote it.
    pub manifest: Value,
    /// Base of relative locations in the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
}

impl Default for StoredHistory {
    fn default() -> Self {
        Self { v: FORM, items: Vec::new() }
    }
}

impl StoredHistory {
    /// Decodes an entry's value, but not the manifests in it. [`StoreError::Corrupt`] if it has another form.
    pub fn read(entry: &Entry) -> Result<Self, StoreError> {
        read(entry)
    }

    /// The value to store, as JSON.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        bytes(self)
    }
}

/// The measured size of an artifact's replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredMeasure {
    v: u32,
    bytes: u64,
}

/// The value of a measured size, as JSON.
#[must_use]
pub fn measured_bytes(size: ByteSize) -> Bytes {
    bytes(&StoredMeasure { v: FORM, bytes: size.0 })
}

/// Decodes a measured size, and the artifact's digest in its key. [`StoreError::Corrupt`] if either is none.
pub fn read_measured(entry: &Entry) -> Result<(Digest, ByteSize), StoreError> {
    let stored: StoredMeasure = read(entry)?;
    let digest = tail(entry, MEASURED).parse::<Digest>();
    let digest = digest.map_err(|error| StoreError::Corrupt { key: entry.key.clone(), reason: error.to_string() })?;
    Ok((digest, ByteSize(stored.bytes)))
}

/// Cordon or drain of a worker by an operator. The key exists as long as either lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredCordon {
    v: u32,
    cordoned: bool,
    #[serde(default)]
    draining: bool,
}

/// The value that cordons or drains a worker.
#[must_use]
pub fn cordon_bytes(cordon: Cordon) -> Bytes {
    bytes(&StoredCordon { v: FORM, cordoned: !cordon.is_open(), draining: cordon == Cordon::Draining })
}

/// Reads what people say of a worker.
pub fn read_cordon(entry: &Entry) -> Result<Cordon, StoreError> {
    let stored: StoredCordon = read(entry)?;
    Ok(match (stored.cordoned, stored.draining) {
        (_, true) => Cordon::Draining,
        (true, false) => Cordon::Cordoned,
        (false, false) => Cordon::Open,
    })
}

/// The value of [`PLAN`], JSON: the number of the last plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPlan {
    v: u32,
    generation: u64,
}

/// The value of the plan's key.
#[must_use]
pub fn plan_bytes(generation: Generation) -> Bytes {
    bytes(&StoredPlan { v: FORM, generation: generation.0 })
}

/// Decodes the number of the last plan. [`StoreError::Corrupt`] if the entry has another form.
pub fn read_plan(entry: &Entry) -> Result<Generation, StoreError> {
    read::<StoredPlan>(entry).map(|stored| Generation(stored.generation))
}

#[derive(Serialize, Deserialize)]
struct StoredRecord<R> {
    v: u32,
    record: R,
}

/// The value of a record. `plan` owns the record's form.
#[must_use]
pub fn record_bytes(record: &Record) -> Bytes {
    bytes(&StoredRecord { v: FORM, record })
}

/// Decodes a record. [`StoreError::Corrupt`] if the entry has another form.
pub fn read_record(entry: &Entry) -> Result<Record, StoreError> {
    read::<StoredRecord<Record>>(entry).map(|stored| stored.record)
}

/// The name at the end of a key below `prefix`; `None` if the key is none.
pub fn name_in(key: &str, prefix: &str) -> Option<DeploymentName> {
    DeploymentName::new(key.strip_prefix(prefix)?).ok()
}

/// The worker that a key below [`WORKERS`] is about; `None` if the key is none.
pub fn worker_in(key: &str) -> Option<WorkerId> {
    WorkerId::new(key.strip_prefix(WORKERS)?).ok()
}

fn tail<'a>(entry: &'a Entry, prefix: &str) -> &'a str {
    entry.key.strip_prefix(prefix).unwrap_or(&entry.key)
}

pub(super) fn bytes(value: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("the stored forms have text keys and finite numbers"))
}

pub(super) fn read<T: DeserializeOwned>(entry: &Entry) -> Result<T, StoreError> {
    #[derive(Deserialize)]
    struct Form {
        v: u32,
    }
    let corrupt = |reason: String| StoreError::Corrupt { key: entry.key.clone(), reason };
    let form: Form = serde_json::from_slice(&entry.value).map_err(|error| corrupt(error.to_string()))?;
    if form.v != FORM {
        return Err(corrupt(format!("it has form {}, this berth reads {FORM}", form.v)));
    }
    serde_json::from_slice(&entry.value).map_err(|error| corrupt(error.to_string()))
}

#[cfg(test)]
mod tests {
    use berth_spec::manifest::{self, ManifestDeployment, ParseContext};

    use super::*;
    use crate::store::Rev;

    fn entry(key: String, value: Bytes) -> Entry {
        Entry { key, value, created: Rev(1), modified: Rev(1), version: 1 }
    }

    fn parsed() -> ManifestDeployment {
        let text = "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {name: iris, labels: {team: a}}\nspec:\n  model: {format: onnx, uri: \"file:iris.onnx\"}\n  replicas: {min: 0, max: 2}\n";
        let context = ParseContext {
            file: "test".to_owned(),
            base: Some("file:///models/".to_owned()),
            ..ParseContext::default()
        };
        manifest::parse(text, &context).expect("a manifest").remove(0)
    }

    #[test]
    fn a_deployment_comes_back_as_it_was() {
        let parsed = parsed();
        for (origin, deleting, digest) in
            [(Origin::API, false, None), (Origin::directory("/models"), true, Some(Digest([3; 32])))]
        {
            let deployment = Deployment {
                name: parsed.name.clone(),
                generation: Generation(4),
                labels: parsed.labels.clone().into(),
                origin,
                created: Time(5),
                deleting,
                resource_version: 1,
                spec: parsed.spec.clone(),
                digest,
                artifact: digest.map(|_| ByteSize(4_096)),
            };
            let stored = StoredDeployment::of(&deployment, parsed.raw.clone(), parsed.base.clone());
            let entry = entry(deployment_key(&deployment.name), stored.bytes());
            assert_eq!(*StoredDeployment::read_deployment(&entry).expect("it reads"), deployment);
            assert_eq!(StoredDeployment::read(&entry).expect("it reads").manifest, parsed.raw);
        }
    }

    #[test]
    fn sizes_and_keys_come_back_and_another_form_is_refused() {
        let digest = Digest([9; 32]);
        let measured = entry(measured_key(&digest), measured_bytes(ByteSize(77)));
        assert_eq!(read_measured(&measured).expect("it reads"), (digest, ByteSize(77)));
        let name = DeploymentName::new("iris").expect("a name");
        assert_eq!(name_in(&record_key(&name), RECORDS), Some(name.clone()));
        assert_eq!(name_in(&record_key(&name), DEPLOYMENTS), None);
        for written in ["iris", "team/iris", "default/a/b", "a/b @%/ü"] {
            let name = DeploymentName::new(written).expect("a name");
            assert_eq!(deployment_key(&name), format!("/deployments/{written}"));
            assert_eq!(name_in(&deployment_key(&name), DEPLOYMENTS), Some(name));
        }
        let newer = entry(deployment_key(&name), Bytes::from_static(b"{\"v\": 2}"));
        let error = StoredDeployment::read(&newer).expect_err("it is newer");
        assert!(error.to_string().contains("form 2"), "{error}");
    }
}
