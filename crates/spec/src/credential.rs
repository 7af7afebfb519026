//! Credentials of workers for stores, repositories and registries: five types, and whole numbered sets of them.
//!
//! ```text
//! fields (a file, Vault) ──▶ Credential::build ──▶ Granted { credential, scope, expires }
//!                                                     │ by name
//!                              CredentialSet ◀────────┘   granted("s3://models/iris.onnx", Kind::S3)
//!                                 │  to_wire / from_wire: the TLS line to its worker, and nowhere else
//! ```
//!
//! Values are [`Secret`]s: they are not printed, not serialised by accident, and overwritten when they are dropped.

mod azure;
mod fields;
mod scope;
mod secret;
mod wire;

use std::{collections::BTreeMap, fmt, str::FromStr};

pub use self::{
    azure::Azure,
    fields::{Field, FieldValue, Fields, MAX_VALUE, WrongField},
    scope::Scope,
    secret::Secret,
    wire::{InvalidWire, MAX_WIRE},
};
use crate::{Generation, Time};

/// The type of a secret, as files write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `s3_credentials`.
    S3,
    /// `gcs_service_account`.
    Gcs,
    /// `azure_blob_credentials`.
    Azure,
    /// `git_token`.
    Git,
    /// `registry_credentials`.
    Registry,
}

impl Kind {
    /// Every type, in the order of messages.
    pub const ALL: [Self; 5] = [Self::S3, Self::Gcs, Self::Azure, Self::Git, Self::Registry];

    /// As files write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::S3 => "s3_credentials",
            Self::Gcs => "gcs_service_account",
            Self::Azure => "azure_blob_credentials",
            Self::Git => "git_token",
            Self::Registry => "registry_credentials",
        }
    }

    /// The names of all types, for messages.
    #[must_use]
    pub fn names() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = String;
    /// The error says which there are.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| {
            let near = crate::manifest::closest(text, Self::ALL.map(Self::as_str));
            near.map_or_else(|| format!("write one of {}", Self::names()), |near| format!("did you mean {near}?"))
        })
    }
}

/// One credential. Which fields there are, and which of them are secret, is [`Kind::fields`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// An access key of S3 or of what speaks its protocol.
    S3(S3),
    /// A service account of Google Cloud.
    Gcs(Gcs),
    /// An account of Azure Blob Storage.
    Azure(Azure),
    /// Access to Git repositories.
    Git(Git),
    /// A user of a container registry.
    Registry(Registry),
}

/// An access key of S3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3 {
    /// Id of the key, which requests name.
    pub access_key_id: Secret,
    /// The key that signs requests; never sent itself.
    pub secret_access_key: Secret,
    /// The region of its buckets, such as `eu-central-1`.
    pub region: String,
    /// With a temporary key: what makes it valid.
    pub session_token: Option<Secret>,
    /// The service's URL, if that is not AWS.
    pub endpoint: Option<String>,
}

/// A service account of Google Cloud.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gcs {
    /// The JSON document that Google hands out for it.
    pub credentials_json: Secret,
}

/// Access to Git repositories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Git {
    /// The method of authentication.
    pub auth: GitAuth,
    /// The token's rights in the issuer's words: for people, nothing decides by them.
    pub scopes: Vec<String>,
}

/// Authentication at a Git repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitAuth {
    /// A token over HTTPS.
    Token {
        /// The user; most hosts take any.
        username: Option<String>,
        /// The token, sent as the password.
        token: Secret,
    },
    /// A deploy key over SSH.
    DeployKey {
        /// The private key, in OpenSSH's or PEM form, without a passphrase.
        deploy_key: Secret,
        /// The host's keys, as lines of a `known_hosts` file.
        known_hosts: Option<String>,
    },
}

/// A user of a container registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    /// The user that the password is for.
    pub username: String,
    /// The password, or a token in its place.
    pub password: Secret,
    /// The registry's URL; the credential is for this registry unless its scope says otherwise.
    pub registry_url: String,
}

impl Credential {
    /// The type, which decides for which locations it can be used.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::S3(_) => Kind::S3,
            Self::Gcs(_) => Kind::Gcs,
            Self::Azure(_) => Kind::Azure,
            Self::Git(_) => Kind::Git,
            Self::Registry(_) => Kind::Registry,
        }
    }

    /// True if it is of use at a URL of that scheme: a deploy key is not over HTTPS, nor a token over SSH.
    fn speaks(&self, scheme: &str) -> bool {
        match self {
            Self::Git(Git { auth: GitAuth::Token { .. }, .. }) => matches!(scheme, "http" | "https"),
            Self::Git(Git { auth: GitAuth::DeployKey { .. }, .. }) => scheme == "ssh",
            _ => true,
        }
    }
}

/// A credential, what it is for and until when it is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// The credential itself.
    pub credential: Credential,
    /// The hosts and URLs that it may be sent to.
    pub scope: Scope,
    /// When it ends by itself: the end of a Vault lease. A newer set comes before that.
    pub expires: Option<Time>,
}

/// All credentials of one worker, whole and numbered: a newer one replaces an older one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CredentialSet {
    /// Counts the changes.
    pub generation: Generation,
    /// Credentials by the name of their secret in the registry.
    pub secrets: BTreeMap<String, Granted>,
}

impl CredentialSet {
    /// The credential of that kind for a location, with its secret's name and terms: the one whose scope fits most closely,
    /// of several that fit alike the first by name. Also understands `HOST:PATH` of Git and image names without a scheme.
    #[must_use]
    pub fn granted(&self, url: &str, kind: Kind) -> Option<(&str, &Granted)> {
        self.granted_of(url, kind, |_| true)
    }

    /// As [`Self::granted`], of those credentials alone that `suits`.
    #[must_use]
    pub fn granted_of(&self, url: &str, kind: Kind, suits: impl Fn(&Credential) -> bool) -> Option<(&str, &Granted)> {
        let place = scope::place(url, kind)?;
        let mut best: Option<(scope::Closeness, &str, &Granted)> = None;
        for (name, granted) in &self.secrets {
            let credential = &granted.credential;
            if credential.kind() != kind || !credential.speaks(place.scheme()) || !suits(credential) {
                continue;
            }
            let Some(closeness) = granted.scope.closeness(&place) else { continue };
            if best.as_ref().is_none_or(|(found, ..)| closeness > *found) {
                best = Some((closeness, name, granted));
            }
        }
        best.map(|(_, name, granted)| (name, granted))
    }
}

#[cfg(test)]
mod tests;
