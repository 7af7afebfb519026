//! The digest of a local artifact, taken when it is declared: so a changed file is a new revision, and an unchanged one
//! moves nothing. Artifacts elsewhere are known by their location until a worker has fetched them.

use std::{
    collections::HashMap,
    io::{ErrorKind, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use aws_lc_rs::digest;
use berth_spec::{ByteSize, Digest, deployment::ModelSource};
use url::Url;

/// Digests that are remembered. Halving it hashes files again sooner; an entry is about 200 bytes.
const REMEMBERED: usize = 100_000;

/// Bytes of a file that are read at a time.
const CHUNK: usize = 1 << 20;

/// Result of looking for the artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// Nothing to do: its digest is given, or it is elsewhere.
    NotLocal,
    /// The file is here and hashes to this.
    Hashed { digest: Digest, size: ByteSize },
    /// Unreadable, for this reason.
    Missing { warning: String },
}

impl Resolution {
    pub(crate) fn digest(&self) -> Option<Digest> {
        match self {
            Self::Hashed { digest, .. } => Some(*digest),
            Self::NotLocal | Self::Missing { .. } => None,
        }
    }

    pub(crate) fn size(&self) -> Option<ByteSize> {
        match self {
            Self::Hashed { size, .. } => Some(*size),
            Self::NotLocal | Self::Missing { .. } => None,
        }
    }

    pub(crate) fn warning(&self) -> Option<String> {
        match self {
            Self::Missing { warning } => Some(warning.clone()),
            Self::NotLocal | Self::Hashed { .. } => None,
        }
    }
}

/// Identity of the content of a file: unchanged means that the hash still holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: Option<SystemTime>,
    /// The inode's own change time: a file replaced with its old modification time shows here.
    changed: (i64, i64),
}

/// Hashes local artifacts and remembers the digests.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    known: Mutex<HashMap<PathBuf, (Fingerprint, Digest)>>,
}

/// The path of a local artifact that has no digest of its own.
pub(crate) fn local_artifact(model: &ModelSource) -> Option<PathBuf> {
    if model.sha256.is_some() {
        return None;
    }
    let url = Url::parse(&model.uri).ok().filter(|url| url.scheme() == "file")?;
    url.to_file_path().ok()
}

impl Resolver {
    pub(crate) async fn resolve(self: &std::sync::Arc<Self>, model: &ModelSource) -> Resolution {
        let Some(path) = local_artifact(model) else { return Resolution::NotLocal };
        let resolver = std::sync::Arc::clone(self);
        let shown = path.display().to_string();
        let hashed = tokio::task::spawn_blocking(move || resolver.digest(&path)).await;
        match hashed {
            Ok(Ok(None)) => Resolution::NotLocal,
            Ok(Ok(Some((digest, size)))) => Resolution::Hashed { digest, size },
            Ok(Err(error)) => Resolution::Missing { warning: warning(&shown, &error) },
            Err(stopped) => Resolution::Missing { warning: format!("the artifact {shown} was not read: {stopped}") },
        }
    }

    /// The digest of a file; `None` for a folder: which file of it counts is the worker's to find.
    fn digest(&self, path: &Path) -> std::io::Result<Option<(Digest, ByteSize)>> {
        let sized = |digest, print: Fingerprint| Some((digest, ByteSize(print.size)));
        let Some(before) = fingerprint(path)? else { return Ok(None) };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(path).copied();
        if let Some((_, digest)) = known.filter(|(fingerprint, _)| *fingerprint == before) {
            return Ok(sized(digest, before));
        }
        let digest = hash(path)?;
        // A file that was written to meanwhile is hashed again next time.
        if fingerprint(path)? == Some(before) {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= REMEMBERED {
                known.clear();
            }
            known.insert(path.to_owned(), (before, digest));
        }
        Ok(sized(digest, before))
    }
}

/// Warning for the author of a deployment without a digest.
fn warning(shown: &str, error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => format!("there is no file {shown} yet: put it there, or check spec.model.uri"),
        ErrorKind::PermissionDenied => format!("{shown} may not be read: let Berth's user read it"),
        kind => format!("{shown} cannot be read ({kind}): check the disk"),
    }
}

/// `None` for what is no file.
fn fingerprint(path: &Path) -> std::io::Result<Option<Fingerprint>> {
    let metadata = fs_err::metadata(path)?;
    if !metadata.is_file() {
        return Ok(None);
    }
    Ok(Some(Fingerprint {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.len(),
        modified: metadata.modified().ok(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }))
}

fn hash(path: &Path) -> std::io::Result<Digest> {
    let mut file = fs_err::File::open(path)?;
    let mut context = digest::Context::new(&digest::SHA256);
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            n => context.update(&chunk[..n]),
        }
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.finish().as_ref());
    Ok(Digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_named_once() {
        let nowhere = Path::new("/nonexistent/iris.onnx");
        let error = Resolver::default().digest(nowhere).expect_err("it is not there");
        let said = warning("/nonexistent/iris.onnx", &error);
        assert_eq!(said, "there is no file /nonexistent/iris.onnx yet: put it there, or check spec.model.uri");
    }

    #[test]
    fn a_folder_is_left_to_the_worker() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(Resolver::default().digest(folder.path()).expect("it is there"), None);
    }
}
