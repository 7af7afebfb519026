//! Version 2: that of version 1, with an executor before the model and a PodDisruptionBudget. Frozen once it was shipped, as
//! version 1 is.
//!
//! The executor takes over the names of the model's ports, so that the Service stays as it is, and leads to old pods and new ones while they
//! are replaced. Both are declared in the model's container: before Kubernetes 1.33, Services find no named port of an init container.
//!
//! The pool came later. A spec without one is rendered as before.

mod autoscaler;
pub(super) mod executor;
pub(super) mod pool;

use serde_json::{Value, json};

use self::executor::Executor;
use super::{Error, Identity, Record, SELECTOR, TEMPLATE, digest, v1};
use crate::api::{ModelDeployment, model_deployment::ModelDeploymentSpec};

/// The grace period of pods where nobody says another: time for the executor's requests, and for the model after them.
const GRACE: u32 = 60;

pub(super) fn render(model: &ModelDeployment, record: &Record) -> Result<Vec<Value>, Error> {
    let identity = Identity::of(model)?;
    let mut objects = v1::render(model, record)?;
    let executor = Executor::of(model);
    for deployment in objects.iter_mut().filter(|object| object["kind"] == "Deployment") {
        let pod = &mut deployment["spec"]["template"]["spec"];
        settings(pod, &model.spec, &identity);
        match &executor {
            Some(executor) => executor.put_into(pod, &identity.name, record),
            // Left out, an API server would keep the empty shell of the executor's hook, and refuse it.
            None => pod["containers"][0]["lifecycle"] = Value::Null,
        }
        deployment["metadata"]["annotations"][TEMPLATE] = json!(digest(&deployment["spec"]["template"], 16));
    }
    // Before the pods that read it.
    if let Some(executor) = &executor {
        objects.insert(0, executor.config_map(&identity));
    }
    // Where an autoscaler decides, there may be several.
    if record.disruption_budgets && model.spec.replicas.is_none_or(|replicas| replicas > 1) {
        objects.push(disruption_budget(&identity));
    }
    objects.extend(model.spec.autoscaling.as_ref().map(|wanted| autoscaler::render(wanted, &identity)));
    objects.extend(model.spec.inference_pool.iter().flat_map(|wanted| pool::render(wanted, model, &identity)));
    Ok(objects)
}

/// Puts in what rules 1 did not know. Nothing is put in for what is left out.
fn settings(pod: &mut Value, spec: &ModelDeploymentSpec, identity: &Identity) {
    if let Some(fields) = spec.pod.security_context.as_ref().and_then(Value::as_object) {
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            pod["securityContext"][name] = value.clone();
        }
    }
    if !spec.pod.topology_spread_constraints.is_empty() {
        let mut constraints = spec.pod.topology_spread_constraints.clone();
        for constraint in constraints.iter_mut().filter(|one| one["labelSelector"].is_null()) {
            constraint["labelSelector"] = json!({ "matchLabels": { SELECTOR: identity.name } });
        }
        pod["topologySpreadConstraints"] = Value::Array(constraints);
    }
    if let Some(affinity) = &spec.pod.affinity {
        pod["affinity"] = affinity.clone();
    }
    if let Some(class) = &spec.pod.priority_class_name {
        pod["priorityClassName"] = json!(class);
    }
    for (at, part) in spec.parameters.iter().enumerate() {
        if let Some(resources) = &part.resources {
            pod["initContainers"][at]["resources"] = resources.clone();
        }
    }
}

/// A quarter of the pods, rounded up, may go at once: of one pod that is this one, so that no node waits for a model without others.
fn disruption_budget(identity: &Identity) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": v1::metadata(identity),
        "spec": { "maxUnavailable": "25%", "selector": { "matchLabels": { SELECTOR: identity.name } } },
    })
}
