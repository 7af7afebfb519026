//! Gets ready what a model card's model needs beside its artifact: its code at the exact commit, and an environment with
//! its packages.
//!
//! ```text
//! PinnedCard ──▶ checkout ──▶ system packages ──▶ environment ──▶ PreparedModel ─┐
//!                (store)      (check | install)   (store, uv)          ├─▶ Prepared ──▶ the Python runtime
//! the artifact and its configuration, fetched like any other ─────────┘
//! ```
//! A card whose code is part of Berth begins at the environment. Where a file in its artifact lists the packages
//! (`own_requirements`), that was fetched before.
//!
//! Checkouts and environments are shared by all models that want the same, survive restarts, and are bounded: the least
//! recently used go first. What is here is used without asking anybody. Not here: running the code.

mod checkout;
mod content_store;
mod dependency_outcomes;
mod environment;
mod install_progress;
mod interpreter;
mod locked;
mod own_requirements;
mod program;
mod record;
mod requirements;
mod settings;
mod system;
mod toolchain;
mod uv;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use berth_spec::{ByteSize, CredentialSet, PinnedCard, Time, residency::Preparing};
use tokio::sync::watch;

use self::{
    checkout::Checkouts,
    content_store::ContentStore,
    dependency_outcomes::DependencyOutcomes,
    environment::{Environments, Order, Packages},
    install_progress::InstallProgress,
    locked::LockFile,
};
pub use self::{
    dependency_outcomes::BlockedDependencies,
    settings::{Settings, SystemPackages},
    toolchain::Toolchain,
    uv::VERSION as UV_VERSION,
};
use crate::{
    artifacts::{KeyLock, Source},
    breaker::Dependency,
    fault::Fault,
};

/// All that a card's model is loaded with, beside the artifact. What it names stays on disk while it lives: keep it for
/// as long as the model's process may be started again.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The root of the checkout, shared by all models of that commit: nothing may write to it.
    pub code: PathBuf,
    /// The interpreter of the environment, shared by all models with the same packages.
    pub python: PathBuf,
    /// The file that `artifacts.config_path` names, on disk.
    pub config: Option<PathBuf>,
    /// The environment's content hash.
    pub environment: String,
    /// The disk space of the environment.
    pub environment_size: ByteSize,
    /// Things worth knowing that did not stop it, for the replica's note.
    pub notes: Vec<String>,
    /// Keeps all of it on disk.
    #[expect(dead_code, reason = "it is held, not read")]
    pin: Pins,
}

impl Prepared {
    /// From folders that the caller looks after: a card that is run where it lies.
    #[must_use]
    pub fn of(code: impl Into<PathBuf>, python: impl Into<PathBuf>) -> Self {
        Self {
            code: code.into(),
            python: python.into(),
            config: None,
            environment: String::new(),
            environment_size: ByteSize::ZERO,
            notes: Vec::new(),
            pin: Pins::default(),
        }
    }
}

/// The preparations for a card, made before its artifact came.
#[derive(Debug, Clone)]
pub struct PreparedModel {
    code: PathBuf,
    python: PathBuf,
    environment: String,
    environment_size: ByteSize,
    notes: Vec<String>,
    pin: Pins,
}

impl PreparedModel {
    /// The same, which also keeps this on disk.
    #[must_use]
    pub fn keeping(mut self, also: Arc<dyn std::any::Any + Send + Sync>) -> Self {
        self.pin.0.push(also);
        self
    }

    /// With the configuration that `artifacts.config_path` names, and whatever else must stay on disk.
    #[must_use]
    pub fn with(self, config: Option<PathBuf>, also: Vec<Arc<dyn std::any::Any + Send + Sync>>) -> Prepared {
        let Self { code, python, environment, environment_size, notes, mut pin } = self;
        pin.0.extend(also);
        Prepared { code, python, config, environment, environment_size, notes, pin }
    }
}

/// The reason why preparing failed.
#[derive(Debug, Clone, PartialEq)]
pub enum Miss {
    /// Tried, and failed.
    Failed(Fault),
    /// Not tried: it needs a dependency that is left alone until then.
    HeldOff {
        /// The dependency.
        dependency: Dependency,
        /// Until when.
        until: Time,
    },
}

impl From<Fault> for Miss {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault)
    }
}

/// The result of preparing a card.
#[derive(Debug)]
pub struct Outcome {
    /// The prepared model, or why it could not be prepared.
    pub result: Result<PreparedModel, Miss>,
    /// The dependencies that were asked, and `true` for those that answered.
    pub outcomes: Vec<(Dependency, bool)>,
}

/// Makes kits. One per worker.
#[derive(Debug)]
pub struct Preparer {
    settings: Settings,
    checkouts: Arc<Checkouts>,
    environments: Environments,
    keys: watch::Receiver<Arc<CredentialSet>>,
    /// One checkout of a commit at a time.
    key_lock: KeyLock,
    /// An empty folder: the code of cards that have none of their own.
    no_code: PathBuf,
}

/// The `uv` that makes environments of Python models.
///
/// # Errors
/// The program is in none of the usual places; the message says how to get it.
pub fn find_uv(settings: &Settings) -> Result<PathBuf, Fault> {
    uv::Uv::find(settings, PathBuf::new()).map(|uv| uv.program().to_owned())
}

/// The versions of Python, `MAJOR.MINOR`, that cards can name on this machine, each with its interpreter.
pub async fn pythons(settings: &Settings) -> Vec<(String, PathBuf)> {
    interpreter::all(settings).await
}

