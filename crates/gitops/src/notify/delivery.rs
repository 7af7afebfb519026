//! One thing to be sent: made of a message and its target, with the secrets as they are now, and delivered once.

use std::{path::Path, sync::Arc};

use aws_lc_rs::hmac;
use berth_git::Credentials;
use berth_registry::{
    commit_status::{self, Mark},
    notify::{self, Notice},
    settings::{CommitStatus, Notification, NotificationKind},
};
use berth_spec::Secret;

use super::{queue::Attempt, smtp};
use crate::GitConfig;

/// Bytes of a secret file: tokens and passwords are far shorter.
const LARGEST_SECRET: u64 = 64 << 10;

/// One thing to be sent.
pub(crate) enum Delivery {
    Http { url: String, headers: Vec<(String, String)>, body: Vec<u8> },
    Mail(Box<smtp::Mail>),
}

/// A mark beside a commit of the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marked {
    pub(crate) sha: String,
    pub(crate) mark: Mark,
    pub(crate) words: String,
}

/// The reason why something was not sent, and whether another attempt may succeed.
pub(crate) struct DeliveryError {
    pub(crate) problem: String,
    pub(crate) attempt: Attempt,
}

/// The error for a problem that a person may mend while the message waits.
fn unready(problem: String) -> DeliveryError {
    DeliveryError { problem, attempt: Attempt::Later }
}

impl Delivery {
    /// A message; `held` others were held back before it.
    pub(crate) async fn of_notice(
        config: &GitConfig,
        target: &Notification,
        notice: &Notice,
        held: u64,
    ) -> Result<Self, DeliveryError> {
        let cluster = &config.cluster;
        let secret = match &target.secret_ref {
            Some(name) => Some(secret(config, name).await.map_err(unready)?),
            None => None,
        };
        if target.kind == NotificationKind::Email {
            let email = notify::email(notice, cluster, held);
            let letter = smtp::Mail::new(target, secret.as_ref(), &config.identity, &email).map_err(unready)?;
            return Ok(Self::Mail(Box::new(letter)));
        }
        let (url, key) = match (&target.url, secret) {
            (Some(url), key) => (url.clone(), key),
            (None, Some(url)) => (url.expose().trim().to_owned(), None),
            (None, None) => return Err(unready("it is not said where to send it: add url or secretRef".to_owned())),
        };
        let body = match target.kind {
            NotificationKind::Slack => notify::slack(notice, cluster, held),
            _ => notify::webhook(notice, cluster, held),
        };
        let body = body.to_string().into_bytes();
        let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        if let Some(key) = key {
            headers.push(("x-berth-signature".to_owned(), format!("sha256={}", sign(&key, &body))));
        }
        Ok(Self::Http { url, headers, body })
    }

    /// A mark beside a commit.
    pub(crate) async fn of_mark(
        config: &Arc<GitConfig>,
        settings: &CommitStatus,
        marked: &Marked,
    ) -> Result<Self, DeliveryError> {
        let repository = config.remote.shown();
        let Marked { sha, mark, words } = marked;
        let request = commit_status::request(settings, &repository, sha, *mark, words).map_err(unready)?;
        let token = match &settings.secret_ref {
            Some(name) => secret(config, name).await.map_err(unready)?,
            None => match own_credentials(config).await {
                // A commit may name any host: the registry's token is for the registry's own.
                Credentials::Token { token, .. } if commit_status::is_at_home(&request.url, &repository) => {
                    Secret::new(token)
                }
                Credentials::Token { .. } => {
                    return Err(unready(format!(
                        "{} is not the registry's own host, and gets no token of it: add commitStatus.secretRef",
                        commit_status::host(&request.url)
                    )));
                }
                _ => {
                    let remedy = "it needs a token: add commitStatus.secretRef, or --source-token-file";
                    return Err(unready(remedy.to_owned()));
                }
            },
        };
        let (header, value) = request.token.header(token.expose().trim());
        let mut headers = vec![("content-type".to_owned(), "application/json".to_owned()), (header.to_owned(), value)];
        headers.extend(request.headers.into_iter().map(|(name, value)| (name.to_owned(), value)));
        Ok(Self::Http { url: request.url, headers, body: request.body.to_string().into_bytes() })
    }

    /// Makes one attempt; the caller decides about further ones.
    pub(crate) async fn deliver(&self, client: &reqwest::Client) -> Result<(), DeliveryError> {
        match self {
            Self::Http { url, headers, body } => {
                let mut request = client.post(url).body(body.clone());
                for (name, value) in headers {
                    request = request.header(name, value);
                }
                let response = request.send().await.map_err(|error| unready(why(error)))?;
                let status = response.status();
                let passing = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
                let attempt = if passing { Attempt::Later } else { Attempt::Never };
                if status.is_success() {
                    Ok(())
                } else {
                    Err(DeliveryError { problem: format!("the answer was {status}"), attempt })
                }
            }
            Self::Mail(letter) => letter.send().await.map_err(|(problem, never)| DeliveryError {
                problem,
                attempt: if never { Attempt::Never } else { Attempt::Later },
            }),
        }
    }
}

/// Reads the credentials for the registry. A token may be in a file.
async fn own_credentials(config: &Arc<GitConfig>) -> Credentials {
    let config = Arc::clone(config);
    let asked = tokio::task::spawn_blocking(move || config.credentials_for(&config.remote));
    asked.await.unwrap_or_default()
}

/// All that is known of a failure but the URL, which may be a secret.
fn why(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        words.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    words
}

/// A secret that `registry.yaml` names. Read each time: it may be replaced while we run.
async fn secret(config: &GitConfig, name: &str) -> Result<Secret, String> {
    let folder = config.secrets.as_ref();
    let folder = folder
        .ok_or_else(|| format!("the secret {name} is not there: --registry-secrets FOLDER says where they are"))?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_name) {
        return Err(format!("{name:?} is no name of a secret: use letters, digits, dashes, dots"));
    }
    read_secret(&folder.join(name)).await
}

async fn read_secret(path: &Path) -> Result<Secret, String> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let size = fs_err::metadata(&path).map_err(|error| error.to_string())?.len();
        if size > LARGEST_SECRET {
            return Err(format!("{} is larger than {LARGEST_SECRET} bytes", path.display()));
        }
        fs_err::read_to_string(&path).map(Secret::new).map_err(|error| error.to_string())
    });
    read.await.map_err(|error| error.to_string())?
}

/// HMAC-SHA-256 of a body, in hex.
pub(crate) fn sign(key: &Secret, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.expose().trim().as_bytes());
    hmac::sign(&key, body).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
