//! Packages in Azure Blob Storage: `CONTAINER/NAME/DIGEST.zip`, in other namespaces than `default`
//! `CONTAINER/_NAMESPACE/NAME/DIGEST.zip`, each with the documents of its artifact beside it.

use std::{collections::BTreeSet, time::Duration};

use futures::TryStreamExt as _;
use http::Method;
use object_store::{
    Error, ObjectStore, ObjectStoreExt as _, PutPayload,
    azure::{AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder},
    path::Path as Key,
    signer::Signer as _,
};
use tokio::sync::Semaphore;

use super::{config::AzureConfig, resource::AzureError};
use crate::{
    build::{ArtifactStore, Document},
    deployment::FunctionSpec,
    status::ArtifactStatus,
};

/// Packages of a function that are kept: the one that runs, the one before it, and some for a way back.
const MAX_PACKAGES: usize = 5;

/// An app reads its package at each start, however long it lives.
const SIGNED_FOR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Packages that are uploaded at once: each is in memory, and many deployments run beside each other.
const UPLOADS: usize = 2;

/// The store of packages.
pub(super) struct Packages {
    store: MicrosoftAzure,
    container: String,
    signed: bool,
    uploads: Semaphore,
}

impl Packages {
    pub(super) fn open(config: &AzureConfig) -> Result<Self, AzureError> {
        let builder = MicrosoftAzureBuilder::new().with_container_name(&config.container);
        let known = config
            .variables
            .iter()
            .filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse::<AzureConfigKey>().ok()?, value)))
            // It is the container of something else.
            .filter(|(key, _)| *key != AzureConfigKey::ContainerName);
        let store = known.fold(builder, |builder, (key, value)| builder.with_config(key, value)).build();
        let store = store.map_err(|error| {
            AzureError::lasting("PackagesUnusable", format!("cannot use Azure Blob Storage: {error}"))
        })?;
        let (container, signed) = (config.container.clone(), config.account_key.is_some());
        Ok(Self { store, container, signed, uploads: Semaphore::new(UPLOADS) })
    }

    fn key(function: &str, artifact: &ArtifactStatus) -> Key {
        Self::file(function, artifact, "zip")
    }

    fn file(function: &str, artifact: &ArtifactStatus, ending: &str) -> Key {
        let file = format!("{}.{ending}", artifact.digest.trim_start_matches("sha256:"));
        Key::from_iter(folder(function).into_iter().chain([file]))
    }

    /// The URL that an app reads a package from. With the account's key it is signed; else the app's identity reads it.
    pub(super) async fn url(&self, function: &str, artifact: &ArtifactStatus) -> Result<String, AzureError> {
        let key = Self::key(function, artifact);
        let signed =
            self.store.signed_url(Method::GET, &key, if self.signed { SIGNED_FOR } else { Duration::from_secs(60) });
        let mut url = signed.await.map_err(|error| self.wrong(&error))?;
        if !self.signed {
            url.set_query(None);
        }
        Ok(url.into())
    }

    /// Uploads a package and the documents beside it, unless it is there.
    pub(super) async fn upload(
        &self,
        spec: &FunctionSpec,
        artifact: &ArtifactStatus,
        artifacts: &ArtifactStore,
    ) -> Result<(), AzureError> {
        let function = spec.name.as_str();
        let zip =
            artifacts.path(&artifact.digest).ok_or_else(|| AzureError::lasting("Internal", "a digest is none"))?;
        let key = Self::key(function, artifact);
        match self.store.head(&key).await {
            Ok(found) if found.size == artifact.size => return Ok(()),
            Ok(_) | Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(self.wrong(&error)),
        }
        for document in Document::ALL {
            let Some(text) = artifacts.document_for(&artifact.digest, document, Some(spec)) else { continue };
            self.put(Self::file(function, artifact, document.ending()), text.into_bytes()).await?;
        }
        // Last: what has a package has its documents.
        let _turn = self.uploads.acquire().await;
        let bytes = tokio::fs::read(&zip).await;
        let bytes = bytes.map_err(|error| AzureError::passing("DiskError", format!("{}: {error}", zip.display())))?;
        self.put(key, bytes).await
    }

    async fn put(&self, key: Key, bytes: Vec<u8>) -> Result<(), AzureError> {
        self.store.put(&key, PutPayload::from(bytes)).await.map(drop).map_err(|error| self.wrong(&error))
    }

    /// Removes the packages of a function, but for the newest and for `used`.
    pub(super) async fn sweep(&self, function: &str, used: &ArtifactStatus) -> Result<(), AzureError> {
        let used = Self::key(function, used);
        let found = self.all(function).await?;
        let mut packages: Vec<_> =
            found.iter().filter(|(_, key)| *key != used && key.as_ref().ends_with(".zip")).collect();
        packages.sort_unstable_by(|a, b| b.cmp(a));
        let stem = |key: &Key| key.filename().and_then(|name| name.split('.').next()).unwrap_or_default().to_owned();
        let gone: BTreeSet<String> = packages.into_iter().skip(MAX_PACKAGES).map(|(_, key)| stem(key)).collect();
        for (_, key) in found.iter().filter(|(_, key)| gone.contains(&stem(key))) {
            self.store.delete(key).await.map_err(|error| self.wrong(&error))?;
        }
        Ok(())
    }

    /// Removes every package of a function.
    pub(super) async fn remove(&self, function: &str) -> Result<(), AzureError> {
        for (_, key) in self.all(function).await? {
            match self.store.delete(&key).await {
                Ok(()) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(self.wrong(&error)),
            }
        }
        Ok(())
    }

    /// Packages of a function with the times of their upload, as texts that sort.
    async fn all(&self, function: &str) -> Result<Vec<(String, Key)>, AzureError> {
        let prefix = Key::from_iter(folder(function));
        let listed = self.store.list(Some(&prefix)).map_ok(|found| (found.last_modified.to_rfc3339(), found.location));
        listed.try_collect().await.map_err(|error| self.wrong(&error))
    }

    fn wrong(&self, error: &Error) -> AzureError {
        let container = &self.container;
        let remedy = format!(
            "create the container {container} (az storage container create -n {container}), and give the controller the account's key \
             (AZURE_STORAGE_ACCOUNT_KEY) or its identity the role Storage Blob Data Contributor"
        );
        AzureError::passing("PackageNotStored", format!("cannot store the package: {error}; {remedy}"))
    }
}

/// The folders that the packages of a function are in, the inner one last. No name of a function begins with `_`.
fn folder(function: &str) -> Vec<String> {
    match function.split_once('/') {
        Some((namespace, name)) => vec![format!("_{namespace}"), name.to_owned()],
        None => vec![function.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_another_namespace_are_in_folders_of_their_own() {
        let artifact = ArtifactStatus { digest: "sha256:1".to_owned(), size: 7 };
        for (function, key) in [("words", "words/1.zip"), ("team/words", "_team/words/1.zip"), ("team", "team/1.zip")] {
            assert_eq!(Packages::key(function, &artifact).as_ref(), key);
        }
    }
}
