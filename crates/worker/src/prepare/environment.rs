//! Python environments: one for all models with the same packages.
//!
//! ```text
//! recipe: version, packages (those of the lock, if there is one), whether it sees the system's, platform ──hash──▶ NAME
//! NAME/venv/              the environment
//! NAME/requirements.txt   what was asked for
//! NAME/installed.txt      what came of it, with all that it rests on
//! ```

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use berth_spec::{
    ByteSize, CredentialSet, FailureCategory,
    card::{Runtime, requirements::Requirements},
    residency::Preparing,
};
use tokio::sync::RwLock;
use tokio_util::sync::CancellationToken;

use super::{
    Miss, Settings,
    content_store::{ContentStore, Making, PinnedFolder},
    dependency_outcomes::{BlockedDependencies, DependencyOutcomes},
    install_progress::InstallProgress,
    interpreter::Interpreters,
    locked::LockFile,
    program::Program,
    record, requirements,
    system::{self, System},
    uv::{self, PackageSource, RequirementsFile, Uv},
};
use crate::{
    artifacts::{KeyLock, checksum},
    fault::Fault,
};

/// Part of every recipe: raised when environments are made differently, so that old ones are not taken for new ones.
const FORMAT: u32 = 1;

/// The share of the bound that fetched packages may take which no environment uses any more: a quarter, since the next
/// environment often needs the same.
const FETCHED_SHARE: u64 = 4;

/// Makes environments and keeps them.
#[derive(Debug)]
pub(super) struct Environments {
    store: ContentStore,
    /// `uv`'s own folder.
    home: PathBuf,
    bound: ByteSize,
    uv: OnceLock<Uv>,
    interpreters: Interpreters,
    system: System,
    key_lock: KeyLock,
    /// Read by installations; written when what they fetched is swept.
    fetched: RwLock<()>,
}

/// Where the packages of an environment are named.
#[derive(Debug)]
pub(super) enum Packages<'a> {
    OfCard,
    /// In the card, and with all that they need in a lock in its code.
    Locked(LockFile<'a>),
    /// In a file of the artifact, which was read.
    OfArtifact(Requirements),
}

/// An environment on disk.
#[derive(Debug)]
pub(super) struct Environment {
    pub(super) held: PinnedFolder,
    pub(super) name: String,
    pub(super) python: PathBuf,
    pub(super) notes: Vec<String>,
}

/// The ingredients of an environment.
struct Recipe<'a> {
    python_version: &'a str,
    packages: Vec<String>,
    /// True if packages have hashes and are all that may be installed.
    is_locked: bool,
    /// True if it sees the Python libraries of the operating system.
    sees_system: bool,
}

impl Recipe<'_> {
    fn name(&self) -> String {
        let Self { python_version, packages, is_locked: _, sees_system } = self;
        let platform = format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
        let text = format!("{FORMAT}\n{python_version}\n{sees_system}\n{platform}\n{}", packages.join("\n"));
        checksum::of(text.as_bytes()).to_string()
    }
}

/// The order for one environment.
#[derive(Clone, Copy)]
pub(super) struct Order<'a> {
    pub(super) settings: &'a Settings,
    pub(super) keys: &'a CredentialSet,
    pub(super) blocked: &'a BlockedDependencies,
    pub(super) outcomes: &'a DependencyOutcomes,
    pub(super) progress: &'a InstallProgress<'a>,
}

impl Environments {
    pub(super) fn new(store: ContentStore, home: PathBuf, bound: ByteSize) -> std::io::Result<Self> {
        fs_err::create_dir_all(&home)?;
        Ok(Self {
            store,
            home,
            bound,
            uv: OnceLock::new(),
            interpreters: Interpreters::default(),
            system: System::default(),
            key_lock: KeyLock::default(),
            fetched: RwLock::default(),
        })
    }

    /// The environment that a card wants.
    pub(super) async fn get(
        &self,
        runtime: &Runtime,
        packages: Packages<'_>,
        order: Order<'_>,
    ) -> Result<Environment, Miss> {
        let (packages, is_locked) = match packages {
            Packages::OfCard => (requirements::of(runtime)?, false),
            Packages::Locked(lock) => {
                let wanted = requirements::of(runtime)?;
                (lock.packages(&wanted, self.uv(order.settings)?, order.settings).await?, true)
            }
            Packages::OfArtifact(Requirements { packages, is_locked }) => (packages, is_locked),
        };
        let recipe = Recipe {
            python_version: &runtime.python_version,
            packages,
            is_locked,
            sees_system: system::have_python(&runtime.system_packages),
        };
        if !runtime.system_packages.is_empty() {
            order.progress.begin(Preparing::SystemPackages);
        }
        let note = self.system.ensure(&runtime.system_packages, order.settings).await?;
        order.progress.begin(Preparing::Environment(None));
        let name = recipe.name();
        let _alone = self.key_lock.acquire(&name).await;
        let held = match self.here(&name) {
            Some(held) => held,
            None => self.make(&name, &recipe, order).await?,
        };
        let python = uv::python_of(&held.path.join(VENV));
        Ok(Environment { held, name, python, notes: note.into_iter().collect() })
    }

