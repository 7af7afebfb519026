//! `ModelDeployment` → Deployment, Service, and what stands beside them.

use serde_json::Value;

use super::{ApplyError, Decision, async_api, is_controlled, is_controlled_alike, pool, status_change, valid};
use crate::{
    api::{ModelDeployment, Status, async_api::KIND as ASYNC_API, status::State},
    compare::holds,
    render::{self, Installation, RECORD, Record, Rules, TEMPLATE},
    upgrade,
};

/// Kinds of objects that others act on, so that they go as soon as they are not wanted.
const DELETED: [&str; 4] = ["HorizontalPodAutoscaler", "InferencePool", "HTTPRoute", ASYNC_API];

/// The state of a Deployment that its controller has not looked at since.
const CHANGED: &str = "the Deployment was created or changed";

/// The objects beside a `ModelDeployment`, and the operator's own settings.
#[derive(Debug, Clone, Copy)]
pub struct World<'a> {
    /// Objects of the model, and others of their names, as the API server holds them.
    pub live: &'a [&'a Value],
    /// The rules that objects can be rendered by.
    pub rules: Rules,
    /// Images and abilities for what is rendered from now on.
    pub installation: &'a Installation,
    /// Kinds that the cluster has no custom resource for, of those that it may lack.
    pub absent: &'a [&'static str],
    /// Kinds that the operator has no right to see, of those that it can do without.
    pub forbidden: &'a [&'static str],
    /// Failure of the last attempt; `None`: it succeeded, or there was none.
    pub trouble: Option<&'a ApplyError>,
    /// The time, for conditions.
    pub now: &'a str,
}

impl<'a> World<'a> {
    fn deployment(&self) -> Option<&'a Value> {
        self.live.iter().find(|live| is_deployment(live)).copied()
    }

    /// True for a kind that there is none of, as far as the operator can see.
    pub(super) fn lacks(&self, kind: &str) -> bool {
        self.absent.contains(&kind) || self.forbidden.contains(&kind)
    }

    /// The object in the place of a rendered one.
    pub(super) fn found(&self, wanted: &Value) -> Option<&'a Value> {
        let is_it =
            |live: &Value| live["kind"] == wanted["kind"] && live["metadata"]["name"] == wanted["metadata"]["name"];
        self.live.iter().find(|live| is_it(live)).copied()
    }
}

/// Decides about an object.
#[must_use]
pub fn model_deployment(object: &ModelDeployment, world: World<'_>) -> Decision {
    // The fleet that follows a model without pods tells its status.
    if object.metadata.deletion_timestamp.is_some() || object.spec.fleet.is_some() {
        return Decision::default();
    }
    let before = object.status.clone().unwrap_or_default();
    let generation = object.metadata.generation.unwrap_or_default();
    let record = record(object, world);
    let mut render_record = before.render.clone();
    let mut executor = before.executor.clone();
    let mut delete = Vec::new();
    let (mut async_apis, mut ready_async_apis) = (before.async_apis, before.ready_async_apis);
    let (apply, state) = match rendered(object, &record, world) {
        Err(message) => (Vec::new(), State::Stalled("Invalid", message)),
        Ok(mut objects) => {
            let derived = async_api::derived(object, &record);
            (async_apis, ready_async_apis) = async_api::count(&derived, object, world);
            objects.extend(async_api::free(derived, world));
            delete = superfluous(object, &objects, world);
            executor = render::executor_form(object, &record).map(str::to_owned);
            let settled = pool::settled(object, &record, objects, world);
            render_record = Some(record);
            match settled {
                Ok(objects) => differing(objects, world),
                Err(message) => (Vec::new(), State::Stalled("Invalid", message)),
            }
        }
    };
    let state = world.trouble.map_or(state, ApplyError::state);
    let live = world.deployment().filter(|live| is_controlled(live, &object.metadata));
    let (there, ready_replicas) = live.map_or((0, 0), replicas);
    let unsaid = if live.is_some() { there } else { 1 };
    let replicas = applied(&apply, world).map_or(there, |wanted| wanted["spec"]["replicas"].as_i64().unwrap_or(unsaid));
    let address = address(object);
    let status = Status {
        replicas,
        ready_replicas,
        address,
        executor,
        async_apis,
        ready_async_apis,
        render: render_record,
        ..before
    };
    let routed = pool::condition(object, world, &status);
    let mut status = status.with(&state, generation, world.now);
    status.conditions.extend(routed);
    let (status, events) = status_change(object.status.as_ref(), status);
    let kept_replicas = live.and_then(|live| kept_replicas(&apply, live));
    Decision { delete, apply, kept_replicas, status, events }
}

