//! Changes of a deployment that is declared: read, change, write back unless somebody wrote in between.

use berth_spec::{DeploymentName, id::DEFAULT_NAMESPACE};
use berth_wire::api::{ApplyResult, DeploymentView};
use reqwest::{
    Method,
    header::{CONTENT_TYPE, IF_MATCH},
};
use serde_json::{Value, json};

use super::{
    namespace::path_of,
    resource::{Resource, not_found},
};
use crate::{client::Client, failure::Failure};

/// Attempts of a change that lost to another writer. Each failure means that another writer succeeded.
const ATTEMPTS: usize = 8;

/// A deployment as the server has it.
pub(super) async fn read(client: &Client, name: &DeploymentName) -> Result<DeploymentView, Failure> {
    match client.get(&path_of(name)).await {
        Err(Failure::NotFound(_)) => Err(not_found(client, Resource::Deployments, name.as_str()).await),
        other => other,
    }
}

/// The manifest of a deployment: what its author wrote, and the folder that it is relative to.
pub(super) fn manifest_of(view: &DeploymentView) -> Value {
    let metadata = &view.metadata;
    let mut own = json!({"name": metadata.name});
    if metadata.namespace != DEFAULT_NAMESPACE {
        own["namespace"] = json!(metadata.namespace);
    }
    if !metadata.labels.is_empty() {
        own["labels"] = json!(metadata.labels);
    }
    if !metadata.annotations.is_empty() {
        own["annotations"] = json!(metadata.annotations);
    }
    if let Some(base) = &metadata.base_uri {
        own["baseUri"] = json!(base);
    }
    json!({"apiVersion": view.api_version, "kind": view.kind, "metadata": own, "spec": view.spec})
}

/// Writes a manifest if the server still has this version of it; `force` takes it over from another source.
pub(super) async fn write(
    client: &Client,
    name: &DeploymentName,
    manifest: &Value,
    version: &str,
    force: bool,
) -> Result<ApplyResult, Failure> {
    let query: &[_] = if force { &[("force", "true".to_owned())] } else { &[] };
    let request = client
        .request(Method::PUT, &path_of(name), query)
        .header(CONTENT_TYPE, "application/json")
        .header(IF_MATCH, format!("\"{version}\""))
        .body(manifest.to_string());
    client.json(request).await
}

/// Applies `edit` to the manifest, again where another writer was faster.
pub(super) async fn change(
    client: &Client,
    name: &DeploymentName,
    force: bool,
    edit: impl Fn(&DeploymentView, &mut Value) -> Result<(), Failure>,
) -> Result<ApplyResult, Failure> {
    for _ in 1..ATTEMPTS {
        let view = read(client, name).await?;
        let mut manifest = manifest_of(&view);
        edit(&view, &mut manifest)?;
        match write(client, name, &manifest, &view.metadata.resource_version, force).await {
            Err(Failure::Conflict(_)) => {}
            other => return other,
        }
    }
    Err(Failure::Failed(format!("deployment/{name} changes all the time: nothing was changed; try again")))
}