    /// The disk space and the number of its folders, with the packages that were fetched for them.
    pub(super) fn taken(&self) -> (ByteSize, usize) {
        self.store.taken()
    }

    /// One whose interpreter is gone, for the system was upgraded, is not here.
    fn here(&self, name: &str) -> Option<PinnedFolder> {
        self.store.get(name).filter(|held| uv::python_of(&held.path.join(VENV)).exists())
    }

    async fn make(&self, name: &str, recipe: &Recipe<'_>, order: Order<'_>) -> Result<PinnedFolder, Miss> {
        let uv = self.uv(order.settings)?;
        let managed = uv.python(recipe.python_version, order.settings).await;
        let find = self.interpreters.find(recipe.python_version, recipe.sees_system, order.settings, managed);
        let python = find.await?;
        let making = self.store.make(name).map_err(|error| Fault::disk(&error))?;
        let filling = Box::pin(self.fill(uv, &making.path, &python, recipe, order));
        let filled = order.progress.during(filling).await;
        let installed = match filled {
            Ok(installed) => installed,
            Err(miss) => {
                let discarded = tokio::task::spawn_blocking(move || making.discard()).await;
                return Err(discarded.map_or_else(|error| Fault::internal(error).into(), |()| miss));
            }
        };
        let held = finished(making).await?;
        let packages = installed.lines().collect::<Vec<_>>().join(" ");
        tracing::info!(
            event = "environment_created",
            environment = name,
            python = recipe.python_version,
            interpreter = %python.display(),
            size_bytes = held.size.0,
            packages,
        );
        self.sweep().await;
        Ok(held)
    }

    /// Puts the environment into `folder`; gives what is installed in it.
    async fn fill(
        &self,
        uv: &Uv,
        folder: &Path,
        python: &Path,
        recipe: &Recipe<'_>,
        order: Order<'_>,
    ) -> Result<String, Miss> {
        let disk = |error: std::io::Error| Fault::disk(&error);
        let venv = folder.join(VENV);
        uv.venv(order.settings, &venv, python, recipe.sees_system).await?;
        let file = folder.join("requirements.txt");
        fs_err::write(&file, recipe.packages.join("\n") + "\n").map_err(disk)?;
        let inside = uv::python_of(&venv);
        if !recipe.packages.is_empty() {
            let _not_swept = self.fetched.read().await;
            let wanted = RequirementsFile { file: &file, is_locked: recipe.is_locked };
            install(uv, &inside, wanted, order).await?;
            mend(uv, &venv, wanted, order).await?;
            compile(order, &venv, &inside).await;
        }
        let installed = uv.freeze(order.settings, &inside).await?;
        fs_err::write(folder.join("installed.txt"), &installed).map_err(disk)?;
        Ok(installed)
    }

    fn uv(&self, settings: &Settings) -> Result<&Uv, Fault> {
        match self.uv.get() {
            Some(uv) => Ok(uv),
            // One that is not there yet may be installed while the worker runs.
            None => Uv::find(settings, self.home.clone()).map(|uv| self.uv.get_or_init(|| uv)),
        }
    }

    /// Throws away what was fetched, where it is too much; the environments keep what they have of it. Not while
    /// somebody installs.
    async fn sweep(&self) {
        let Ok(_alone) = self.fetched.try_write() else { return };
        let (fetched, most) = (self.home.join("fetched"), self.bound.0 / FETCHED_SHARE);
        let swept = tokio::task::spawn_blocking(move || {
            let surplus = unshared(&fetched).is_ok_and(|size| size > most);
            if surplus { fs_err::remove_dir_all(&fetched) } else { Ok(()) }
        });
        if let Ok(Err(error)) = swept.await {
            tracing::warn!(event = "fetched_packages_not_removed", %error);
        }
    }
}

const VENV: &str = "venv";

/// The most time for compiling what is installed: the largest frameworks have some 20,000 files.
const COMPILE_LIMIT: Duration = Duration::from_secs(600);

/// Compiles what is below the working folder.
const COMPILE: &str = include_str!("compile_packages.py");