/// The rules for the object as its spec is now: those that somebody asked for, else those of the last change that its pods see. A status
/// that was lost (a restored backup) is replaced by what the Deployment says.
fn record(object: &ModelDeployment, world: World<'_>) -> Record {
    let generation = object.metadata.generation.unwrap_or_default();
    if let Some(asked) = upgrade::asked(object).filter(|asked| world.rules.know(asked.version)) {
        return asked;
    }
    match object.status.as_ref().and_then(|status| status.render.clone()) {
        Some(known) if known.generation == generation => known,
        Some(known) => kept(object, known, world).unwrap_or_else(|| world.rules.record(world.installation, generation)),
        None => {
            let noted = world.deployment().and_then(|live| live["metadata"]["annotations"][RECORD].as_str());
            let noted = noted.and_then(|text| serde_json::from_str::<Record>(text).ok());
            noted.map_or_else(
                || world.rules.record(world.installation, generation),
                |record| Record { generation, ..record },
            )
        }
    }
}

/// The rules of before for a changed spec, if its pods are the same by them: another number of pods, or another limit of the executor,
/// restarts none, whatever operator came meanwhile. Version 1 does not say of which template its pods are.
fn kept(object: &ModelDeployment, known: Record, world: World<'_>) -> Option<Record> {
    let record = Record { generation: object.metadata.generation.unwrap_or_default(), ..known };
    let rendered = world.rules.render(object, &record).ok()?;
    let wanted = rendered.iter().find(|one| one["kind"] == "Deployment")?;
    let live = world.found(wanted).filter(|live| is_controlled(live, &object.metadata))?;
    let template = |one: &Value| one["metadata"]["annotations"][TEMPLATE].as_str().map(str::to_owned);
    (template(wanted).is_some() && template(wanted) == template(live)).then_some(record)
}

fn rendered(object: &ModelDeployment, record: &Record, world: World<'_>) -> Result<Vec<Value>, String> {
    valid::check(object)?;
    let objects = world.rules.render(object, record).map_err(|error| error.to_string())?;
    Ok(objects.into_iter().map(|object| world.installation.adapt(object)).collect())
}

/// The autoscaler, the pool, the route and the asynchronous APIs of a model that is not to have them any more.
fn superfluous(object: &ModelDeployment, wanted: &[Value], world: World<'_>) -> Vec<Value> {
    let is_deleted = |live: &Value| DELETED.iter().any(|kind| live["kind"] == *kind);
    let name = |one: &Value| one["metadata"]["name"].clone();
    let is_wanted = |live: &Value| wanted.iter().any(|one| one["kind"] == live["kind"] && name(one) == name(live));
    let goes = |live: &&&Value| is_deleted(live) && !is_wanted(live) && is_controlled(live, &object.metadata);
    world.live.iter().filter(goes).map(|live| (*live).clone()).collect()
}

/// True for the Deployment of a model, in contrast to that of its picker.
fn is_deployment(one: &Value) -> bool {
    one["kind"] == "Deployment" && !pool::is_of_picker(one)
}

