//! Storages by name, as the Secret `storage-config` of ModelMesh and KServe describes them.
//!
//! ```text
//! storage://KEY/PATH?bucket=B ─▶ the entry KEY, read for each fetch ─▶ s3://B/PATH, with the entry's credentials
//! s3://B/PATH                 ─▶ the entry `default_s3`, or `default`, where the controller hands out no credentials
//! pvc://NAME/PATH             ─▶ VOLUMES/NAME/PATH
//! ```
//! Without a configuration a location with a bucket is that bucket, with the credentials of the environment.

mod entry;
mod secret;

use std::{
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use berth_spec::FailureCategory;
use url::Url;

use self::entry::StorageEntry;
pub(super) use self::entry::{Access, Principal, Web};
use super::location::{Kind, Location};
use crate::fault::Fault;

/// The folder of volumes unless somebody says: that of ModelMesh's puller.
pub const VOLUMES: &str = "/pvc_mounts";

/// The entry that stands for no name.
const DEFAULT: &str = "default";

/// The declaration of the storages that models name, and the folder of their volumes.
#[derive(Debug, Clone)]
pub struct StorageSettings {
    /// The Secret: its manifest, or a folder with a file per entry, as Kubernetes mounts it.
    pub config: Option<PathBuf>,
    /// The folder in which volumes are mounted by their names.
    pub volumes: PathBuf,
}

impl Default for StorageSettings {
    fn default() -> Self {
        Self { config: None, volumes: PathBuf::from(VOLUMES) }
    }
}

/// A storage as it was when a fetch began.
#[derive(Debug)]
pub(super) struct Storage {
    /// Its name and state: what a store that is open is known by.
    pub(super) key: String,
    pub(super) access: Access,
}

/// True if [`resolve`] reads the disk for this location; it gives all others back as they are.
pub(super) fn reads(settings: &StorageSettings, location: &Location) -> bool {
    match location.kind {
        Kind::Volume | Kind::Storage => true,
        Kind::S3 | Kind::Gcs | Kind::Azure => location.secret.is_none() && settings.config.is_some(),
        Kind::File | Kind::Http => false,
    }
}

/// Gives a location its storage. Blocks for the moment that a small file takes.
pub(super) fn resolve(settings: &StorageSettings, location: Location) -> Result<Location, Fault> {
    match location.kind {
        Kind::Volume => volume(settings, location.url.host_str().unwrap_or_default(), &location),
        Kind::Storage => stored(settings, location),
        Kind::S3 | Kind::Gcs | Kind::Azure if location.secret.is_none() => usual(settings, location),
        _ => Ok(location),
    }
}

fn stored(settings: &StorageSettings, location: Location) -> Result<Location, Fault> {
    let name = location.url.host_str().unwrap_or_default().to_owned();
    let parameter =
        |wanted: &str| location.url.query_pairs().find(|(key, _)| key == wanted).map(|(_, value)| value.into_owned());
    let kind = parameter("type");
    let bucket = parameter("bucket").or_else(|| parameter("container"));
    let (found, entry) = match &settings.config {
        Some(config) => named(config, &name, kind.as_deref())?,
        None => (name.clone(), StorageEntry::of_environment(kind.as_deref().unwrap_or("s3"), &name)?),
    };
    if kind.as_deref().is_some_and(|kind| entry::kind(kind) != Some(entry.kind)) {
        return Err(wrong(&found, &format!("it is of another type than {:?}", kind.unwrap_or_default())));
    }
    let path = location.url.path().trim_start_matches('/');
    let url = match entry.kind {
        Kind::Volume => return volume(settings, entry.place.as_deref().unwrap_or_default(), &location),
        Kind::Http => {
            let base = entry.place.as_deref().unwrap_or_default().trim_end_matches('/');
            format!("{base}/{}", path.trim_end_matches('/'))
        }
        kind => {
            let scheme = match kind {
                Kind::Gcs => "gs",
                Kind::Azure => "az",
                _ => "s3",
            };
            let Some(bucket) = bucket.or(entry.place) else {
                let remedy = "name one in the storage's entry, or as the parameter bucket of the model's storage";
                return Err(wrong(&found, &format!("no bucket is named: {remedy}")));
            };
            format!("{scheme}://{bucket}/{path}")
        }
    };
    let url = Url::parse(&url).map_err(|error| wrong(&found, &format!("it leads to no location ({error})")))?;
    let storage = entry.access.map(|access| Arc::new(Storage { key: format!("{found} {}", entry.state), access }));
    let secret = storage.is_some().then(|| format!("{found} (storage-config)"));
    Ok(Location { url, kind: entry.kind, secret, storage, written: Some(location.url) })
}

/// The entry of a name; no name is the usual entry of a type.
fn named(config: &Path, name: &str, kind: Option<&str>) -> Result<(String, StorageEntry), Fault> {
    let usual = kind.filter(|_| name == DEFAULT).map(|kind| format!("{DEFAULT}_{kind}"));
    for name in usual.iter().map(String::as_str).chain([name]) {
        if let Some(text) = secret::entry(config, name).map_err(|reason| wrong(name, &reason))? {
            return Ok((name.to_owned(), StorageEntry::parse(&text).map_err(|reason| wrong(name, &reason))?));
        }
    }
    Err(wrong(name, &format!("there is none of that name in {}", config.display())))
}

/// A bucket that names no storage: the usual entry of its type, if there is one.
fn usual(settings: &StorageSettings, location: Location) -> Result<Location, Fault> {
    let Some(config) = &settings.config else { return Ok(location) };
    let kind = match location.kind {
        Kind::Gcs => "gcs",
        Kind::Azure => "azure",
        _ => "s3",
    };
    for name in [format!("{DEFAULT}_{kind}"), DEFAULT.to_owned()] {
        let Some(text) = secret::entry(config, &name).map_err(|reason| wrong(&name, &reason))? else { continue };
        let entry = StorageEntry::parse(&text).map_err(|reason| wrong(&name, &reason))?;
        if let Some(access) = entry.access.filter(|_| entry.kind == location.kind) {
            let storage = Arc::new(Storage { key: format!("{name} {}", entry.state), access });
            let secret = Some(format!("{name} (storage-config)"));
            return Ok(Location { storage: Some(storage), secret, ..location });
        }
    }
    Ok(location)
}

/// A path in a volume, which no link leads out of.
fn volume(settings: &StorageSettings, name: &str, location: &Location) -> Result<Location, Fault> {
    let shown = location.shown();
    let outside =
        || Fault::new(FailureCategory::NotFound, format!("{shown} leads out of its volume: check spec.model.uri"));
    let missing = |error: std::io::Error| {
        let at = settings.volumes.display();
        let message = format!(
            "{shown} cannot be read ({error}): volumes are mounted in {at} of the worker, or where --volumes says"
        );
        Fault::new(FailureCategory::NotFound, message)
    };
    let inside = location.url.path().trim_matches('/');
    let inside =
        Url::parse(&format!("file:///{inside}")).ok().and_then(|url| url.to_file_path().ok()).ok_or_else(outside)?;
    let inside = inside.strip_prefix("/").unwrap_or(&inside);
    let plain = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || name.contains('/') || !plain(Path::new(name)) || !plain(inside) {
        return Err(outside());
    }
    let root = settings.volumes.join(name).canonicalize().map_err(missing)?;
    let path = root.join(inside).canonicalize().map_err(missing)?;
    if !path.starts_with(&root) {
        return Err(outside());
    }
    let url = Url::from_file_path(&path).map_err(|()| outside())?;
    Ok(Location { url, kind: Kind::File, secret: None, storage: None, written: Some(location.url.clone()) })
}

fn wrong(name: &str, reason: &str) -> Fault {
    let message = format!("the storage {name} of this worker cannot be used: {reason} (docs/runtimes.md#storages)");
    Fault::new(FailureCategory::Auth, message)
}

#[cfg(test)]
mod tests;
