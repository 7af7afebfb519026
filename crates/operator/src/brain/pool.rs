//! The pool of a model: its parts, which need custom resources and each other, and the condition that says if Gateways use it.
//!
//! ```text
//!  custom resource installed ──▶ InferencePool, HTTPRoute ──pool is there──▶ endpoint picker, owned by the pool
//! ```
//! The pods do not wait for it: `Ready` is about them alone.

use serde_json::Value;

use super::{World, is_controlled};
use crate::{
    api::{Condition, InferencePool, ModelDeployment, Status},
    render::{self, OPTIONAL, PICKER, PICKER_OF, Record},
};

/// The condition about the way of requests to the pool.
pub(super) const ROUTED: &str = "Routed";

const POOL: &str = "InferencePool";
const ROUTE: &str = "HTTPRoute";

/// Kinds of a picker that the operator makes for pools alone.
const OF_PICKER: [&str; 2] = ["ServiceAccount", "RoleBinding"];

/// True for a part of a pool.
pub(super) fn is_part(object: &Value) -> bool {
    OPTIONAL.iter().any(|kind| object["kind"] == *kind) || is_of_picker(object)
}

/// True for a part of an endpoint picker.
pub(super) fn is_of_picker(object: &Value) -> bool {
    object["metadata"]["labels"][PICKER_OF].is_string()
}

/// The rendered objects that the cluster can have now: without those whose custom resource or right is missing, and with the picker once there
/// is a pool that it belongs to.
pub(super) fn settled(
    object: &ModelDeployment,
    record: &Record,
    mut objects: Vec<Value>,
    world: World<'_>,
) -> Result<Vec<Value>, String> {
    // A route to what cannot be there leads nowhere, and so does a pool without a picker.
    let no_pools = [POOL].iter().chain(&OF_PICKER).any(|kind| world.lacks(kind));
    objects.retain(|one| {
        let kind = one["kind"].as_str().unwrap_or_default();
        !(world.lacks(kind) || no_pools && OPTIONAL.contains(&kind))
    });
    let pool = own(POOL, object, world).and_then(|pool| pool["metadata"]["uid"].as_str()).filter(|_| !no_pools);
    if let Some(uid) = pool.filter(|uid| !world.live.iter().any(|live| is_left_behind(live, object, uid))) {
        objects.extend(render::endpoint_picker(object, record, uid).map_err(|error| error.to_string())?);
    }
    Ok(objects)
}

/// True for a part of a picker whose pool was deleted: it goes too, and is made anew after that.
fn is_left_behind(live: &Value, object: &ModelDeployment, pool: &str) -> bool {
    let owners = live["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let mut pools =
        owners.filter(|owner| owner["kind"] == POOL && owner["name"].as_str() == object.metadata.name.as_deref());
    pools.any(|owner| owner["uid"] != pool)
}

/// The part of this kind that belongs to the object.
fn own<'a>(kind: &str, object: &ModelDeployment, world: World<'a>) -> Option<&'a Value> {
    world.live.iter().find(|live| live["kind"] == kind && is_controlled(live, &object.metadata)).copied()
}

/// The condition of an object that asks for a pool.
pub(super) fn condition(object: &ModelDeployment, world: World<'_>, before: &Status) -> Option<Condition> {
    let wanted = object.spec.inference_pool.as_ref()?;
    let (status, reason, message) = match way(object, wanted, world) {
        Ok(()) => ("True", "Accepted", "a Gateway sends requests to the pool".to_owned()),
        Err((reason, message)) => ("False", reason, message),
    };
    let since = before.condition(ROUTED).filter(|before| before.status == status);
    Some(Condition {
        kind: ROUTED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since.map_or(world.now, |before| before.last_transition_time.as_str()).to_owned(),
        observed_generation: object.metadata.generation.unwrap_or_default(),
    })
}

/// A reason in one word, and in a sentence.
type Obstacle = (&'static str, String);

/// The first obstacle on the way from a Gateway to the pods.
fn way(object: &ModelDeployment, wanted: &InferencePool, world: World<'_>) -> Result<(), Obstacle> {
    let kinds: Vec<&str> = [POOL].into_iter().chain(wanted.gateway.as_ref().map(|_| ROUTE)).collect();
    if let Some(kind) = kinds.iter().find(|kind| world.absent.contains(kind)) {
        let name = if *kind == POOL { "the Gateway API Inference Extension" } else { "the Gateway API" };
        return Err(("NotInstalled", format!("the cluster has no custom resource {kind}: install {name}")));
    }
    if let Some(kind) = kinds.iter().chain(&OF_PICKER).find(|kind| world.forbidden.contains(kind)) {
        let remedy = "apply all that `berth operator manifests` of its version prints";
        return Err(("Forbidden", format!("the operator has no right to list objects of the kind {kind}: {remedy}")));
    }
    let mut parts = Vec::new();
    for kind in kinds {
        let missing = || ("Progressing", format!("the {kind} is not there yet"));
        parts.push((kind, own(kind, object, world).ok_or_else(missing)?));
    }
    let mut pickers = world.live.iter().filter(|live| live["kind"] == "Deployment" && is_of_picker(live));
    if !pickers.any(|picker| picker["status"]["readyReplicas"].as_i64() > Some(0)) {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        return Err(("PickerNotReady", format!("no pod of the Deployment {name}{PICKER} is ready")));
    }
    parts.into_iter().try_for_each(|(kind, live)| accepted(kind, live))
}

/// The words of Gateways about an object.
fn accepted(kind: &str, live: &Value) -> Result<(), Obstacle> {
    let parents = live["status"]["parents"].as_array().into_iter().flatten();
    let conditions = parents.flat_map(|parent| parent["conditions"].as_array().into_iter().flatten());
    let decisive: Vec<&Value> =
        conditions.filter(|one| one["type"] == "Accepted" || one["type"] == "ResolvedRefs").collect();
    if let Some(refusal) = decisive.iter().find(|one| one["status"] == "False") {
        let message = refusal["message"].as_str().unwrap_or_default();
        return Err(("Refused", format!("a Gateway refuses the {kind}: {message}")));
    }
    match decisive.iter().any(|one| one["status"] == "True") {
        true => Ok(()),
        false => Err(("NotAccepted", format!("no Gateway has accepted the {kind}"))),
    }
}
