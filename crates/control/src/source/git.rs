//! A Git registry of models: what its branch holds is declared, once it has passed; what leaves it is deleted.
//!
//! ```text
//!  poll, webhook, person ─▶ Brain ─Look─▶ Eyes ── ls-remote ──▶ tip
//!                             │ ◀────────────────────────────────┘
//!                             ├─Check─▶ Eyes ── fetch, validate ──▶ Desired, or a report
//!                             ├─Apply─▶ declare: terms, credentials, disabled first, the rest, deletions last
//!                             │             └──▶ store /sources/git: the last good commit
//!                             ▼
//!                           Board ──▶ API                Scribe ── observes, writes back ──▶ its own branch
//!                                                          └──▶ Herald ── notifications, marks beside commits
//! ```
//! Only the leader has one, for its term. Whoever leads next reads the last good commit again; nothing moves by that.
//! A bad commit is never followed. All Git work is on threads that may block, and ends with the term.

mod brain;
mod declare;
mod driver;
mod entrance;
mod eyes;
mod halt;
mod herald;
mod hook;
mod incident;
mod metrics;
mod observe;
mod post;
mod publish;
mod safekeeping;
mod scribe;
mod tell;
mod told;

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use berth_git::{Credentials, Identity, Protocols, Remote, SigningKey};
use berth_secrets::Keyring;
use berth_spec::{Epoch, Origin, Secret};
use tokio_util::sync::CancellationToken;

pub use driver::forget;
pub use entrance::Entrance;
pub(crate) use hook::proved;
pub use metrics::SourceMetrics;

use crate::{
    Handle,
    handle::{self},
};

/// How the registry is followed.
#[derive(Clone)]
pub struct GitConfig {
    /// The name of this cluster: the writer in commits, the subject of messages.
    pub cluster: String,
    /// The registry.
    pub remote: Remote,
    /// The branch that is followed.
    pub branch: String,
    /// How repositories may be reached, those of model cards too.
    pub protocols: Protocols,
    /// How they are entered: by the origin of their URL (`https://host:port`).
    pub credentials: BTreeMap<String, Entrance>,
    /// How often the branch is asked for.
    pub interval: Duration,
    /// Where copies of repositories are kept. A cache: it may be lost.
    pub folder: PathBuf,
    /// The environment of the git program: of it, only what the program needs is passed on.
    pub git: Arc<berth_git::Git>,
    /// The private keys that open `workers/secrets`.
    pub keyring: Arc<Keyring>,
    /// The Vault that may be asked for what `workers/secrets` names there.
    pub vault: Option<berth_secrets::vault::Settings>,
    /// Where the actual state is written, if not as `registry.yaml` says.
    pub write_back: Option<WriteBackTo>,
    /// Who writes it.
    pub identity: Identity,
    /// What our commits are signed with.
    pub signing: Option<SigningKey>,
    /// What webhooks have to prove that they know.
    pub webhook_secret: Option<Arc<Secret>>,
    /// A folder whose files are the secrets that `secretRef` in `registry.yaml` names.
    pub secrets: Option<PathBuf>,
    /// What Prometheus is told.
    pub metrics: SourceMetrics,
}

/// Where the actual state is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteBackTo {
    /// To this branch, which is the controllers' own.
    Branch(String),
    /// To the branch that is followed.
    Followed,
    /// Nowhere.
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
    /// The owner of what is declared in it.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin::Git(self.place())
    }

    /// `URL#BRANCH`, without credentials.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}#{}", self.remote.shown(), self.branch)
    }

    /// How a repository is entered: a credential is for one host alone. Blocks.
    fn credentials_for(&self, remote: &Remote) -> Credentials {
        self.credentials.get(&remote.origin()).map(Entrance::credentials).unwrap_or_default()
    }
}

/// Follows a Git registry.
#[derive(Debug, Clone)]
pub struct GitSource(Arc<GitConfig>);

impl GitSource {
    /// Follows it as `config` says, once it is run.
    #[must_use]
    pub fn new(config: GitConfig) -> Self {
        Self(Arc::new(config))
    }

    /// Follows the registry until `shutdown`, for the term `epoch` (0: this process is alone). What is declared stays when
    /// it ends.
    ///
    /// # Errors
    /// [`handle::Error::Stopped`] when the control plane has stopped. Everything else is told and tried again.
    pub async fn run(self, handle: Handle, epoch: Epoch, shutdown: CancellationToken) -> Result<(), handle::Error> {
        driver::run(self.0, handle, epoch, shutdown).await
    }
}
