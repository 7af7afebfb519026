//! Has every object stored in the newest version: each is written again as it is, and then the definition forgets the older ones.
//!
//! Objects that nobody writes stay in the version that they were stored in, and are converted each time they are read. A version
//! can only leave a definition when nothing is stored in it.

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Error,
    api::{ListParams, Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde_json::json;

use super::kind::Kind;
use crate::api::{VERSION, spokes::CONVERTED};

/// Objects that are written at once: few, since nobody waits.
const WRITES: usize = 8;

/// Objects of one page of a list: about a megabyte, so that the API server holds little for it.
const PAGE: u32 = 200;

/// Owner of writes that change nothing.
const WRITER: &str = "berth-migrate-storage";

/// The outcome for a custom resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The name of its definition: `modeldeployments.berth.dev`.
    pub definition: String,
    /// Objects that were written again; `None` where no older version was stored.
    pub objects: Option<usize>,
}

/// Reason why objects are still stored in older versions. Nothing is lost: it can be run again.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// The definitions are of an older operator.
    #[error("{0} stores {1}: apply the custom resources of this version first (berth operator manifests)")]
    Older(&'static str, String),
    /// An object, or the list of them.
    #[error("{0}: the API server says: {1}")]
    Api(String, String),
}

/// Migrates all custom resources that have several versions.
///
/// # Errors
/// The definitions are old, or an object cannot be read or written.
pub async fn migrate(client: &Client) -> Result<Vec<Migrated>, MigrationError> {
    let mut outcome = Vec::new();
    for (name, kind) in CONVERTED.into_iter().zip([Kind::CLOps, Kind::Model]) {
        outcome.push(Migrated { definition: name.to_owned(), objects: migrate_kind(client, name, kind).await? });
    }
    Ok(outcome)
}

async fn migrate_kind(client: &Client, name: &'static str, kind: Kind) -> Result<Option<usize>, MigrationError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let failed = |error| api_error(name.to_owned(), error);
    let definition = definitions.get(name).await.map_err(failed)?;
    let storage = definition.spec.versions.iter().find(|version| version.storage).map(|version| version.name.clone());
    if storage.as_deref() != Some(VERSION) {
        return Err(MigrationError::Older(name, storage.unwrap_or_default()));
    }
    let stored = definition.status.and_then(|status| status.stored_versions).unwrap_or_default();
    if stored == [VERSION] {
        return Ok(None);
    }
    let objects = objects(client, kind).await.map_err(failed)?;
    let written = stream::iter(&objects).map(|object| rewrite(client, kind, object)).buffer_unordered(WRITES);
    written.try_collect::<()>().await?;
    // Only if the definition is still the one that was read.
    let patch = json!({
        "metadata": { "resourceVersion": definition.metadata.resource_version },
        "status": { "storedVersions": [VERSION] },
    });
    definitions.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(failed)?;
    Ok(Some(objects.len()))
}

/// All objects of a kind. What is written after this began is stored in the newest version anyway.
async fn objects(client: &Client, kind: Kind) -> Result<Vec<PartialObjectMeta<kube::core::DynamicObject>>, Error> {
    let api = kind.api(client, None);
    let mut all = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let listed = api.list_metadata(&page).await?;
        all.extend(listed.items);
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// Writes an object as it is: an API server stores it anew where it is stored in another version.
async fn rewrite(
    client: &Client,
    kind: Kind,
    object: &PartialObjectMeta<kube::core::DynamicObject>,
) -> Result<(), MigrationError> {
    let (namespace, name) = (object.metadata.namespace.as_deref(), object.metadata.name.as_deref().unwrap_or_default());
    let parameters = PatchParams { field_manager: Some(WRITER.to_owned()), ..PatchParams::default() };
    match kind.api(client, namespace).patch(name, &parameters, &Patch::Merge(json!({}))).await {
        Ok(_) => Ok(()),
        // It was deleted meanwhile.
        Err(Error::Api(refusal)) if refusal.code == 404 => Ok(()),
        Err(error) => {
            let object = format!("{} {}/{name}", kind.name(), namespace.unwrap_or_default());
            Err(api_error(object, error))
        }
    }
}

fn api_error(about: String, error: Error) -> MigrationError {
    match error {
        Error::Api(refusal) => MigrationError::Api(about, refusal.message),
        other => MigrationError::Api(about, other.to_string()),
    }
}
