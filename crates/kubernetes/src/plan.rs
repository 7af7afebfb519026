//! From the objects to the snapshot that is declared, and to what is wrong with those that cannot be. No I/O.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    hash::{DefaultHasher, Hash, Hasher},
};

use berth_control::source::{Prune, Snapshot};
use berth_operator::{fleet, render::canonical};
use berth_spec::{
    DeploymentName,
    dialect::kserve::{self, RUNTIME},
    manifest::ManifestDeployment,
};
use kube::core::{DynamicObject, ObjectMeta};
use serde_json::{Value, json};

use crate::{
    kind::Kind,
    objects::{Content, Key, Objects},
    runtimes::{self, Runtime},
};

/// An object that is not declared as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    pub(crate) message: String,
}

/// The reason for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    Invalid,
    NameTaken,
    RuntimeNotRecognized,
    RuntimeDisabled,
    NoSupportingRuntime,
    /// The control plane did not take it.
    NotDeclared,
}

/// The part of an object in what is declared.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Declared {
    /// The deployment; a refused object may have one of an earlier spec.
    pub(crate) name: Option<DeploymentName>,
    /// The generation of the object that this speaks of.
    pub(crate) generation: i64,
    /// A digest of the spec that the deployment should have.
    pub(crate) spec: u64,
    /// The kind of the runtime that it names, and its name.
    pub(crate) runtime: Option<(Kind, String)>,
    pub(crate) refused: Option<Refusal>,
}

/// All that is declared.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) snapshot: Snapshot,
    pub(crate) objects: BTreeMap<Key, Declared>,
    pub(crate) names: BTreeMap<DeploymentName, Key>,
}

/// The meaning of an object.
pub(crate) fn convert(kind: Kind, object: &DynamicObject) -> Content {
    let spec = &object.data["spec"];
    let read = match kind {
        Kind::ServingRuntime | Kind::ClusterServingRuntime => return Content::Runtime(Runtime::read(spec)),
        Kind::Route => return Content::Route(routed(object)),
        Kind::Model => match spec.get("fleet").filter(|fleet| fleet.is_object()) {
            None => return Content::Nothing,
            Some(fleet) => {
                match spec.as_object().is_some_and(|fields| fields.values().any(|one| !one.is_null() && one != fleet)) {
                    true => {
                        Err("spec.fleet: a model of a fleet has no pods of its own: leave out all other fields"
                            .to_owned())
                    }
                    false => fleet::manifest(&object.metadata, fleet),
                }
            }
        },
        _ => of_kserve(kind, &object.metadata, spec),
    };
    Content::Model(read.map(Box::new))
}

/// The deployment that an object of KServe or ModelMesh becomes.
fn of_kserve(kind: Kind, metadata: &ObjectMeta, spec: &Value) -> Result<ManifestDeployment, String> {
    let context = fleet::context(metadata);
    let described = kserve::Metadata {
        name: metadata.name.clone().unwrap_or_default(),
        namespace: Some(context.namespace.as_str().to_owned()),
        labels: metadata.labels.clone().unwrap_or_default(),
        annotations: fleet::annotations(metadata),
    };
    let object = kserve::Object::read(kind.name(), described, spec).map_err(|error| error.to_string())?;
    ManifestDeployment::of_kserve(&object, &context).map_err(fleet::join_errors)
}

/// The parts of a route that this source writes, and what Gateways say.
fn routed(object: &DynamicObject) -> Value {
    let metadata = &object.metadata;
    json!({
        "apiVersion": Kind::Route.api_version(),
        "kind": Kind::Route.name(),
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "labels": metadata.labels,
            "annotations": metadata.annotations,
            "ownerReferences": metadata.owner_references,
        },
        "spec": object.data["spec"],
        "status": object.data["status"],
    })
}

/// A digest of what a manifest says about its model.
pub(crate) fn digest(manifest: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    canonical(&manifest["spec"]).hash(&mut hasher);
    hasher.finish()
}

/// Plans what is declared.
pub(crate) fn plan(objects: &Objects) -> Plan {
    let mut plan = Plan::default();
    let (mut kept, mut revision) = (BTreeSet::new(), DefaultHasher::new());
    for (key, object) in objects.iter() {
        let Content::Model(read) = &object.content else { continue };
        key.to_string().hash(&mut revision);
        object.generation.hash(&mut revision);
        let declared = match read {
            Ok(manifest) => declare(objects, key, object.generation, manifest, &plan.names),
            Err(message) => {
                let refusal = Refusal { reason: Reason::Invalid, message: message.clone() };
                refused(named(key), object.generation, 0, refusal)
            }
        };
        if let Some(name) = &declared.name {
            match (plan.names.entry(name.clone()), read) {
                (Entry::Vacant(vacant), Ok(manifest)) if declared.refused.is_none() => {
                    vacant.insert(key.clone());
                    plan.snapshot.deployments.push((**manifest).clone());
                }
                (Entry::Vacant(vacant), _) => {
                    // What it said before stays.
                    vacant.insert(key.clone());
                    kept.insert(name.clone());
                }
                (Entry::Occupied(_), _) => {}
            }
        }
        plan.objects.insert(key.clone(), declared);
    }
    plan.snapshot.revision = format!("{:016x}", revision.finish());
    plan.snapshot.prune = if objects.is_complete() { Prune::Except(kept) } else { Prune::None };
    plan
}

fn declare(
    objects: &Objects,
    key: &Key,
    generation: i64,
    manifest: &ManifestDeployment,
    names: &BTreeMap<DeploymentName, Key>,
) -> Declared {
    let spec = digest(&manifest.raw);
    if let Some(other) = names.get(&manifest.name) {
        let message = format!("{other} declares a model of this name: delete it, or take another name");
        return refused(None, generation, spec, Refusal { reason: Reason::NameTaken, message });
    }
    let runtime = manifest.annotations.get(RUNTIME);
    let checked = runtime.map(|name| runtimes::check(objects, &key.namespace, name, &manifest.spec.model.format));
    match checked {
        Some(Err(refusal)) => refused(Some(manifest.name.clone()), generation, spec, refusal),
        found => {
            let kind = found.and_then(Result::ok).flatten();
            let runtime = kind.and_then(|kind| Some((kind, runtime?.clone())));
            Declared { name: Some(manifest.name.clone()), generation, spec, runtime, refused: None }
        }
    }
}

fn refused(name: Option<DeploymentName>, generation: i64, spec: u64, refusal: Refusal) -> Declared {
    Declared { name, generation, spec, runtime: None, refused: Some(refusal) }
}

/// The deployment of an object that cannot be read: an earlier spec of it may have declared one.
fn named(key: &Key) -> Option<DeploymentName> {
    DeploymentName::new(&format!("{}/{}", key.namespace, key.name)).ok()
}
