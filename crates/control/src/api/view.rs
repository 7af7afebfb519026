//! Converts the controller's answers to the stable shapes of [`berth_wire::api`]. Pure; one function per shape.

mod alias;
mod decision;
mod deployment;
mod fleet;

pub(crate) use alias::alias;
pub(crate) use decision::{applied, deleted, event, explanation, plan};
pub(crate) use deployment::{deployment, gone, history, phase, replica_memory};
pub(crate) use fleet::{held_memory, memory, replica, revision, worker};

use std::collections::BTreeMap;

use berth_wire::api::{API_VERSION, Kind};
use serde_json::Value;

/// `apiVersion` and `kind` of a shape.
fn head<T: Kind>() -> (String, String) {
    (API_VERSION.to_owned(), T::KIND.to_owned())
}

/// The annotations in a manifest.
fn annotations(manifest: &Value) -> BTreeMap<String, String> {
    let annotations = manifest.pointer("/metadata/annotations").and_then(Value::as_object);
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    annotations.into_iter().flatten().filter_map(text).collect()
}
