//! Rules that a schema cannot say.

use std::collections::BTreeSet;

use crate::{
    api::{InferencePool, ModelDeployment},
    fleet,
    render::{self, PICKER},
};

/// The longest name: that of a Service, and the value of a label.
const MAX_NAME_BYTES: usize = 63;

/// The first rule that an object breaks, with the field and the remedy.
pub(crate) fn check(model: &ModelDeployment) -> Result<(), String> {
    let name = model.metadata.name.as_deref().unwrap_or_default();
    if name.len() > MAX_NAME_BYTES
        || name.contains('.')
        || !name.starts_with(|letter: char| letter.is_ascii_lowercase())
    {
        return Err(format!(
            "metadata.name: {name} cannot name a Service: use at most {MAX_NAME_BYTES} lower-case letters, digits and dashes, a letter first"
        ));
    }
    let container = &model.spec.container;
    match &model.spec.fleet {
        Some(fleet) => return fleet::check(model, fleet),
        None if container.image.is_empty() => {
            return Err(
                "spec.container: it is missing: write a container, or fleet for a model without pods of its own"
                    .to_owned(),
            );
        }
        None => {}
    }
    unique("spec.container.ports[].name", container.ports.iter().map(|port| port.name.clone()))?;
    unique("spec.container.ports[].port", container.ports.iter().map(|port| port.port))?;
    let served = container.ports.iter().map(|port| port.service_port.unwrap_or(port.port));
    unique("spec.container.ports[].servicePort", served)?;
    if let Some(unnamed) = container.env.iter().find(|entry| entry["name"].as_str().is_none_or(str::is_empty)) {
        return Err(format!("spec.container.env[]: {unnamed} has no name"));
    }
    if let Some(scaled) = &model.spec.autoscaling {
        if model.spec.replicas.is_some() {
            return Err("spec.replicas: spec.autoscaling sets the number of pods; leave one of them out".to_owned());
        }
        let least = scaled.min_replicas.unwrap_or(1);
        let Some(most) = scaled.max_replicas else {
            return Err("spec.autoscaling.maxReplicas: say the greatest number of pods".to_owned());
        };
        if least > most {
            return Err(format!("spec.autoscaling.minReplicas: {least} is more than maxReplicas, {most}"));
        }
    }
    render::check_executor(model)?;
    if let Some(pool) = &model.spec.inference_pool {
        check_pool(model, pool)?;
    }
    unique("spec.parameters[].name", model.spec.parameters.iter().map(|part| part.name.clone()))?;
    unique("spec.parameters[].mountPath", model.spec.parameters.iter().map(|part| part.mount_path.clone()))
}

fn check_pool(model: &ModelDeployment, pool: &InferencePool) -> Result<(), String> {
    let names: Vec<&str> = model.spec.container.ports.iter().map(|port| port.name.as_str()).collect();
    let name = model.metadata.name.as_deref().unwrap_or_default();
    let longest = MAX_NAME_BYTES - PICKER.len();
    match pool.port.as_deref() {
        None => {
            Err("spec.inferencePool.port: name the port of the container that Gateways send requests to".to_owned())
        }
        Some(port) if !names.contains(&port) => {
            Err(format!("spec.inferencePool.port: the container has no port {port}, but {}", names.join(", ")))
        }
        Some(_) if !pool.hostnames.is_empty() && pool.gateway.is_none() => {
            Err("spec.inferencePool.hostnames: they are those of a route: name its gateway, too".to_owned())
        }
        Some(_) if name.len() > longest => Err(format!(
            "metadata.name: {name} is too long for a model with spec.inferencePool: use at most {longest} characters"
        )),
        Some(_) => Ok(()),
    }
}

fn unique<T: Ord + std::fmt::Display + Clone>(field: &str, values: impl Iterator<Item = T>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for value in values {
        if !seen.insert(value.clone()) {
            return Err(format!("{field}: {value} comes twice"));
        }
    }
    Ok(())
}
