//! Declares and deletes functions for the API and sources: the same objects that people put into etcd.
//!
//! ```text
//! read the object ──▶ whose is it? ──▶ same desired state: Unchanged
//!   ▲                                  └▶ put with the next generation, if it was not modified since ──▶ the watch tells the controller
//!   └───────────────somebody was faster─────────────────┘
//! ```

use berth_control::{
    functions::{ApplyFunction, DeleteFunction},
    handle::{Applied, ApplyMode, ApplyOutcome, Error, Ownership},
    store::{Compare, Entry, Op, Outcome, Rev, Txn},
};
use berth_spec::{
    DeploymentName, Generation, Origin,
    manifest::{ManifestFunction, changes},
};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::{
    deployment::{Declared, ORIGIN, identity_of},
    objects::Objects,
};

/// Attempts of a write that lost to another writer: statuses are written while a function is built.
const ATTEMPTS: usize = 16;

/// A write that is to be made.
struct Wanted<'a> {
    name: &'a DeploymentName,
    origin: &'a Origin,
    expect: Option<Rev>,
    ownership: Ownership,
}

impl Wanted<'_> {
    /// Checks owner and version; a warning for those who only ask.
    fn may_write(&self, found: Option<&Entry>) -> Result<Vec<String>, Error> {
        let rev = found.map_or(Rev::NONE, |entry| entry.modified);
        if let Some(expected) = self.expect.filter(|expected| *expected != rev) {
            return Err(Error::Stale { name: self.name.clone(), expected, found: rev });
        }
        let Some(entry) = found else { return Ok(Vec::new()) };
        let owner = Declared::read(self.name.as_str(), &entry.value, rev).about.origin;
        // What nobody owns (somebody put it into etcd) is the API's.
        if owner == *self.origin {
            return Ok(Vec::new());
        }
        let owned = Error::Owned { name: self.name.clone(), owner, by: self.origin.clone() };
        match self.ownership {
            Ownership::TakeOver => Ok(Vec::new()),
            Ownership::Warn => Ok(vec![owned.to_string()]),
            Ownership::Respect => Err(owned),
        }
    }
}

impl Objects {
    /// Declares a function.
    pub(crate) async fn apply(&self, request: &ApplyFunction) -> Result<Applied, Error> {
        let manifest = &request.manifest;
        let given = manifest.resource_version.as_deref().map(|text| Rev(text.parse().unwrap_or(u64::MAX)));
        let wanted = Wanted {
            name: &manifest.name,
            origin: &request.origin,
            expect: request.expect.or(given),
            ownership: request.ownership,
        };
        let key = self.key(manifest.name.as_str());
        for _ in 0..ATTEMPTS {
            let found = self.store.get(&key).await?;
            let warnings = wanted.may_write(found.as_ref())?;
            let before = found.as_ref().and_then(|entry| object_of(&entry.value));
            let object = merged(before.as_ref(), manifest, &request.origin);
            let text = Bytes::from(Value::Object(object.clone()).to_string());
            let rev = found.as_ref().map_or(Rev::NONE, |entry| entry.modified);
            let checked = Declared::read(manifest.name.as_str(), &text, rev);
            if let Err(message) = checked.spec {
                return Err(Error::WrongFunction { name: manifest.name.clone(), message });
            }
            let mut applied = Applied {
                name: manifest.name.clone(),
                outcome: ApplyOutcome::Created,
                generation: Generation(generation_of(&object)),
                rev,
                warnings,
                changes: Vec::new(),
            };
            if let (Some(entry), Some(before)) = (&found, &before) {
                let same = identity_of(&entry.value).map(|identity| (identity.digest, identity.deleting));
                applied.outcome = ApplyOutcome::Configured;
                if same == Some((checked.identity.digest.clone(), false)) {
                    applied.outcome = ApplyOutcome::Unchanged;
                    applied.generation = Generation(generation_of(before));
                }
                applied.changes = differences(before, &object);
            }
            if request.mode == ApplyMode::DryRun || applied.outcome == ApplyOutcome::Unchanged {
                return Ok(applied);
            }
            applied.changes = Vec::new();
            let compare = vec![Compare::Modified { key: key.clone(), rev }];
            let txn = Txn { compare, ops: vec![Op::Put { key: key.clone(), value: text }] };
            if let Outcome::Committed(rev) = self.store.commit(txn).await? {
                return Ok(Applied { rev, ..applied });
            }
        }
        Err(Error::Contended(manifest.name.clone()))
    }

    /// Deletes the object of a function; its controller removes the rest.
    pub(crate) async fn delete(&self, request: &DeleteFunction) -> Result<Applied, Error> {
        let DeleteFunction { name, origin, expect, ownership, .. } = request;
        let wanted = Wanted { name, origin, expect: *expect, ownership: *ownership };
        let key = self.key(name.as_str());
        for _ in 0..ATTEMPTS {
            let Some(found) = self.store.get(&key).await? else { return Err(Error::NoFunction(name.clone())) };
            let warnings = wanted.may_write(Some(&found))?;
            let generation = object_of(&found.value).map_or(0, |object| generation_of(&object));
            let applied = Applied {
                name: name.clone(),
                outcome: ApplyOutcome::Configured,
                generation: Generation(generation),
                rev: found.modified,
                warnings,
                changes: Vec::new(),
            };
            if request.mode == ApplyMode::DryRun {
                return Ok(applied);
            }
            let compare = vec![Compare::Modified { key: key.clone(), rev: found.modified }];
            let txn = Txn { compare, ops: vec![Op::Delete { key: key.clone() }] };
            if let Outcome::Committed(rev) = self.store.commit(txn).await? {
                return Ok(Applied { rev, ..applied });
            }
        }
        Err(Error::Contended(name.clone()))
    }
}

