//! `CLOpsDeployment` → `ModelDeployment`.

use serde_json::{Value, json};

use super::{ApplyError, Decision, is_controlled, pool::ROUTED, said, status_change};
use crate::{
    api::{CLOpsDeployment, Condition, GROUP, Status, VERSION, status::State},
    compare::holds,
    render::{MANAGED_BY, with_digest},
};

/// The state until the child tells its own.
const APPLIED: &str = "the model's objects are being applied";

/// The state of a model of a fleet until one tells its own.
const NO_FLEET: &str =
    "no fleet has told its state yet: one that follows this namespace and these labels must run (berth operator fleet)";

/// Decides about an object, beside the `ModelDeployment` of its name, if there is one.
#[must_use]
pub fn clops_deployment(
    object: &CLOpsDeployment,
    model: Option<&Value>,
    trouble: Option<&ApplyError>,
    now: &str,
) -> Decision {
    if object.metadata.deletion_timestamp.is_some() {
        return Decision::default();
    }
    let generation = object.metadata.generation.unwrap_or_default();
    let before = object.status.clone().unwrap_or_default();
    let wanted = child(object);
    let (apply, state) = match model {
        Some(live) if !is_controlled(live, &object.metadata) => (Vec::new(), taken(object)),
        Some(live) if holds(live, &wanted) => (Vec::new(), state_of(live)),
        _ => (vec![wanted], State::Reconciling(APPLIED.to_owned())),
    };
    let state = trouble.map_or(state, ApplyError::state);
    let observed = model.filter(|live| is_controlled(live, &object.metadata));
    let status = observed.and_then(|live| serde_json::from_value::<Status>(live["status"].clone()).ok());
    let status = status.unwrap_or_default();
    let routed = status.condition(ROUTED).cloned();
    let Status { replicas, ready_replicas, address, executor, async_apis, ready_async_apis, .. } = status;
    let after =
        Status { replicas, ready_replicas, address, executor, async_apis, ready_async_apis, render: None, ..before };
    let mut after = after.with(&state, generation, now);
    after.conditions.extend(routed.map(|routed| Condition { observed_generation: generation, ..routed }));
    let (status, events) = status_change(object.status.as_ref(), after);
    Decision { apply, status, events, ..Decision::default() }
}

fn child(object: &CLOpsDeployment) -> Value {
    let metadata = &object.metadata;
    with_digest(json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "ModelDeployment",
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "labels": { MANAGED_BY.0: MANAGED_BY.1 },
            "annotations": {},
            "ownerReferences": [{
                "apiVersion": format!("{GROUP}/{VERSION}"),
                "kind": "CLOpsDeployment",
                "name": metadata.name,
                "uid": metadata.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": object.spec.model,
    }))
}

fn taken(object: &CLOpsDeployment) -> State {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    State::Stalled(
        "NameTaken",
        format!("there is a ModelDeployment {name} of somebody else: delete it, or take another name"),
    )
}

/// The state of the child: its own words, once it speaks of the newest spec.
fn state_of(live: &Value) -> State {
    match said(live) {
        Some(State::Stalled(reason, message)) => State::Stalled(reason, as_written(message)),
        Some(state) => state,
        None if live["spec"]["fleet"].is_object() => State::Reconciling(NO_FLEET.to_owned()),
        None => State::Reconciling(APPLIED.to_owned()),
    }
}

/// A message about a field of a `ModelDeployment`, with the field as people wrote it in a `CLOpsDeployment`.
pub(crate) fn as_written(message: String) -> String {
    match message.strip_prefix("spec.") {
        Some(rest) => format!("spec.model.{rest}"),
        None => message,
    }
}
