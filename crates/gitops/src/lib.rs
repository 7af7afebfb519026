//! A Git registry of models as a source of deployments: what its branch holds is declared, once it is valid; what leaves
//! it is deleted.
//!
//! ```text
//!  poll, webhook, person ─▶ Brain ─PollTip─▶ RegistryReader ── ls-remote ──▶ tip
//!                             │ ◀────────────────────────────────────────────┘
//!                             ├─Validate─▶ RegistryReader ── fetch, validate ──▶ Desired, or a report
//!                             ├─Apply─▶ Snapshot ──▶ berth_control::source
//!                             │             └──▶ checkpoint: the last good commit
//!                             ▼
//!                       SourceStatus ──▶ API          StatusReporter ── observes, writes back ──▶ a branch of its own
//!                                                        └──▶ Notifier ── messages, commit statuses
//! ```
//! Only the leader follows, for its term. Whoever leads next reads the last good commit again; nothing moves by that. A bad
//! commit is never followed. All Git work is on threads that may block, and ends with the term.
//!
//! Not here: the Git program (`berth_git`), the schemas and validation of a registry (`berth_registry`), encrypted secrets and
//! Vault (`berth_secrets`), reconciling (`berth_control::source`).
//!
//! Reading order: [`GitSource`]; `follow`, from the branch to what is declared; `status`, from the fleet to the branch of the
//! actual state; `notify`, messages to people; `webhook`, what hosts send.

mod access;
mod follow;
mod metrics;
mod notify;
mod refusal;
mod status;
mod webhook;

#[cfg(test)]
#[path = "../../../fuzz/mutator.rs"]
mod mutator;

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use berth_control::{
    handle::Error,
    source::{Context, Requests, Source},
};
use berth_git::{Credentials, Identity, Protocols, Remote, SigningKey};
use berth_secrets::Keyring;
use berth_spec::{Origin, Secret};
use futures::{FutureExt, future::BoxFuture};

pub use access::GitCredentials;
pub use metrics::{GitMetrics, SourceMetrics};

/// The settings of a Git source.
#[derive(Clone)]
pub struct GitConfig {
    /// The name of this cluster: the writer in commits, the subject of messages.
    pub cluster: String,
    /// The registry's repository.
    pub remote: Remote,
    /// The branch whose commits are declared.
    pub branch: String,
    /// The protocols that repositories may be reached by, those of model cards too.
    pub protocols: Protocols,
    /// The credentials of repositories, by the origin of their URL (`https://host:port`).
    pub credentials: BTreeMap<String, GitCredentials>,
    /// The interval between polls of the branch.
    pub interval: Duration,
    /// The folder for copies of repositories. A cache: it may be lost.
    pub folder: PathBuf,
    /// The environment of the git program: of it, only what the program needs is passed on.
    pub git: Arc<berth_git::Git>,
    /// The private keys that open `workers/secrets`.
    pub keyring: Arc<Keyring>,
    /// The Vault that may be asked for what `workers/secrets` names there.
    pub vault: Option<berth_secrets::vault::Settings>,
    /// The destination of the actual state, where it is not the one in `registry.yaml`.
    pub write_back: Option<WriteBackTo>,
    /// The author of commits of the actual state.
    pub identity: Identity,
    /// The key that signs these commits.
    pub signing: Option<SigningKey>,
    /// The signing secret of webhooks; `None`: every webhook is taken.
    pub webhook_secret: Option<Arc<Secret>>,
    /// A folder whose files are the secrets that `secretRef` in `registry.yaml` names.
    pub secrets: Option<PathBuf>,
    /// The metrics that this source counts in.
    pub metrics: SourceMetrics,
}

/// The destination of the actual state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteBackTo {
    /// To this branch, which is the controllers' own.
    Branch(String),
    /// To the branch that is followed, which people write, too.
    Followed,
    /// Nowhere: the state stays in Berth.
    Off,
}

impl fmt::Display for WriteBackTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Branch(branch) => write!(f, "branch {branch}"),
            Self::Followed => f.write_str("the branch that is followed"),
            Self::Off => f.write_str("off"),
        }
    }
}

impl fmt::Debug for GitConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GitConfig")
            .field("remote", &self.remote.shown())
            .field("branch", &self.branch)
            .finish_non_exhaustive()
    }
}

impl GitConfig {
    /// `URL#BRANCH`, without credentials.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}#{}", self.remote.shown(), self.branch)
    }

    /// The credentials of a repository; each is for one host alone. Blocks.
    fn credentials_for(&self, remote: &Remote) -> Credentials {
        self.credentials.get(&remote.origin()).map(GitCredentials::read).unwrap_or_default()
    }
}

/// A Git registry as a source of deployments.
#[derive(Debug, Clone)]
pub struct GitSource(Arc<GitConfig>);

impl GitSource {
    /// The source with these settings.
    #[must_use]
    pub fn new(config: GitConfig) -> Self {
        Self(Arc::new(config))
    }
}

impl Source for GitSource {
    fn kind(&self) -> &'static str {
        Origin::GIT
    }

    fn origin(&self) -> Origin {
        Origin::git(&self.0.place())
    }

    fn run(self: Arc<Self>, context: Context, requests: Requests) -> BoxFuture<'static, Result<(), Error>> {
        follow::run(Arc::clone(&self.0), context, requests).boxed()
    }
}
