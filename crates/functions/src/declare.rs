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
    id::DEFAULT_NAMESPACE,
    manifest::{ManifestFunction, changes},
};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::{
    deployment::{ARTIFACT, Declared, ORIGIN, identity_of},
    objects::Objects,
};

/// Attempts of a write that lost to another writer: statuses are written while a function is built.
const ATTEMPTS: usize = 16;

/// A write that is to be made.
struct PendingWrite<'a> {
    name: &'a DeploymentName,
    origin: &'a Origin,
    expect: Option<Rev>,
    ownership: Ownership,
}

impl PendingWrite<'_> {
    /// Checks owner and version; a warning for those who only ask.
    fn may_write(&self, found: Option<&Entry>) -> Result<Vec<String>, Error> {
        let rev = found.map_or(Rev::NONE, |entry| entry.modified);
        if let Some(expected) = self.expect.filter(|expected| *expected != rev) {
            return Err(Error::Stale { name: self.name.clone(), expected, found: rev });
        }
        let Some(entry) = found else { return Ok(Vec::new()) };
        let owner = Declared::read(self.name.as_str(), &entry.value, rev).metadata.origin;
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
    /// Declares a function. `known` is its generation for the controller: an object that cannot be read does not tell one.
    pub(crate) async fn apply(&self, request: &ApplyFunction, known: u64) -> Result<Applied, Error> {
        let manifest = &request.manifest;
        let given = manifest.resource_version.as_deref().map(|text| Rev(text.parse().unwrap_or(u64::MAX)));
        let wanted = PendingWrite {
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
            let known = if found.is_some() && before.is_none() { known } else { 0 };
            let object = merged(before.as_ref(), manifest, &request.origin, known);
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
        let wanted = PendingWrite { name, origin, expect: *expect, ownership: *ownership };
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

/// The generation of an object; 0 where it is none, also where it is beyond those that are read.
fn generation_of(object: &Map<String, Value>) -> u64 {
    let number = object.get("metadata").and_then(|metadata| metadata.get("generation")?.as_i64());
    number.and_then(|number| u64::try_from(number).ok()).unwrap_or_default()
}

/// Versions and kinds of objects that people write.
const FORMS: [(&str, &[&str], &str); 2] = [
    ("apiVersion", &["v1alpha1", "berth.dev/v1"], "berth.dev/v1"),
    ("kind", &["ModelDeployment", "Function"], "Function"),
];

/// The object that a manifest wants, with a generation after `known`. The rest stays as somebody put it: the form of the object, its
/// status, and what Berth does not know.
fn merged(
    before: Option<&Map<String, Value>>,
    manifest: &ManifestFunction,
    origin: &Origin,
    known: u64,
) -> Map<String, Value> {
    let mut object = before.cloned().unwrap_or_default();
    let mut metadata = match object.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        _ => Map::new(),
    };
    let mut annotations = manifest.annotations.clone();
    annotations.remove(ORIGIN);
    // What somebody put into etcd stays nobody's.
    let is_named = metadata.get("annotations").is_some_and(|annotations| annotations.get(ORIGIN).is_some());
    if *origin != Origin::API || is_named || before.is_none() {
        annotations.insert(ORIGIN.to_owned(), origin.to_string());
    }
    // A person may have numbered it, or left that to the controller.
    let generation = before.map(generation_of).unwrap_or_default().max(told_in(object.get("status"))).max(known);
    metadata.insert("name".to_owned(), json!(manifest.name.name()));
    match manifest.name.namespace() {
        // It may be left out, as it was before there were others.
        DEFAULT_NAMESPACE => metadata.retain(|field, value| field != "namespace" || *value == DEFAULT_NAMESPACE),
        namespace => drop(metadata.insert("namespace".to_owned(), json!(namespace))),
    }
    let generation = generation.saturating_add(1).min(i64::MAX.unsigned_abs());
    if let Some(artifact) = annotations.get_mut(ARTIFACT).filter(|text| !text.contains(' ')) {
        // For this generation alone: who asks for another one wants a build.
        *artifact = format!("{artifact} {generation}");
    }
    metadata.insert("generation".to_owned(), json!(generation));
    // Who declares it wants it.
    metadata.remove("deletionTimestamp");
    for (field, texts) in [("labels", &manifest.labels), ("annotations", &annotations)] {
        metadata.remove(field);
        if !texts.is_empty() {
            metadata.insert(field.to_owned(), json!(texts));
        }
    }
    object.insert("metadata".to_owned(), Value::Object(metadata));
    for (field, forms, ours) in FORMS {
        if !object.get(field).and_then(Value::as_str).is_some_and(|form| forms.contains(&form)) {
            object.insert(field.to_owned(), json!(ours));
        }
    }
    object.insert("spec".to_owned(), manifest.spec.clone());
    object
}

/// The highest generation that a status tells of: the version that serves may be later than what was looked at.
fn told_in(status: Option<&Value>) -> u64 {
    let number = |field: &str| status.and_then(|status| status.pointer(field)?.as_u64()).unwrap_or_default();
    number("/observedGeneration").max(number("/history/0/generation"))
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
        let first = objects.apply(&apply("1", &Origin::API), 0).await.expect("applied");
        assert_eq!((first.outcome, first.generation), (ApplyOutcome::Created, Generation(1)));
        let same = objects.apply(&apply("1", &Origin::API), 0).await.expect("applied");
        assert_eq!((same.outcome, same.rev), (ApplyOutcome::Unchanged, first.rev));
        let dry = ApplyFunction { mode: ApplyMode::DryRun, ..apply("2", &Origin::API) };
        let dry = objects.apply(&dry, 0).await.expect("a preview");
        assert_eq!(dry.changes.iter().map(|change| change.path.as_str()).collect::<Vec<_>>(), ["spec.env.A"]);
        let second = objects.apply(&apply("2", &Origin::API), 0).await.expect("applied");
        assert_eq!((second.outcome, second.generation), (ApplyOutcome::Configured, Generation(2)));
        let stored = objects.store.get("/words").await.expect("it answers").expect("it is there");
        let read = Declared::read("words", &stored.value, stored.modified);
        assert_eq!(read.spec.expect("right").env["A"], "2");
        let stale = ApplyFunction { expect: Some(first.rev), ..apply("3", &Origin::API) };
        assert!(matches!(objects.apply(&stale, 0).await, Err(Error::Stale { .. })));
    }

    #[tokio::test]
    async fn a_name_is_taken_in_its_namespace_alone() {
        let objects = Objects::all_of(Arc::new(MemoryStore::default()));
        let mut of_team = apply("2", &Origin::API);
        of_team.manifest.name = DeploymentName::new("team/words").expect("a name");
        for (request, key, namespace) in
            [(&apply("1", &Origin::API), "/words", None), (&of_team, "/team/words", Some("team"))]
        {
            let applied = objects.apply(request, 0).await.expect("applied");
            assert_eq!((applied.outcome, applied.generation), (ApplyOutcome::Created, Generation(1)), "{key}");
            let stored = objects.store.get(key).await.expect("it answers").expect("it is there");
            let object: Value = serde_json::from_slice(&stored.value).expect("JSON");
            let metadata = &object["metadata"];
            assert_eq!(
                (&metadata["name"], metadata.get("namespace").and_then(Value::as_str)),
                (&json!("words"), namespace)
            );
            let again = objects.apply(request, 0).await.expect("applied");
            assert_eq!(again.outcome, ApplyOutcome::Unchanged, "{key}");
        }
        let (name, origin) = (of_team.manifest.name.clone(), Origin::API);
        let request =
            DeleteFunction { name, origin, expect: None, mode: ApplyMode::Commit, ownership: Ownership::Respect };
        objects.delete(&request).await.expect("deleted");
        assert!(objects.store.get("/team/words").await.expect("it answers").is_none());
        assert!(objects.store.get("/words").await.expect("it answers").is_some(), "the other one stays");
    }

    #[tokio::test]
    async fn a_function_belongs_to_the_source_that_declared_it() {
        let objects = Objects::all_of(Arc::new(MemoryStore::default()));
        let folder = Origin::directory("/f");
        objects.apply(&apply("1", &folder), 0).await.expect("applied");
        assert!(matches!(objects.apply(&apply("2", &Origin::API), 0).await, Err(Error::Owned { .. })));
        let (name, origin) = (function("1").name, Origin::API);
        let mut request =
            DeleteFunction { name, origin, expect: None, mode: ApplyMode::Commit, ownership: Ownership::Respect };
        assert!(matches!(objects.delete(&request).await, Err(Error::Owned { .. })));
        let takes = ApplyFunction { ownership: Ownership::TakeOver, ..apply("2", &Origin::API) };
        objects.apply(&takes, 0).await.expect("taken over");
        objects.delete(&request).await.expect("deleted");
        request.mode = ApplyMode::DryRun;
        assert!(matches!(objects.delete(&request).await, Err(Error::NoFunction(_))));
    }

    async fn put(objects: &Objects, text: &str) {
        let ops = vec![Op::Put { key: objects.key("words"), value: Bytes::from(text.to_owned()) }];
        objects.store.commit(Txn { compare: vec![], ops }).await.expect("put");
    }

    async fn stored(objects: &Objects) -> Value {
        let entry = objects.store.get("/words").await.expect("it answers").expect("it is there");
        serde_json::from_slice(&entry.value).expect("JSON")
    }

    #[tokio::test]
    async fn what_a_person_put_keeps_its_form_and_its_own_fields() {
        let objects = Objects::all_of(Arc::new(MemoryStore::default()));
        let mut object = json!({
            "apiVersion": "v1alpha1", "kind": "ModelDeployment", "note": [1],
            "metadata": {"name": "words", "uid": "a1", "team": {"lead": "b"}, "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"type": "python"}, "status": {"observedGeneration": 4},
        });
        put(&objects, &object.to_string()).await;
        objects.apply(&apply("1", &Origin::API), 0).await.expect("applied");
        object["metadata"] = json!({"name": "words", "uid": "a1", "team": {"lead": "b"}, "generation": 5});
        object["spec"] = function("1").spec;
        assert_eq!(stored(&objects).await, object);
        // Another form is no object of a function: it becomes one of ours.
        object["apiVersion"] = "v9".into();
        put(&objects, &object.to_string()).await;
        objects.apply(&apply("2", &Origin::API), 0).await.expect("applied");
        assert_eq!(stored(&objects).await["apiVersion"], "berth.dev/v1");
    }

    #[tokio::test]
    async fn a_generation_comes_after_the_one_that_serves() {
        let objects = Objects::all_of(Arc::new(MemoryStore::default()));
        let object = json!({
            "apiVersion": "v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "words"}, "spec": {"type": "python"},
            "status": {"observedGeneration": 2, "history": [{"generation": 6}, {"generation": 9}]},
        });
        put(&objects, &object.to_string()).await;
        let applied = objects.apply(&apply("1", &Origin::API), 0).await.expect("applied");
        assert_eq!(applied.generation, Generation(7));
        // A generation that is too large is a mistake, which a manifest mends.
        let mut object = stored(&objects).await;
        object["metadata"]["generation"] = json!(u64::MAX);
        put(&objects, &object.to_string()).await;
        let applied = objects.apply(&apply("2", &Origin::API), 0).await.expect("applied");
        assert_eq!(applied.generation, Generation(7));
    }

    #[tokio::test]
    async fn an_object_that_cannot_be_read_gets_the_generation_after_the_known_one() {
        let objects = Objects::all_of(Arc::new(MemoryStore::default()));
        put(&objects, "{").await;
        let applied = objects.apply(&apply("1", &Origin::API), 7).await.expect("applied");
        assert_eq!(applied.generation, Generation(8));
        let next = objects.apply(&apply("2", &Origin::API), 70).await.expect("applied");
        assert_eq!(next.generation, Generation(9), "an object that can be read says its own");
    }

    #[tokio::test]
    async fn an_artifact_of_before_is_for_one_generation() {
        let objects = Objects::all_of(Arc::new(MemoryStore::default()));
        objects.apply(&apply("1", &Origin::API), 0).await.expect("applied");
        let mut back = apply("1", &Origin::API);
        back.manifest.annotations.insert(ARTIFACT.to_owned(), "sha256:1".to_owned());
        let applied = objects.apply(&back, 0).await.expect("applied");
        assert_eq!((applied.outcome, applied.generation), (ApplyOutcome::Configured, Generation(2)));
        let named = stored(&objects).await["metadata"]["annotations"][ARTIFACT].clone();
        assert_eq!(named, "sha256:1 2");
        // Who applies what the server tells changes nothing.
        back.manifest.annotations.insert(ARTIFACT.to_owned(), "sha256:1 2".to_owned());
        let same = objects.apply(&back, 0).await.expect("applied");
        assert_eq!(same.outcome, ApplyOutcome::Unchanged);
        objects.apply(&apply("1", &Origin::API), 0).await.expect("applied");
        assert!(stored(&objects).await["metadata"]["annotations"].get(ARTIFACT).is_none(), "it is built again");
    }

    #[tokio::test]
    async fn the_api_is_told_from_etcd() {
        let objects = Objects::all_of(Arc::new(MemoryStore::default()));
        objects.apply(&apply("1", &Origin::API), 0).await.expect("applied");
        let read = |object: Value| Declared::read("words", object.to_string().as_bytes(), Rev(1)).metadata;
        let metadata = read(stored(&objects).await);
        assert_eq!((metadata.owner(), metadata.annotations.len()), ("api".to_owned(), 0));
        let mut object = stored(&objects).await;
        object["metadata"] = json!({"name": "words"});
        put(&objects, &object.to_string()).await;
        objects.apply(&apply("2", &Origin::API), 0).await.expect("applied");
        assert_eq!(read(stored(&objects).await).owner(), "etcd", "nobody declared it first");
    }
}
