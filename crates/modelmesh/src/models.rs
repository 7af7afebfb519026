//! Models: registering, removing, loading, and their state.

use std::{collections::BTreeMap, time::Duration};

use berth_control::{
    Handle,
    handle::{ApplyRequest, DeleteRequest, DeploymentView, Error, ListRequest, Ownership},
    store::Rev,
};
use berth_spec::{Deployment, DeploymentName, OpaqueModel, Origin, Time};
use berth_wire::mmesh::ModelInfo;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::{
    code::{other_attributes, status},
    ids::{self, AUTO_DELETE},
    load,
    status::ModelState,
};

/// Attempts of a change that lost to another caller. Each failure means that another one succeeded.
pub(crate) const ATTEMPTS: usize = 8;

/// The age that a model has which is loaded at registration and says nothing of its use: ModelMesh's. Models that are in use
/// stay before it.
const REGISTERED_USE: Duration = Duration::from_secs(60 * 60);

/// The label of a model whose number of copies a transition keeps up.
pub(crate) const RAISED: &str = "modelmesh.berth.dev/raised";

/// Time of the load of a model that is registered, and if the caller waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadWhen {
    /// With its first request.
    Asked,
    /// At once, and the caller does not wait.
    Now,
    /// At once, and the caller waits.
    Awaited,
}

/// Registers a model. False: it is registered with the same attributes.
pub(crate) async fn declare(
    handle: &Handle,
    model: &DeploymentName,
    info: &ModelInfo,
    auto_delete: bool,
) -> Result<bool, Status> {
    if info.r#type.is_empty() {
        return Err(Status::invalid_argument("modelInfo.type is empty"));
    }
    let attributes = ids::location(info);
    for _ in 0..ATTEMPTS {
        let expect = match handle.get(model).await {
            Ok(view) if !view.deployment.deleting => return same(&view, &attributes).map(|()| false),
            Ok(view) => view.rev,
            Err(Error::NotFound(_)) => Rev::NONE,
            Err(error) => return Err(status(error)),
        };
        let manifest = ids::model(model, &attributes, auto_delete)?;
        let request = ApplyRequest { expect: Some(expect), ..ApplyRequest::new(manifest, Origin::API) };
        match handle.apply(request).await {
            Ok(_) => return Ok(true),
            Err(Error::Stale { .. }) => {}
            Err(error) => return Err(status(error)),
        }
    }
    Err(status(Error::Contended(model.clone())))
}

fn same(view: &DeploymentView, attributes: &OpaqueModel) -> Result<(), Status> {
    let uri = &view.deployment.spec.model.uri;
    if ids::attributes(uri).as_ref() == Some(attributes) {
        return Ok(());
    }
    Err(other_attributes(&view.deployment.name, uri))
}

/// Registers a model, and has it loaded where that is asked for.
pub(crate) async fn register(
    handle: &Handle,
    model: &DeploymentName,
    info: &ModelInfo,
    when: LoadWhen,
    last_used: u64,
) -> Result<ModelState, Status> {
    let began = handle.now();
    declare(handle, model, info, false).await?;
    if when != LoadWhen::Asked {
        let used = load::time(last_used).unwrap_or_else(|| registered_use(handle));
        load::start(handle, model, Some(used)).await?;
    }
    match when {
        LoadWhen::Awaited => load::finished(handle, model, began).await,
        LoadWhen::Now => Ok(load::state(handle, model).await.on_its_way()),
        LoadWhen::Asked => Ok(load::state(handle, model).await),
    }
}

/// Has a model loaded as if it was used at `last_used`; tells its state at the end, or at once if the caller does not wait.
pub(crate) async fn ensure_loaded(
    handle: &Handle,
    model: &DeploymentName,
    when: LoadWhen,
    last_used: u64,
) -> Result<ModelState, Status> {
    let began = handle.now();
    load::start(handle, model, load::time(last_used)).await?;
    match when {
        LoadWhen::Awaited => load::finished(handle, model, began).await,
        LoadWhen::Asked | LoadWhen::Now => Ok(load::state(handle, model).await.on_its_way()),
    }
}

/// Removes a model that no virtual model leads to.
pub(crate) async fn unregister(handle: &Handle, model: &DeploymentName) -> Result<(), Status> {
    let view = match handle.get(model).await {
        Ok(view) if !view.deployment.deleting => view,
        Ok(_) | Err(Error::NotFound(_)) => return Ok(()),
        Err(error) => return Err(status(error)),
    };
    if ids::attributes(&view.deployment.spec.model.uri).is_none() {
        let message = format!("{model} was not registered here: delete it with `berth delete deployment`");
        return Err(Status::failed_precondition(message));
    }
    let referents = delete(handle, model).await?;
    if referents.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = referents.iter().map(ToString::to_string).collect();
    let message = format!("model {model} cannot be removed: it is the target of vmodels {}", names.join(", "));
    Err(Status::failed_precondition(message))
}

/// Removes a model, unless virtual models lead to it, which are given then.
async fn delete(handle: &Handle, model: &DeploymentName) -> Result<Vec<DeploymentName>, Status> {
    let request = DeleteRequest { origin: Origin::API, expect: None, ownership: Ownership::Respect };
    match handle.delete_unless_led_to(model, &request).await {
        Ok(referents) => Ok(referents),
        Err(Error::NotFound(_)) => Ok(Vec::new()),
        Err(error) => Err(status(error)),
    }
}

