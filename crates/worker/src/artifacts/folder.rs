//! Artifacts of several files: listed, each fetched and checked like any other file, and put together.
//!
//! ```text
//! list (bounded) ──▶ each file: cache? ──▶ download, resumed ──▶ SHA-256 ──▶ cache ──▶ cache/folders/N/PATH (hard links)
//! ```
//! The digest of a folder is the SHA-256 of its sorted lines `DIGEST  PATH`, as `sha256sum` prints them:
//! `find -type f -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum`.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::UNIX_EPOCH,
};

use berth_spec::{ByteSize, Digest, FailureCategory};
use futures::TryStreamExt;
use object_store::{ObjectStore, path::Path as Key};
use tokio_util::sync::CancellationToken;

use super::{
    Artifact, Source,
    cache::{Cache, ContentRecord},
    checksum::{self, Hasher},
    classify::classify,
    location::{Kind, Location},
};
use crate::fault::Fault;

/// The most files of one artifact: far more than models have, and a listing of them takes a few megabytes.
pub(super) const MOST_FILES: usize = 10_000;

/// Files that are fetched at once, each with its own connections: enough to hide the latency of small files.
pub(super) const PARALLEL_FILES: usize = 4;

/// The longest path inside a folder, in bytes: that of a key in S3.
const LONGEST_PATH: usize = 1024;

/// A file of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FolderFile {
    /// Its place in the folder: names with `/` between.
    pub(super) path: String,
    /// Its size in bytes.
    pub(super) size: u64,
}

/// Lists the files below a prefix. What belongs to no model (markers of folders) is left out.
pub(super) async fn list(store: &dyn ObjectStore, prefix: &Key, location: &Location) -> Result<Vec<FolderFile>, Fault> {
    let mut objects = store.list(Some(prefix).filter(|prefix| !prefix.as_ref().is_empty()));
    let mut parts = Vec::new();
    while let Some(object) = objects.try_next().await.map_err(|error| not_listed(&error, location))? {
        let names: Option<Vec<String>> =
            object.location.prefix_match(prefix).map(|names| names.map(|name| name.as_ref().to_owned()).collect());
        let path = names.unwrap_or_default().join("/");
        if path.is_empty() || (object.size == 0 && path.ends_with('/')) {
            continue;
        }
        check_path(&path, location)?;
        parts.push(FolderFile { path, size: object.size });
        if parts.len() > MOST_FILES {
            return Err(too_many(location));
        }
    }
    if parts.is_empty() {
        let message = format!("there are no files below {}: check spec.model.uri", location.shown());
        return Err(Fault::new(FailureCategory::NotFound, message));
    }
    parts.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(parts)
}

/// The reason why a folder cannot be listed. A web server that knows no WebDAV never will.
fn not_listed(error: &object_store::Error, location: &Location) -> Fault {
    let fault = classify(error, location);
    let refuses = ["405", "501"].iter().any(|status| fault.message.contains(&format!("answered {status}")));
    if location.kind != Kind::Http || !refuses {
        return fault;
    }
    let message = format!(
        "{} is a folder, and its web server does not list folders (WebDAV): export the model as one file, or put the \
         folder into an object store",
        location.shown()
    );
    Fault::new(FailureCategory::InvalidModel, message)
}

/// The digest of a folder: SHA-256 of the lines `DIGEST  PATH` of its files, sorted by path.
pub(super) fn digest_of<'a>(files: impl IntoIterator<Item = (&'a str, Digest)>) -> Digest {
    let sorted: BTreeMap<&str, Digest> = files.into_iter().collect();
    let mut hasher = Hasher::new();
    for (path, digest) in sorted {
        hasher.update(format!("{digest}  {path}\n").as_bytes());
    }
    hasher.finish()
}

/// The URI of one file of a folder, from the folder's declared URI.
pub(super) fn uri_of(folder: &Location, path: &str) -> String {
    let mut url = folder.declared().clone();
    let inside = path.replace('%', "%25");
    url.set_path(&format!("{}{inside}", folder.declared().path()));
    url.to_string()
}

/// A folder of links to files of the cache; removed when it is dropped.
#[derive(Debug)]
pub(super) struct Assembled(PathBuf);

impl Assembled {
    /// Makes `root` and links each file into it. Blocks for a moment.
    pub(super) fn make(root: PathBuf, files: &[(String, PathBuf)]) -> io::Result<Arc<Self>> {
        fs_err::create_dir_all(&root)?;
        let made = Arc::new(Self(root));
        for (path, file) in files {
            let place = made.0.join(path);
            if let Some(parent) = place.parent() {
                fs_err::create_dir_all(parent)?;
            }
            fs_err::hard_link(file, &place)?;
        }
        Ok(made)
    }
}