fn object_of(value: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(value).ok()
}

fn generation_of(object: &Map<String, Value>) -> u64 {
    object.get("metadata").and_then(|metadata| metadata.get("generation")?.as_u64()).unwrap_or_default()
}

/// The object that a manifest wants, with the next generation and the status that is there.
fn merged(before: Option<&Map<String, Value>>, manifest: &ManifestFunction, origin: &Origin) -> Map<String, Value> {
    let mut annotations = manifest.annotations.clone();
    annotations.remove(ORIGIN);
    if *origin != Origin::API {
        annotations.insert(ORIGIN.to_owned(), origin.to_string());
    }
    let status = before.and_then(|object| object.get("status"));
    // A person may have numbered it, or left that to the controller.
    let observed = status.and_then(|status| status.get("observedGeneration")?.as_u64()).unwrap_or_default();
    let generation = before.map(generation_of).unwrap_or_default().max(observed) + 1;
    let mut metadata = Map::from_iter([
        ("name".to_owned(), json!(manifest.name.as_str())),
        ("generation".to_owned(), json!(generation)),
    ]);
    if !manifest.labels.is_empty() {
        metadata.insert("labels".to_owned(), json!(manifest.labels));
    }
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), json!(annotations));
    }
    let mut object = Map::from_iter([
        ("apiVersion".to_owned(), json!("berth.dev/v1")),
        ("kind".to_owned(), json!("Function")),
        ("metadata".to_owned(), Value::Object(metadata)),
        ("spec".to_owned(), manifest.spec.clone()),
    ]);
    if let Some(status) = status {
        object.insert("status".to_owned(), status.clone());
    }
    object
}

/// The fields that differ, without what the server adds.
fn differences(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<berth_spec::manifest::FieldChange> {
    let own = |object: &Map<String, Value>| {
        let mut object = object.clone();
        object.remove("status");
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("generation");
        }
        Value::Object(object)
    };
    changes(&own(before), &own(after))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_control::store::memory::MemoryStore;
    use berth_spec::manifest::{Manifest, ParseContext, parse_all};

    use super::*;

    fn function(env: &str) -> ManifestFunction {
        let text = format!(
            "apiVersion: berth.dev/v1\nkind: Function\nmetadata: {{name: words}}\nspec: {{type: python, sourceUri: 'file:/a', \
             entrypoint: a.b, target: {{platform: local}}, env: {{A: '{env}'}}}}\n"
        );
        match parse_all(&text, &ParseContext::default()).expect("a manifest").remove(0) {
            Manifest::Function(function) => *function,
            other => panic!("{other:?}"),
        }
    }

    fn apply(env: &str, origin: &Origin) -> ApplyFunction {
        let (mode, ownership) = (ApplyMode::Commit, Ownership::Respect);
        ApplyFunction { manifest: function(env), origin: origin.clone(), expect: None, mode, ownership }
    }

    #[tokio::test]
    async fn a_manifest_becomes_an_object_that_people_could_have_put() {
        let objects = Objects::all_of(Arc::new(MemoryStore::default()));
        let first = objects.apply(&apply("1", &Origin::API)).await.expect("applied");
        assert_eq!((first.outcome, first.generation), (ApplyOutcome::Created, Generation(1)));
        let same = objects.apply(&apply("1", &Origin::API)).await.expect("applied");
        assert_eq!((same.outcome, same.rev), (ApplyOutcome::Unchanged, first.rev));
        let dry = ApplyFunction { mode: ApplyMode::DryRun, ..apply("2", &Origin::API) };
        let dry = objects.apply(&dry).await.expect("a preview");
        assert_eq!(dry.changes.iter().map(|change| change.path.as_str()).collect::<Vec<_>>(), ["spec.env.A"]);
        let second = objects.apply(&apply("2", &Origin::API)).await.expect("applied");
        assert_eq!((second.outcome, second.generation), (ApplyOutcome::Configured, Generation(2)));
        let stored = objects.store.get("/words").await.expect("it answers").expect("it is there");
        let read = Declared::read("words", &stored.value, stored.modified);
        assert_eq!(read.spec.expect("right").env["A"], "2");
        let stale = ApplyFunction { expect: Some(first.rev), ..apply("3", &Origin::API) };
        assert!(matches!(objects.apply(&stale).await, Err(Error::Stale { .. })));
    }

    #[tokio::test]
    async fn a_function_belongs_to_the_source_that_declared_it() {
        let objects = Objects::all_of(Arc::new(MemoryStore::default()));
        let folder = Origin::directory("/f");
        objects.apply(&apply("1", &folder)).await.expect("applied");
        assert!(matches!(objects.apply(&apply("2", &Origin::API)).await, Err(Error::Owned { .. })));
        let (name, origin) = (function("1").name, Origin::API);
        let mut request =
            DeleteFunction { name, origin, expect: None, mode: ApplyMode::Commit, ownership: Ownership::Respect };
        assert!(matches!(objects.delete(&request).await, Err(Error::Owned { .. })));
        let takes = ApplyFunction { ownership: Ownership::TakeOver, ..apply("2", &Origin::API) };
        objects.apply(&takes).await.expect("taken over");
        objects.delete(&request).await.expect("deleted");
        request.mode = ApplyMode::DryRun;
        assert!(matches!(objects.delete(&request).await, Err(Error::NoFunction(_))));
    }
}
