//! The location of an artifact: a URI, taken apart.

use std::{path::PathBuf, sync::Arc};

use berth_spec::FailureCategory;
use url::Url;

use super::{checksum, storage::Storage};
use crate::fault::Fault;

/// Kind of store that holds the artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Http,
    S3,
    Gcs,
    Azure,
    /// A path in a storage by name, before it is found (`storage`).
    Storage,
    /// A path in a volume, before it is found.
    Volume,
}

/// Domains of Azure's blobs: `https://ACCOUNT.DOMAIN/CONTAINER/PATH`.
const AZURE: [&str; 2] = ["blob.core.windows.net", "dfs.core.windows.net"];

/// Schemes of locations, as people write them.
const SCHEMES: &str = "file, http, https, s3, gs, az, storage, pvc";

/// The location of an artifact, parsed from its URI.
#[derive(Debug, Clone)]
pub(super) struct Location {
    pub(super) url: Url,
    pub(super) kind: Kind,
    /// The name and type of the secret that opens its store, if the controller handed one out.
    pub(super) secret: Option<String>,
    /// The storage whose credentials open its store; `None`: those of the worker's environment, or the secret, do.
    pub(super) storage: Option<Arc<Storage>>,
    /// The location as it was declared, where a storage or volume stood in it.
    pub(super) written: Option<Url>,
}

impl Location {
    pub(super) fn parse(uri: &str) -> Result<Self, Fault> {
        let invalid = |why: &str| Fault::new(FailureCategory::NotFound, format!("{why}: check spec.model.uri"));
        let url = Url::parse(uri).map_err(|error| {
            let message = format!(
                "spec.model.uri is no uri ({error}): write one such as s3://bucket/iris.onnx, or file:///srv/iris.onnx for a path \
                 ({SCHEMES} exist)"
            );
            Fault::new(FailureCategory::NotFound, message)
        })?;
        let kind = match url.scheme() {
            "file" => Kind::File,
            "http" | "https" => Kind::Http,
            "s3" | "s3a" => Kind::S3,
            "gs" => Kind::Gcs,
            "az" | "azure" | "abfs" | "abfss" => Kind::Azure,
            "storage" => Kind::Storage,
            "pvc" => Kind::Volume,
            other => {
                return Err(invalid(&format!("no store for {other}: locations ({SCHEMES} exist)")));
            }
        };
        if kind != Kind::File && url.host_str().is_none_or(str::is_empty) {
            return Err(invalid(&format!("{uri} names no host or bucket")));
        }
        Ok(Self { url, kind, secret: None, storage: None, written: None })
    }

    /// The path of a `file:` location; `None` of any other.
    pub(super) fn path(&self) -> Option<PathBuf> {
        (self.kind == Kind::File).then(|| self.url.to_file_path().ok()).flatten()
    }

    /// True if it ends with `/`: everything below it is meant.
    pub(super) fn is_folder(&self) -> bool {
        self.kind != Kind::File && self.url.path().ends_with('/')
    }

    /// The location as its author wrote it, with the name of a storage or volume.
    pub(super) fn declared(&self) -> &Url {
        self.written.as_ref().unwrap_or(&self.url)
    }

    /// Names the location in file names: the same for equal locations, and nothing can be read from it.
    pub(super) fn key(&self) -> String {
        checksum::of(self.declared().as_str().as_bytes()).to_string()
    }

    /// For people and logs: without user, password, query and fragment, which carry credentials.
    pub(super) fn shown(&self) -> String {
        let mut url = self.url.clone();
        // Fails only for locations that can have no user at all.
        let _ = (url.set_username(""), url.set_password(None));
        url.set_query(None);
        url.set_fragment(None);
        url.to_string()
    }

    /// Takes what may be secret in this location out of a text from below.
    pub(super) fn redact(&self, text: &str) -> String {
        let secrets = [self.url.query(), self.url.password(), Some(self.url.username())];
        let secrets = secrets.into_iter().flatten().filter(|secret| !secret.is_empty());
        secrets.fold(text.to_owned(), |text, secret| text.replace(secret, "…"))
    }

    /// The account of Azure whose blob service an `https:` location is at. One that carries its own signature is a web
    /// location like any other.
    pub(super) fn azure_account(&self) -> Option<&str> {
        let host = self.url.host_str().filter(|_| self.url.scheme() == "https" && self.url.query().is_none())?;
        let (account, domain) = host.split_once('.')?;
        AZURE.contains(&domain).then_some(account)
    }

    /// The dependency behind the location: what fails together.
    pub(super) fn origin(&self) -> Option<String> {
        let host = self.url.host_str()?;
        match (self.kind, self.url.port()) {
            (Kind::File | Kind::Volume, _) => None,
            (_, Some(port)) => Some(format!("{}://{host}:{port}", self.url.scheme())),
            (_, None) => Some(format!("{}://{host}", self.url.scheme())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_apart() {
        let cases = [
            ("https://u:p@host:8443/a/b.onnx?sig=x#f", "https://host:8443/a/b.onnx", Some("https://host:8443")),
            ("s3://bucket/k/m.onnx", "s3://bucket/k/m.onnx", Some("s3://bucket")),
            ("file:///models/m.onnx", "file:///models/m.onnx", None),
        ];
        for (uri, shown, origin) in cases {
            let location = Location::parse(uri).expect(uri);
            assert_eq!(location.shown(), shown);
            assert_eq!(location.origin().as_deref(), origin);
            assert_eq!(location.redact("failed: sig=x").contains("sig=x"), !uri.contains("sig=x"));
        }
        let account = |uri: &str| Location::parse(uri).expect(uri).azure_account().map(str::to_owned);
        assert_eq!(account("https://acme.blob.core.windows.net/models/m.onnx").as_deref(), Some("acme"));
        for other in [
            "http://acme.blob.core.windows.net/models/m.onnx",
            "https://acme.blob.core.windows.net/models/m.onnx?sig=x",
            "https://acme.blob.core.windows.net.evil.com/models/m.onnx",
            "https://evil.acme.blob.core.windows.net/models/m.onnx",
            "az://models/m.onnx",
        ] {
            assert_eq!(account(other), None, "{other}");
        }
        for bad in ["iris.onnx", "ftp://host/x", "s3:///key", ""] {
            assert_eq!(Location::parse(bad).expect_err(bad).category, FailureCategory::NotFound, "{bad}");
        }
    }
}
