//! The digest of a local artifact, taken when it is declared: so a changed file is a new revision, and an unchanged one
//! moves nothing. Artifacts elsewhere are known by their location until a worker has fetched them.

mod hashing;
mod pool;

use std::{io::ErrorKind, path::PathBuf};

use berth_spec::{ByteSize, Digest, deployment::ModelSource};
use url::Url;

use self::pool::Pool;

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

/// Hashes local artifacts and remembers the digests.
#[derive(Debug, Default)]
pub(crate) struct Resolver(Pool);

/// The path of a local artifact that has no digest of its own.
pub(crate) fn local_artifact(model: &ModelSource) -> Option<PathBuf> {
    if model.sha256.is_some() {
        return None;
    }
    let url = Url::parse(&model.uri).ok().filter(|url| url.scheme() == "file")?;
    url.to_file_path().ok()
}

impl Resolver {
    /// Looks for the artifact. Dropping the future ends the work. A folder is not hashed: which file of it counts is the
    /// worker's to find.
    pub(crate) async fn resolve(&self, model: &ModelSource) -> Resolution {
        let Some(path) = local_artifact(model) else { return Resolution::NotLocal };
        let shown = path.display().to_string();
        match self.0.hash(path).await {
            Ok(None) => Resolution::NotLocal,
            Ok(Some((digest, size))) => Resolution::Hashed { digest, size },
            Err(error) => Resolution::Missing { warning: warning(&shown, &error) },
        }
    }
}

/// Warning for the author of a deployment without a digest.
fn warning(shown: &str, error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => format!("there is no file {shown} yet: put it there, or check spec.model.uri"),
        ErrorKind::PermissionDenied => format!("{shown} may not be read: let Berth's user read it"),
        ErrorKind::TimedOut => format!("{shown} takes too long to hash: give its digest in spec.model.sha256"),
        kind => format!("{shown} cannot be read ({kind}): check the disk"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_path_is_named_once() {
        let error = Pool::default().hash("/nonexistent/iris.onnx".into()).await.expect_err("it is not there");
        let said = warning("/nonexistent/iris.onnx", &error);
        assert_eq!(said, "there is no file /nonexistent/iris.onnx yet: put it there, or check spec.model.uri");
    }
}