impl Preparer {
    /// Keeps everything below `root`; checkouts and environments each take at most `bound`. Blocks.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn open(
        root: &Path,
        bound: ByteSize,
        settings: Settings,
        keys: watch::Receiver<Arc<CredentialSet>>,
    ) -> Result<Self, Fault> {
        let disk = |error: std::io::Error| Fault::disk(&error);
        // Programs run in other folders than this process.
        fs_err::create_dir_all(root).map_err(disk)?;
        let root = fs_err::canonicalize(root).map_err(disk)?;
        let store = |name: &'static str| ContentStore::open(root.join(name), bound, name).map_err(disk);
        let checkouts = Arc::new(Checkouts::new(&settings, store("checkouts")?));
        let environments = Environments::new(store("environments")?, root.join("uv"), bound).map_err(disk)?;
        let no_code = root.join("no-code");
        fs_err::create_dir_all(&no_code).map_err(disk)?;
        Ok(Self { settings, checkouts, environments, keys, key_lock: KeyLock::default(), no_code })
    }

    /// Makes what `card` needs. Dropping the future stops it. `tell` hears what is being done.
    pub async fn prepare(
        &self,
        card: &Arc<PinnedCard>,
        blocked: BlockedDependencies,
        tell: &(dyn Fn(Preparing) + Send + Sync),
    ) -> Outcome {
        self.prepare_for(card, None, blocked, tell).await
    }

    /// The same for a card whose artifact is here already, as it lists the packages.
    pub async fn prepare_for(
        &self,
        card: &Arc<PinnedCard>,
        artifact: Option<&Source>,
        blocked: BlockedDependencies,
        tell: &(dyn Fn(Preparing) + Send + Sync),
    ) -> Outcome {
        let outcomes = Arc::new(DependencyOutcomes::default());
        let result = self.make(card, artifact, blocked, &outcomes, tell).await;
        Outcome { result, outcomes: outcomes.take() }
    }

    /// The disk space of environments, and their number.
    #[must_use]
    pub fn environments(&self) -> (ByteSize, usize) {
        self.environments.taken()
    }

    async fn make(
        &self,
        card: &Arc<PinnedCard>,
        artifact: Option<&Source>,
        blocked: BlockedDependencies,
        outcomes: &Arc<DependencyOutcomes>,
        tell: &(dyn Fn(Preparing) + Send + Sync),
    ) -> Result<PreparedModel, Miss> {
        // What they are now: a newer set is for the next one.
        let keys = Arc::clone(&self.keys.borrow());
        let progress = InstallProgress::new(tell);
        if card.is_built_in() {
            let order =
                Order { settings: &self.settings, keys: &keys, blocked: &blocked, outcomes, progress: &progress };
            let packages = match card.own_requirements() {
                Some(file) => Packages::OfArtifact(own_requirements::read(artifact, file).await?),
                None => Packages::OfCard,
            };
            let environment = self.environments.get(&card.card.runtime, packages, order).await?;
            return Ok(PreparedModel {
                code: self.no_code.clone(),
                python: environment.python,
                environment: environment.name,
                environment_size: environment.held.size,
                notes: environment.notes,
                pin: Pins(vec![Arc::new(environment.held)]),
            });
        }
        progress.begin(Preparing::Code);
        let code = {
            let alone = self.key_lock.acquire(&Checkouts::name_of(card)).await;
            let (checkouts, card) = (Arc::clone(&self.checkouts), Arc::clone(card));
            let (keys, outcomes) = (Arc::clone(&keys), Arc::clone(outcomes));
            let cancelled = Cancels(Arc::default());
            let flag = Arc::clone(&cancelled.0);
            let work = move || {
                // Also when nobody waits any more, until it has stopped.
                let _alone = alone;
                checkouts.get(&card, &keys, &blocked, &outcomes, flag)
            };
            tokio::task::spawn_blocking(work).await.map_err(Fault::internal)??
        };
        let order = Order { settings: &self.settings, keys: &keys, blocked: &blocked, outcomes, progress: &progress };
        let files = code.held.path.join(checkout::FILES);
        let packages = match card.card.runtime.dependencies_lock.as_deref() {
            Some(path) => Packages::Locked(LockFile { code: &files, path }),
            None => Packages::OfCard,
        };
        let environment = self.environments.get(&card.card.runtime, packages, order).await?;
        Ok(PreparedModel {
            code: files,
            python: environment.python,
            environment: environment.name,
            environment_size: environment.held.size,
            notes: code.notes.into_iter().chain(environment.notes).collect(),
            pin: Pins(vec![Arc::new(code.held), Arc::new(environment.held)]),
        })
    }
}

/// Raises a flag when nobody waits any more.
struct Cancels(Arc<AtomicBool>);

impl Drop for Cancels {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The Git host that a card's code comes from; `None` for a repository of this machine and for what is no URL.
#[must_use]
pub fn git_host(card: &PinnedCard) -> Option<Dependency> {
    if card.is_built_in() {
        return None;
    }
    let local = berth_git::Protocols::default().with_local().with_http();
    berth_git::Remote::parse(&card.card.code.repository, local).ok().as_ref().and_then(checkout::dependency)
}

/// Whatever keeps something on disk, until the last clone goes.
#[derive(Clone, Default)]
struct Pins(Vec<Arc<dyn std::any::Any + Send + Sync>>);

impl fmt::Debug for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pins({})", self.0.len())
    }
}
