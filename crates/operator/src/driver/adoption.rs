//! Moves models to newer rules: asks for it in the API server, and waits until the operator has done it.

use std::time::Duration;

use kube::{
    Api, Client, Error,
    api::{ListParams, Patch, PatchParams},
    runtime::wait::{Condition, await_condition},
};
use serde_json::json;
use tokio::time;

use super::answered;
use crate::{
    api::{ModelDeployment, Status},
    upgrade::{ADOPT, Change},
};

/// Owner of the annotation that asks.
const ASKER: &str = "berth-plan-upgrade";

/// Reason why a model was not moved.
#[derive(Debug, thiserror::Error)]
pub enum AdoptionError {
    /// The API server refuses, or is away.
    #[error("the API server says: {0}")]
    Api(String),
    /// No operator took it up. The request was withdrawn.
    #[error("no operator took it up, and the request was withdrawn: does one of this version lead?")]
    Ignored,
    /// Another spec, and with it other rules.
    #[error("its spec was changed or it was deleted meanwhile: plan again")]
    Changed,
    /// Pods by the new rules that do not become ready.
    #[error("it has the new rules, and is not ready: {0}")]
    NotReady(String),
}

/// The `ModelDeployment`s of a namespace, or of all.
///
/// # Errors
/// The API server refuses, or an object is of another schema.
pub async fn models(client: &Client, namespace: Option<&str>) -> Result<Vec<ModelDeployment>, Error> {
    let api: Api<ModelDeployment> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    Ok(api.list(&ListParams::default()).await?.items)
}

/// Moves one model, and returns when its pods are ready by the new rules.
///
/// # Errors
/// It is not ready within `patience`.
pub async fn adopt(client: &Client, change: &Change, patience: Duration) -> Result<(), AdoptionError> {
    let api: Api<ModelDeployment> = Api::namespaced(client.clone(), &change.namespace);
    let record = serde_json::to_string(&change.to).map_err(|error| AdoptionError::Api(error.to_string()))?;
    ask(&api, &change.name, Some(record)).await.map_err(api_error)?;
    let settled = await_condition(api.clone(), &change.name, Settled { change });
    if let Ok(Err(error)) = time::timeout(patience, settled).await {
        return Err(AdoptionError::Api(error.to_string()));
    }
    let found = answered(api.get_opt(&change.name)).await.map_err(api_error)?;
    let Some(model) = found else { return Err(AdoptionError::Changed) };
    if model.metadata.generation != Some(change.to.generation) {
        return Err(AdoptionError::Changed);
    }
    let status = model.status.unwrap_or_default();
    if status.render.as_ref() != Some(&change.to) {
        ask(&api, &change.name, None).await.map_err(api_error)?;
        return Err(AdoptionError::Ignored);
    }
    match status.condition("Ready") {
        Some(ready) if ready.status == "True" => Ok(()),
        other => Err(AdoptionError::NotReady(other.map(|ready| ready.message.clone()).unwrap_or_default())),
    }
}

async fn ask(api: &Api<ModelDeployment>, name: &str, record: Option<String>) -> Result<(), Error> {
    let patch = json!({ "metadata": { "annotations": { ADOPT: record } } });
    let parameters = PatchParams { field_manager: Some(ASKER.to_owned()), ..PatchParams::default() };
    answered(api.patch(name, &parameters, &Patch::Merge(patch))).await.map(drop)
}

fn api_error(error: Error) -> AdoptionError {
    match error {
        Error::Api(refusal) => AdoptionError::Api(refusal.message),
        other => AdoptionError::Api(other.to_string()),
    }
}

/// Holds when a model is ready by the new rules, waits for a person, has another spec, or is gone.
struct Settled<'a> {
    change: &'a Change,
}

impl Condition<ModelDeployment> for Settled<'_> {
    fn matches_object(&self, object: Option<&ModelDeployment>) -> bool {
        let Some(object) = object else { return true };
        let is = |status: &Status, topic: &str| status.condition(topic).is_some_and(|one| one.status == "True");
        let settled = |status: &Status| {
            status.render.as_ref() == Some(&self.change.to) && (is(status, "Ready") || is(status, "Stalled"))
        };
        object.metadata.generation != Some(self.change.to.generation) || object.status.as_ref().is_some_and(settled)
    }
}