/// Compiles the packages, so that models start sooner, but not the packages' own tests: no model imports them, and they
/// are half of many packages. Models work without compiled files, too.
async fn compile(order: Order<'_>, venv: &Path, python: &Path) {
    let compiler = Program::new(python, order.settings.surroundings(), &venv.join("lib"));
    let compiler = compiler.args(["-I", "-c", COMPILE]);
    // A package may have files that are no Python; the compiler says so and goes on.
    if let Err(error) = compiler.run_heard(COMPILE_LIMIT, |line| order.progress.hear(line)).await {
        tracing::warn!(event = "packages_not_compiled", environment = %venv.display(), %error);
    }
}

/// From what was fetched before, if all is there; else from the index, if that may be asked.
async fn install(uv: &Uv, python: &Path, wanted: RequirementsFile<'_>, order: Order<'_>) -> Result<(), Miss> {
    if uv.install(order, python, wanted, PackageSource::Fetched).await.is_ok() {
        return Ok(());
    }
    install_from_index(uv, python, wanted, PackageSource::Index, order).await
}

async fn install_from_index(
    uv: &Uv,
    python: &Path,
    wanted: RequirementsFile<'_>,
    source: PackageSource<'_>,
    order: Order<'_>,
) -> Result<(), Miss> {
    let Order { settings, blocked, outcomes, .. } = order;
    let dependency = Uv::index(settings);
    if let Some(until) = blocked.packages {
        return Err(Miss::HeldOff { dependency, until });
    }
    let installed = uv.install(order, python, wanted, source).await;
    match installed.as_ref().map_err(|fault| fault.category) {
        Err(FailureCategory::Network | FailureCategory::Timeout) => outcomes.failed(dependency),
        Err(FailureCategory::Disk | FailureCategory::Runtime | FailureCategory::Internal) => {}
        _ => outcomes.answered(dependency),
    }
    Ok(installed?)
}

/// Fetches packages again whose files are not as they should be: what was fetched before may have been damaged since.
async fn mend(uv: &Uv, venv: &Path, wanted: RequirementsFile<'_>, order: Order<'_>) -> Result<(), Miss> {
    let damaged = damaged(venv).await?;
    if damaged.is_empty() {
        return Ok(());
    }
    tracing::warn!(event = "packages_damaged", packages = damaged.join(" "), note = "they are fetched again");
    uv.forget(order.settings, &damaged).await?;
    let python = uv::python_of(venv);
    install_from_index(uv, &python, wanted, PackageSource::Again(&damaged), order).await?;
    // Some are published with lists that are wrong: what came fresh from the index is taken as it is.
    let odd = self::damaged(venv).await?;
    if !odd.is_empty() {
        tracing::warn!(event = "packages_unlike_their_list", packages = odd.join(" "));
    }
    Ok(())
}

async fn damaged(venv: &Path) -> Result<Vec<String>, Fault> {
    let (venv, cancel) = (venv.to_owned(), CancellationToken::new());
    // A thread that reads gigabytes ends when nobody waits for it any more.
    let _ends = cancel.clone().drop_guard();
    let work = tokio::task::spawn_blocking(move || record::damaged(&venv, &cancel));
    work.await.map_err(Fault::internal)?.map_err(|error| Fault::disk(&error))
}

async fn finished(making: Making) -> Result<PinnedFolder, Fault> {
    tokio::task::spawn_blocking(move || making.finish()).await.map_err(Fault::internal)?
}

/// The bytes of files that no environment shares.
fn unshared(folder: &Path) -> std::io::Result<u64> {
    let (mut size, mut rooms) = (0, vec![folder.to_owned()]);
    while let Some(room) = rooms.pop() {
        for entry in fs_err::read_dir(room)? {
            let entry = entry?;
            match entry.metadata()? {
                found if found.is_dir() => rooms.push(entry.path()),
                found if found.nlink() == 1 => size += found.len(),
                _ => {}
            }
        }
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_packages_are_one_environment() {
        let recipe = |python_version, packages: &[&str], sees_system| {
            Recipe {
                python_version,
                packages: packages.iter().map(|&p| p.to_owned()).collect(),
                is_locked: false,
                sees_system,
            }
            .name()
        };
        let base = recipe("3.11", &["a==1", "b==2"], false);
        assert_eq!(recipe("3.11", &["a==1", "b==2"], false), base);
        for other in [
            recipe("3.12", &["a==1", "b==2"], false),
            recipe("3.11", &["a==1"], false),
            recipe("3.11", &["a==1", "b==2"], true),
        ] {
            assert_ne!(other, base);
        }
    }
}
