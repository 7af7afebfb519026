//! `ModelDeployment` → `AsyncAPI`: one for each port whose executor takes asynchronous requests, and the state of each.
//!
//! ```text
//!  executor.ports[].settings.async ──▶ AsyncAPI ◀── Ready of the model
//! ```
//! Nothing is rendered for it: the Service and the executor's ConfigMap are those of the model, so that no pod depends on it.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::{ApplyError, Decision, World, is_controlled, is_controlled_alike, said, status_change};
use crate::{
    api::{
        AsyncAPI, AsyncAPISpec, AsyncAPIStatus, GROUP, ModelDeployment, VERSION,
        async_api::{KIND, MEMORY, NOT_WRITTEN, Queue},
        model_deployment::Port,
        status::{State, conditions, topic},
    },
    render::{self, MANAGED_BY, Record, SELECTOR, with_digest},
};

/// Decides about an object, beside the `ModelDeployment` that it names, if there is one.
#[must_use]
pub fn async_api(
    object: &AsyncAPI,
    model: Option<&Value>,
    trouble: Option<&ApplyError>,
    now: &str,
) -> Decision<AsyncAPIStatus> {
    if object.metadata.deletion_timestamp.is_some() {
        return Decision::default();
    }
    let derived = is_derived(object);
    let owner = model.filter(|model| is_owner(model, object));
    let state = match derived {
        false => State::Stalled("NotDerived", NOT_WRITTEN.to_owned()),
        // Without its model it goes; a model that does not speak of its newest spec yet will.
        true => match owner.and_then(|model| state(object, model)) {
            Some(state) => state,
            None => return Decision::default(),
        },
    };
    let state = trouble.map_or(state, ApplyError::state);
    let generation = object.metadata.generation.unwrap_or_default();
    let before = object.status.as_ref().map_or(&[][..], |status| status.conditions.as_slice());
    let after = AsyncAPIStatus {
        observed_generation: generation,
        conditions: conditions(before, &state, generation, now),
        address: derived.then(|| address(object)),
    };
    let (status, events) = status_change(object.status.as_ref(), after);
    Decision { status, events, ..Decision::default() }
}

/// True for an object with the name that it has by its spec, and with a model that controls it.
fn is_derived(object: &AsyncAPI) -> bool {
    let AsyncAPISpec { model, port, .. } = &object.spec;
    let mut owners = object.owner_references().iter();
    object.metadata.name == Some(name(model, port))
        && owners.any(|owner| owner.controller == Some(true) && owner.kind == "ModelDeployment" && owner.name == *model)
}

fn is_owner(model: &Value, object: &AsyncAPI) -> bool {
    let uid = model["metadata"]["uid"].as_str();
    uid.is_some() && object.owner_references().iter().any(|owner| Some(owner.uid.as_str()) == uid)
}

/// The state of the requests that a port of this model takes; `None` until the model speaks of its newest spec.
fn state(object: &AsyncAPI, model: &Value) -> Option<State> {
    let pods = pods(model);
    match said(model)? {
        stalled @ State::Stalled(..) => Some(stalled),
        _ if object.spec.queue.kind == MEMORY && pods > 1 => Some(State::Stalled(
            "QueueNotShared",
            format!(
                "the queue is in memory: each of {pods} pods knows its own jobs alone, and others answer 404; name a \
                 queue of Redis or NATS, or run one pod"
            ),
        )),
        state => Some(state),
    }
}

/// The pods that a model has, or that an autoscaler may give it.
fn pods(model: &Value) -> i64 {
    let number = |place: &str| model.pointer(place).and_then(Value::as_i64).unwrap_or_default();
    number("/status/replicas").max(number("/spec/autoscaling/maxReplicas"))
}

/// The address below which jobs are asked for.
fn address(object: &AsyncAPI) -> String {
    let AsyncAPISpec { model, service_port, prefix, .. } = &object.spec;
    format!("{model}.{}.svc:{service_port}{prefix}", object.metadata.namespace.as_deref().unwrap_or_default())
}

/// The name of the object of a port. Neither name has a dot, so that no two ports share one.
fn name(model: &str, port: &str) -> String {
    format!("{model}.{port}")
}

/// The objects of a model by these rules.
pub(super) fn derived(model: &ModelDeployment, record: &Record) -> Vec<Value> {
    let ports = render::asynchronous(model, record);
    ports.into_iter().map(|(port, section)| child(model, port, &section)).collect()
}

fn child(model: &ModelDeployment, port: &Port, section: &Value) -> Value {
    let metadata = &model.metadata;
    let owner = metadata.name.as_deref().unwrap_or_default();
    with_digest(json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": KIND,
        "metadata": {
            "name": name(owner, &port.name),
            "namespace": metadata.namespace,
            "labels": { MANAGED_BY.0: MANAGED_BY.1, "app.kubernetes.io/name": owner, SELECTOR: owner },
            "annotations": {},
            "ownerReferences": [{
                "apiVersion": format!("{GROUP}/{VERSION}"),
                "kind": "ModelDeployment",
                "name": owner,
                "uid": metadata.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": spec(owner, port, section),
    }))
}

/// The section as the executor takes it: what is left out in it has the executor's value.
fn spec(model: &str, port: &Port, section: &Value) -> AsyncAPISpec {
    AsyncAPISpec {
        model: model.to_owned(),
        port: port.name.clone(),
        service_port: port.service_port.unwrap_or(port.port),
        paths: texts(&section["paths"]),
        always: section["always"] == true,
        prefix: section["prefix"].as_str().unwrap_or(berth_executor::JOBS_PREFIX).to_owned(),
        queue: queue(&section["queue"]),
        callbacks: texts(&section["callbacks"]["allow"]),
    }
}

fn queue(section: &Value) -> Queue {
    let kind = match (section["redis"].is_string(), section["nats"].is_string()) {
        (true, _) => "Redis",
        (_, true) => "NATS",
        _ => MEMORY,
    };
    Queue { kind: kind.to_owned(), key: section["key"].as_str().map(str::to_owned) }
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The number of these objects, and of those that are there and ready.
pub(super) fn count(derived: &[Value], model: &ModelDeployment, world: World<'_>) -> (i64, i64) {
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let live = derived.iter().filter_map(|wanted| world.found(wanted));
    let ready = live.filter(|live| is_controlled(live, &model.metadata) && is_ready(live));
    (number(derived.len()), number(ready.count()))
}

/// True if an object says so of its newest spec.
fn is_ready(live: &Value) -> bool {
    let status: AsyncAPIStatus = serde_json::from_value(live["status"].clone()).unwrap_or_default();
    live["metadata"]["generation"].as_i64() == Some(status.observed_generation)
        && topic(&status.conditions, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Those in whose place is nothing of somebody else: that is left alone and says so itself, and the model is served all the same.
pub(super) fn free(derived: Vec<Value>, world: World<'_>) -> Vec<Value> {
    let is_free = |wanted: &Value| world.found(wanted).is_none_or(|live| is_controlled_alike(live, wanted));
    derived.into_iter().filter(is_free).collect()
}