/// Removes a model that nothing leads to any more, if it was to go then.
pub(crate) async fn release(handle: &Handle, model: &DeploymentName) -> Result<(), Status> {
    let goes = match handle.get(model).await {
        Ok(view) => goes_with_the_last(&view),
        Err(Error::NotFound(_)) => false,
        Err(error) => return Err(status(error)),
    };
    if !goes {
        return Ok(());
    }
    match delete(handle, model).await {
        Ok(referents) => {
            if referents.is_empty() {
                tracing::info!(event = "model_released", %model, "no virtual model led to the model any more: it was removed");
            }
            Ok(())
        }
        // Others change virtual models all the while: no fault of the caller, and `release_left` tries again.
        Err(error) if error.code() == Code::Aborted => {
            tracing::warn!(event = "model_not_released", %model, %error, "the model is removed later");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// True of a model that is to go with the last virtual model that leads to it. Earlier builds wrote an annotation in place of the label.
fn goes_with_the_last(model: &DeploymentView) -> bool {
    let label = model.deployment.labels.get(AUTO_DELETE).map(String::as_str);
    is_ours(&model.deployment) && label.or_else(|| ids::annotation(&model.manifest, AUTO_DELETE)) == Some("true")
}

/// Releases the models of before a time that no virtual model leads to.
pub(crate) async fn release_left(handle: &Handle, before: Time) -> Result<(), Error> {
    let labels = BTreeMap::from([(AUTO_DELETE.to_owned(), "true".to_owned())]);
    let mut request = ListRequest { labels, ..ListRequest::default() };
    loop {
        let page = handle.page(request.clone()).await?;
        let deployments = page.items.iter().map(|known| &known.deployment);
        let old = deployments.filter(|model| model.created < before && !model.deleting);
        let old: Vec<DeploymentName> = old.map(|model| model.name.clone()).collect();
        for model in &old {
            if !handle.aliases_of(model).await?.is_empty() {
                continue;
            }
            if let Err(error) = release(handle, model).await {
                tracing::warn!(event = "model_not_released", %model, %error, "no virtual model leads to the model, which stays");
            }
        }
        request.after = page.next;
        if request.after.is_none() {
            return Ok(());
        }
    }
}

/// Keeps so many copies of a model loaded, until [`lower`].
pub(crate) async fn raise(handle: &Handle, model: &DeploymentName, copies: u32) -> Result<(), Status> {
    change(handle, model, |manifest| {
        let min = manifest.pointer("/spec/replicas/min").and_then(Value::as_u64);
        if min.is_some_and(|min| min >= u64::from(copies)) {
            return None;
        }
        let mut raised = labelled(manifest, RAISED, Some("true"));
        *raised.pointer_mut("/spec/replicas/min")? = json!(copies);
        Some(raised)
    })
    .await
}

/// Leaves the number of copies to requests again.
pub(crate) async fn lower(handle: &Handle, model: &DeploymentName) -> Result<(), Status> {
    change(handle, model, |manifest| {
        manifest.get("metadata")?.get("labels")?.get(RAISED)?;
        let mut lowered = labelled(manifest, RAISED, None);
        *lowered.pointer_mut("/spec/replicas/min")? = json!(0);
        Some(lowered)
    })
    .await
}

/// Changes the manifest of a model that was registered here; `None` from `changed`: there is nothing to change.
async fn change(
    handle: &Handle,
    model: &DeploymentName,
    changed: impl Fn(&Value) -> Option<Value>,
) -> Result<(), Status> {
    for _ in 0..ATTEMPTS {
        let view = match handle.get(model).await {
            Ok(view) => view,
            Err(Error::NotFound(_)) => return Ok(()),
            Err(error) => return Err(status(error)),
        };
        let changes = is_ours(&view.deployment) && !view.deployment.deleting;
        let Some(manifest) = changed(&view.manifest).filter(|_| changes) else {
            return Ok(());
        };
        let mut manifest = ids::read(&manifest)?;
        manifest.name = model.clone();
        let request = ApplyRequest { expect: Some(view.rev), ..ApplyRequest::new(manifest, Origin::API) };
        match handle.apply(request).await {
            Ok(_) => return Ok(()),
            Err(Error::Stale { .. }) => {}
            Err(error) => return Err(status(error)),
        }
    }
    Err(status(Error::Contended(model.clone())))
}

/// True of a model that was registered here, and that no other source has taken over.
fn is_ours(model: &Deployment) -> bool {
    model.origin == Origin::API && ids::attributes(&model.spec.model.uri).is_some()
}

/// The manifest with a label, or without it.
fn labelled(manifest: &Value, label: &str, value: Option<&str>) -> Value {
    let mut changed = manifest.clone();
    let Some(metadata) = changed.get_mut("metadata").and_then(Value::as_object_mut) else { return changed };
    if let Some(labels) = metadata.entry("labels").or_insert_with(|| json!({})).as_object_mut() {
        match value {
            Some(value) => drop(labels.insert(label.to_owned(), value.into())),
            None => drop(labels.remove(label)),
        }
    }
    changed
}

/// The last use of a model that is loaded at its registration and says nothing of it.
pub(crate) fn registered_use(handle: &Handle) -> Time {
    let age = u64::try_from(REGISTERED_USE.as_nanos()).unwrap_or(u64::MAX);
    Time(handle.now().0.saturating_sub(age))
}
