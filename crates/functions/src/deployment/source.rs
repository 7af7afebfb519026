//! The place of a function's code.

use std::{fmt, path::PathBuf};

use url::Url;

/// The place of a function's code: an archive, a folder, or a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CodeUri {
    /// An archive or a folder of this machine.
    File(PathBuf),
    /// An archive of a web server.
    Http(Url),
    /// An archive in an S3 bucket.
    S3 {
        /// Name of the bucket; its region and account are the controller's.
        bucket: String,
        /// The key of the archive.
        key: String,
    },
    /// An archive in Azure Blob Storage; the account is the controller's.
    AzureBlob {
        /// Name of the container.
        container: String,
        /// The name of the blob.
        blob: String,
    },
    /// A commit of a Git repository.
    Git {
        /// URL of the repository, without `git+`.
        url: String,
        /// The commit: 40 or 64 hexadecimal digits.
        commit: String,
    },
}

const FORMS: &str = "write file:PATH, http(s)://HOST/ARCHIVE, s3://BUCKET/ARCHIVE, azure-blob://CONTAINER/ARCHIVE or git+https://HOST/PATH.git@COMMIT";

impl CodeUri {
    /// Reads a URI.
    ///
    /// # Errors
    /// The reason, with the forms that are understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("git+") {
            return git(rest);
        }
        let (scheme, rest) = text.split_once(':').ok_or_else(|| format!("it has no scheme: {FORMS}"))?;
        match scheme {
            "file" => file(rest),
            "http" | "https" => {
                let url = Url::parse(text).map_err(|error| format!("{error}: {FORMS}"))?;
                if !url.username().is_empty() || url.password().is_some() {
                    return Err("it holds a password, which everybody who reads etcd would see".to_owned());
                }
                Ok(Self::Http(url))
            }
            "s3" => object(rest).map(|(bucket, key)| Self::S3 { bucket, key }),
            "azure-blob" => object(rest).map(|(container, blob)| Self::AzureBlob { container, blob }),
            other => Err(format!("the scheme {other:?} is unknown: {FORMS}")),
        }
    }
}

fn file(rest: &str) -> Result<CodeUri, String> {
    let path = rest.strip_prefix("//localhost/").map(|path| format!("/{path}"));
    let path = path.unwrap_or_else(|| rest.strip_prefix("//").unwrap_or(rest).to_owned());
    match path.starts_with('/') {
        true => Ok(CodeUri::File(PathBuf::from(path))),
        false => Err("the path is not absolute: write file:///FOLDER/ARCHIVE".to_owned()),
    }
}

fn object(rest: &str) -> Result<(String, String), String> {
    let parts = rest.strip_prefix("//").and_then(|rest| rest.split_once('/'));
    match parts {
        Some((bucket, key)) if !bucket.is_empty() && !key.trim_matches('/').is_empty() => {
            Ok((bucket.to_owned(), key.to_owned()))
        }
        _ => Err(format!("the bucket or the name of the archive is missing: {FORMS}")),
    }
}

fn git(rest: &str) -> Result<CodeUri, String> {
    let (url, commit) = rest.rsplit_once('@').unwrap_or((rest, ""));
    let hex = commit.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if !matches!(commit.len(), 40 | 64) || !hex {
        return Err("the commit is missing: write git+https://HOST/PATH.git@COMMIT with all 40 digits".to_owned());
    }
    berth_git::Remote::parse(url, berth_git::Protocols::default().with_local()).map_err(|error| error.to_string())?;
    Ok(CodeUri::Git { url: url.to_owned(), commit: commit.to_owned() })
}

impl fmt::Display for CodeUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Http(url) => {
                // A query may be a signature.
                let mut url = url.clone();
                url.set_query(None);
                url.fmt(f)
            }
            Self::S3 { bucket, key } => write!(f, "s3://{bucket}/{key}"),
            Self::AzureBlob { container, blob } => write!(f, "azure-blob://{container}/{blob}"),
            Self::Git { url, commit } => write!(f, "git+{url}@{commit}"),
        }
    }
}