impl Drop for Assembled {
    fn drop(&mut self) {
        // What cannot be removed goes at the next start.
        let _ = fs_err::remove_dir_all(&self.0);
    }
}

/// A folder of this machine, hashed once per state of its files. Links are refused: they may lead out of it. Blocks.
pub(super) fn on_disk(
    cache: &Cache,
    location: &Location,
    root: PathBuf,
    cancel: &CancellationToken,
) -> Result<Artifact, Fault> {
    let disk =
        |error: io::Error| Fault::new(FailureCategory::Disk, format!("{error}: check the disk and the permissions"));
    let mut files = BTreeMap::new();
    let mut open = vec![root.clone()];
    while let Some(dir) = open.pop() {
        for entry in fs_err::read_dir(&dir).map_err(disk)? {
            let entry = entry.map_err(disk)?;
            let kind = entry.file_type().map_err(disk)?;
            let path = entry.path();
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file() {
                let inside = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy().into_owned();
                check_path(&inside, location)?;
                files.insert(inside, entry.metadata().map_err(disk)?);
            } else {
                let message =
                    format!("{} is neither a file nor a folder: a model's folder has no links", path.display());
                return Err(Fault::new(FailureCategory::InvalidModel, message));
            }
            if files.len() + open.len() > MOST_FILES {
                return Err(too_many(location));
            }
        }
    }
    if files.is_empty() {
        let message = format!("the folder {} is empty: check spec.model.uri", root.display());
        return Err(Fault::new(FailureCategory::NotFound, message));
    }
    let size: u64 = files.values().map(std::fs::Metadata::len).sum();
    let state = state_of(&files);
    let digest = match cache.known(&location.key()) {
        Some(known) if known.etag.as_deref() == Some(&state) => known.digest,
        _ => {
            let hashed = files.keys().map(|path| Ok((path.as_str(), checksum::of_file(&root.join(path), cancel)?)));
            let digest = digest_of(hashed.collect::<io::Result<Vec<_>>>().map_err(disk)?);
            // Losing it costs hashing again.
            let _ = cache.remember(&location.key(), &ContentRecord { etag: Some(state), digest, size });
            digest
        }
    };
    Ok(Artifact { source: Source::Folder(root), digest, size: ByteSize(size) })
}

/// A text that changes whenever a file is added, removed or written.
fn state_of(files: &BTreeMap<String, std::fs::Metadata>) -> String {
    let mut hasher = Hasher::new();
    for (path, metadata) in files {
        let modified = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        hasher.update(format!("{path}\0{}\0{}\n", metadata.len(), modified.as_nanos()).as_bytes());
    }
    format!("folder:{}", hasher.finish())
}

/// Refuses paths that lead out of the folder or that no disk takes.
fn check_path(path: &str, location: &Location) -> Result<(), Fault> {
    let plain = |name: &str| !name.is_empty() && name != "." && name != ".." && !name.contains(['\0', '\\']);
    if path.len() <= LONGEST_PATH && !Path::new(path).is_absolute() && path.split('/').all(plain) {
        return Ok(());
    }
    let message = format!("{} has a file with an unusable name ({path:?}): rename it", location.shown());
    Err(Fault::new(FailureCategory::InvalidModel, message))
}

fn too_many(location: &Location) -> Fault {
    let message = format!("{} has more than {MOST_FILES} files: give the folder of one model", location.shown());
    Fault::new(FailureCategory::InvalidModel, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_the_lines_of_sha256sum() {
        let (a, b) = (checksum::of(b"one"), checksum::of(b"two"));
        let lines = format!("{a}  a.bin\n{b}  b/c.bin\n");
        assert_eq!(digest_of([("b/c.bin", b), ("a.bin", a)]), checksum::of(lines.as_bytes()));
    }

    #[test]
    fn paths_stay_inside() {
        let location = Location::parse("s3://bucket/model/").expect("a location");
        for (path, fine) in
            [("a", true), ("a/b c.bin", true), ("../a", false), ("a//b", false), ("/a", false), ("a\\b", false)]
        {
            assert_eq!(check_path(path, &location).is_ok(), fine, "{path}");
        }
        assert_eq!(uri_of(&location, "v 1/50%.bin"), "s3://bucket/model/v%201/50%25.bin");
    }
}