/// The number of pods of a Deployment that is applied without one: an API server would set it to 1.
fn kept_replicas(apply: &[Value], live: &Value) -> Option<i64> {
    let applied = apply.iter().find(|wanted| is_deployment(wanted))?;
    live["spec"]["replicas"].as_i64().filter(|_| applied["spec"]["replicas"].is_null())
}

/// The Deployment among the objects that are applied. The status is written after them, and says of it what is so then: a second write is
/// spared. After a failure it says what was there before.
fn applied<'a>(apply: &'a [Value], world: World<'_>) -> Option<&'a Value> {
    apply.iter().find(|wanted| is_deployment(wanted)).filter(|_| world.trouble.is_none())
}

/// The objects that are not as they should be, and the state that follows.
fn differing(objects: Vec<Value>, world: World<'_>) -> (Vec<Value>, State) {
    for wanted in &objects {
        if world.found(wanted).is_some_and(|live| !is_controlled_alike(live, wanted)) {
            let (kind, name) = (&wanted["kind"], &wanted["metadata"]["name"]);
            let (kind, name) = (kind.as_str().unwrap_or_default(), name.as_str().unwrap_or_default());
            let message = format!("there is a {kind} {name} of somebody else: delete it, or take another name");
            return (Vec::new(), State::Stalled("NameTaken", message));
        }
    }
    let apply: Vec<Value> =
        objects.into_iter().filter(|wanted| !world.found(wanted).is_some_and(|live| holds(live, wanted))).collect();
    let state = match world.deployment() {
        Some(deployment) if apply.iter().all(is_beside) => progress(deployment),
        _ if applied(&apply, world).is_some() => State::Reconciling(CHANGED.to_owned()),
        _ => State::Reconciling("the model's objects are being applied".to_owned()),
    };
    (apply, state)
}

/// True for an object that the pods do not wait for.
fn is_beside(one: &Value) -> bool {
    pool::is_part(one) || one["kind"] == ASYNC_API
}

/// Pods that are wanted, and those that answer.
fn replicas(deployment: &Value) -> (i64, i64) {
    let number = |value: &Value| value.as_i64().unwrap_or_default();
    (deployment["spec"]["replicas"].as_i64().unwrap_or(1), number(&deployment["status"]["readyReplicas"]))
}

/// The state of a Deployment that is as wanted.
fn progress(deployment: &Value) -> State {
    let status = &deployment["status"];
    let number = |name: &str| status[name].as_i64().unwrap_or_default();
    let (wanted, ready) = replicas(deployment);
    let failed = status["conditions"].as_array().into_iter().flatten().find(|condition| {
        (condition["type"] == "Progressing" || condition["type"] == "ReplicaFailure")
            && (condition["reason"] == "ProgressDeadlineExceeded"
                || condition["type"] == "ReplicaFailure" && condition["status"] == "True")
    });
    let observed = number("observedGeneration") >= deployment["metadata"]["generation"].as_i64().unwrap_or_default();
    let there = format!("{ready} of {wanted} pods are ready");
    match failed {
        Some(condition) if observed => {
            let message = condition["message"].as_str().unwrap_or_default();
            State::Stalled("PodsFailed", format!("{there}: {message} (kubectl describe pods shows why)"))
        }
        _ if !observed => State::Reconciling(CHANGED.to_owned()),
        _ if number("updatedReplicas") < wanted => {
            State::Reconciling(format!("{} of {wanted} pods are of the newest spec", number("updatedReplicas")))
        }
        _ if ready < wanted || number("availableReplicas") < wanted => State::Reconciling(there),
        _ => State::Ready(there),
    }
}

/// The first port of the Service.
fn address(object: &ModelDeployment) -> Option<String> {
    let (name, namespace) = (object.metadata.name.as_ref()?, object.metadata.namespace.as_ref()?);
    let port = object.spec.container.ports.first()?;
    Some(format!("{name}.{namespace}.svc:{}", port.service_port.unwrap_or(port.port)))
}
