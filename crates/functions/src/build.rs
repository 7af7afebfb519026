//! From a spec to an artifact: a ZIP file laid out for Azure Functions, the same bytes for the same inputs.
//!
//! ```text
//! spec ──▶ fetch ──▶ unpack ──▶ digest of the tree ──┬─ built before ─────────────────────────────────────────────▶ cache ─┐
//!                                                    └─▶ packages (network) ──▶ bundle (no network) ──▶ layout ──▶ zip ────┤
//!                                                           goes to Azure: loaded and asked once in the worker's library ◀┘
//! ```
//! Each build has a folder of its own, which goes with it. Everything that it does is bounded: bytes, files, time, memory,
//! processes, output. Programs of strangers run in `sandbox`.

mod arrival;
mod artifacts;
mod container;
pub mod copies;
mod documents;
mod fetch;
mod git;
mod javascript;
mod layout;
mod lock;
mod log;
mod package_cache;
mod packages;
mod python;
mod registries;
mod requirements;
mod sandbox;
mod tree;
mod unpack;
mod worker_check;
mod zipped;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use berth_spec::network::Destination;
use berth_worker::{
    breaker::Dependency,
    prepare::{Settings, Toolchain},
};

use tracing::Instrument as _;

pub use self::{
    arrival::Arrival,
    artifacts::ArtifactStore,
    documents::Document,
    layout::{MANIFEST, Manifest},
    log::BuildLog,
};
use self::{
    container::Container,
    documents::Outcome,
    lock::Lock,
    package_cache::{MAX_CACHE_BYTES, PackageCache},
    packages::Package,
    registries::Registries,
    sandbox::{Sandbox, on_path},
    tree::Tree,
};
pub(crate) use self::{
    javascript::find_node,
    log::{append_to_log, end_of_file},
    python::VERSION as PYTHON_VERSION,
    sandbox::{Bubblewrap, NetworkReach, Walls, fenced},
    unpack::{stoppable, unpack_zip},
};
use crate::{
    controller::{Built, Failure, Retry, Task, TaskId},
    dependencies::{self, BreakerOpen, Dependencies},
    deployment::{FunctionSpec, Language, Platform, file_stem},
    driver::now,
    status::ArtifactStatus,
};

/// The longest step of a build: gigabytes of packages over a slow line, the bundle of a large project.
const LONGEST_STEP: Duration = Duration::from_secs(1_800);

/// Version of the layout: artifacts of another one are built anew.
const LAYOUT: &str = "5";

/// Settings of builds.
#[derive(Debug, Clone)]
pub struct BuildConfig {
    /// Folder for work, logs, caches and artifacts.
    pub root: PathBuf,
    /// Credentials of object stores, by the variable names of their own tools.
    pub credentials: BTreeMap<String, String>,
    /// Settings of `uv` and interpreters.
    pub python: Settings,
    /// True if no function goes to Azure, whatever its spec says.
    pub all_local: bool,
    /// Artifacts that are kept beyond those in use.
    pub kept: usize,
    /// The image of podman that builds run in; `None`: they run with the tools of this machine.
    pub image: Option<String>,
    /// Hosts that packages are fetched from beside the registries that the environment names.
    pub hosts: Vec<Destination>,
    /// The program that gives steps a network of their own: one that calls [`berth_sandbox::entered`] first. `None`: there is none.
    pub launcher: Option<PathBuf>,
}

/// Builds functions. One per controller.
#[derive(Debug)]
pub struct Builder {
    config: BuildConfig,
    toolchain: Arc<Toolchain>,
    /// Packages that uv has fetched.
    uv_cache: PackageCache,
    /// The same of npm.
    npm_cache: PackageCache,
    artifacts: Arc<ArtifactStore>,
    sandbox: Sandbox,
    dependencies: Arc<Dependencies>,
}

/// Reason why a build failed.
#[derive(Debug)]
pub(crate) struct BuildError {
    reason: &'static str,
    message: String,
    retry: Retry,
    /// True if a dependency gave no answer, or one with a passing fault.
    away: bool,
}

impl BuildError {
    /// Somebody has to change something.
    pub(crate) fn lasting(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry: Retry::Never, away: false }
    }

    /// The same may succeed later.
    pub(crate) fn passing(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry: Retry::Later, away: false }
    }

    /// A dependency gives no answer.
    pub(crate) fn away(reason: &'static str, message: impl Into<String>) -> Self {
        Self { away: true, ..Self::passing(reason, message) }
    }

    /// The failure that the controller hears of.
    pub(crate) fn into_failure(self, log_tail: String, took: Duration) -> Failure {
        let Self { reason, message, retry, .. } = self;
        Failure { reason, message, retry, log_tail, took }
    }

    /// The message alone.
    pub(crate) fn text(self) -> String {
        self.message
    }

    /// A disk of ours.
    pub(crate) fn disk(error: &io::Error) -> Self {
        Self::passing("DiskError", format!("{error}: check the disk of --data"))
    }
}

impl From<BreakerOpen> for BuildError {
    fn from(BreakerOpen { message, until }: BreakerOpen) -> Self {
        Self { retry: Retry::At(until), ..Self::passing("LeftAlone", message) }
    }
}

impl From<io::Error> for BuildError {
    fn from(error: io::Error) -> Self {
        Self::disk(&error)
    }
}

/// A build that runs: its folder goes with it.
struct Workplace<'a> {
    spec: &'a FunctionSpec,
    /// Folder of this build alone.
    folder: PathBuf,
    log: &'a BuildLog,
    notes: Vec<String>,
    packages: Vec<Package>,
    /// The lock of these, where the code has none.
    lock: Option<Lock>,
    tools: container::BuildPrograms,
}

impl Workplace<'_> {
    fn code(&self) -> PathBuf {
        self.folder.join("code")
    }

    /// Home folder of the programs of this build.
    fn home(&self) -> io::Result<PathBuf> {
        let home = self.folder.join("home");
        fs_err::create_dir_all(&home)?;
        Ok(home)
    }
}

impl Drop for Workplace<'_> {
    fn drop(&mut self) {
        // What cannot be removed goes at the next start.
        let _ = fs_err::remove_dir_all(&self.folder);
    }
}

impl Builder {
    /// Makes the folders, and clears away what earlier processes left behind. Blocks.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn open(config: BuildConfig) -> io::Result<Self> {
        fs_err::create_dir_all(&config.root)?;
        let root = fs_err::canonicalize(&config.root)?;
        let toolchain = Arc::new(Toolchain::new(config.python.clone(), root.join("packages/uv")));
        let environment = toolchain.environment();
        let container = Container::find(&environment, config.image.as_deref(), &root)?;
        // Berth's folder of data is two above: DATA/functions/builds.
        let data = root.ancestors().nth(2);
        let (bubblewrap, launcher) = (on_path(&environment, "bwrap"), config.launcher.clone());
        let (environment, index) = (&config.python.environment, config.python.package_index.as_deref());
        let registries = Registries::find(environment, index, &config.hosts);
        let sandbox = Sandbox::find(environment, bubblewrap, launcher, container, data, registries);
        let work = root.join("work");
        if work.exists() {
            fs_err::remove_dir_all(&work)?;
        }
        for folder in ["work", "logs"] {
            fs_err::create_dir_all(root.join(folder))?;
        }
        let uv_cache = PackageCache::open(&root, "uv", MAX_CACHE_BYTES)?;
        let npm_cache = PackageCache::open(&root, "npm", MAX_CACHE_BYTES)?;
        let artifacts = Arc::new(ArtifactStore::open(&root.join("artifacts"), config.kept)?);
        let (config, dependencies) = (BuildConfig { root, ..config }, Arc::default());
        Ok(Self { config, toolchain, uv_cache, npm_cache, artifacts, sandbox, dependencies })
    }

    /// Store of artifacts.
    #[must_use]
    pub fn artifacts(&self) -> &Arc<ArtifactStore> {
        &self.artifacts
    }

    /// Clears caches of packages that hold too much and that no build uses. Blocks.
    pub(crate) fn sweep_packages(&self) -> io::Result<()> {
        let uv = self.uv_cache.sweep();
        self.npm_cache.sweep().and(uv)
    }

    /// Finds interpreters.
    #[must_use]
    pub fn toolchain(&self) -> &Arc<Toolchain> {
        &self.toolchain
    }

    /// The circuit breakers of what builds and deployments need.
    pub(crate) fn dependencies(&self) -> &Arc<Dependencies> {
        &self.dependencies
    }

    /// The bubblewrap program.
    pub(crate) fn bubblewrap(&self) -> &Arc<Bubblewrap> {
        self.sandbox.bubblewrap()
    }

    /// Isolation of builds, in a word.
    #[must_use]
    pub fn isolation(&self) -> &'static str {
        self.sandbox.isolation()
    }

    /// Path of the log of a function's last build.
    #[must_use]
    pub fn log_path(&self, name: &str) -> PathBuf {
        self.config.root.join("logs").join(format!("{}.log", file_stem(name)))
    }

    /// Builds. Dropping the future ends every process of it.
    ///
    /// # Errors
    /// The reason, with the last lines of the log.
    pub async fn build(&self, id: TaskId, task: &Task) -> Result<Built, Failure> {
        let started = Instant::now();
        let restored = |artifact: ArtifactStatus, notes: Vec<String>| Built {
            artifact,
            cached: true,
            restored: true,
            took: started.elapsed(),
            log_tail: String::new(),
            notes,
        };
        if let Some(known) = task.known.as_ref().filter(|known| self.artifacts.has(known)) {
            return Ok(restored(known.clone(), Vec::new()));
        }
        if let Some(kept) = task.kept.clone().and_then(|digest| self.artifacts.find(digest)) {
            let note = "The artifact of the earlier deployment is used; the code was not read.".to_owned();
            return Ok(restored(kept, vec![note]));
        }
        let log = match BuildLog::create(&self.log_path(task.spec.name.as_str())) {
            Ok(log) => log,
            Err(error) => return Err(BuildError::disk(&error).into_failure(String::new(), started.elapsed())),
        };
        log.line(&format!("build {id} of {}: {}", task.spec.name, task.spec.source));
        // It was asked for, and is not here.
        let gone = task.kept.as_ref().map(|digest| format!("The artifact {digest} is not kept any more"));
        gone.iter().for_each(|gone| log.line(&format!("{gone}: the code is read")));
        let made = self.make(id, task, &log).await;
        let took = started.elapsed();
        match made {
            Ok((artifact, cached, mut notes)) => {
                notes.extend(gone.map(|gone| format!("{gone}: the code at its sourceUri was built.")));
                notes.iter().for_each(|note| log.line(&format!("note: {note}")));
                log.line(&format!("{} of {} bytes after {:.1} s", artifact.digest, artifact.size, took.as_secs_f64()));
                Ok(Built { artifact, cached, restored: false, took, log_tail: log.tail(), notes })
            }
            Err(error) => {
                log.line(&format!("failed: {}", error.message));
                Err(error.into_failure(log.tail(), took))
            }
        }
    }

    async fn make(
        &self,
        id: TaskId,
        task: &Task,
        log: &BuildLog,
    ) -> Result<(ArtifactStatus, bool, Vec<String>), BuildError> {
        let spec = &*task.spec;
        let folder = self.config.root.join("work").join(id.to_string());
        let tools = container::BuildPrograms::default();
        let (notes, packages) = (Vec::new(), Vec::new());
        let mut place = Workplace { spec, folder, log, notes, packages, lock: None, tools };
        fs_err::create_dir_all(&place.folder)?;
        let (artifact, cached) = self.built(id, &mut place).await?;
        if self.goes_to_azure(spec) {
            self.check(&mut place, &artifact).instrument(tracing::info_span!("check")).await?;
        }
        Ok((artifact, cached, std::mem::take(&mut place.notes)))
    }

    /// True if the artifact is run by Azure's workers.
    fn goes_to_azure(&self, spec: &FunctionSpec) -> bool {
        !self.config.all_local && matches!(spec.platform, Platform::Azure(_))
    }

    /// The artifact, and if an earlier build gave it.
    async fn built(&self, id: TaskId, place: &mut Workplace<'_>) -> Result<(ArtifactStatus, bool), BuildError> {
        let (spec, log, started) = (place.spec, place.log, now());
        let fetch = self.fetch(place).instrument(tracing::info_span!("fetch"));
        self.asking(dependencies::of_code(&spec.source), fetch).await?;
        let tree = blocking({
            let code = place.code();
            move || Tree::read(&code)
        })
        .await?;
        let tools = match spec.language {
            Language::Python => self.python_tools(place).await?.key(),
            Language::JavaScript => {
                let tools = self.node_tools(place).await?;
                place.notes.extend(tools.note(spec.version.as_deref()));
                tools.key()
            }
        };
        let tools = match spec.language {
            _ if !self.goes_to_azure(spec) => tools,
            Language::Python => format!("{tools}, for Azure ({})", python::AZURE),
            // An app of Azure brings the library of its worker along.
            Language::JavaScript => format!("{tools}, for Azure"),
        };
        let key = key(spec, &tree, &tools);
        if let Some(artifact) = self.artifacts.built(&key) {
            log.line("the same inputs were built before");
            return Ok((artifact, true));
        }
        match spec.language {
            Language::Python => self.python(place).await?,
            Language::JavaScript => self.javascript(place).await?,
        }
        let (code, manifest, entry) = (place.code(), Manifest::of(spec), spec.entry);
        let made = place.folder.join("artifact.zip");
        let (artifacts, to) = (Arc::clone(&self.artifacts), made.clone());
        blocking(move || {
            // A step may have planted links, which the files of the layout would be written through.
            Tree::list(&code)?;
            layout::write(&code, &manifest, entry)?;
            zipped::write(&code, &made)
        })
        .await?;
        place.packages.sort();
        place.packages.dedup();
        let outcome = Outcome {
            spec,
            tree: &tree.digest,
            packages: &place.packages,
            lock: place.lock.as_ref(),
            tools: &tools,
            isolation: self.isolation(),
            layout: LAYOUT,
            id: id.to_string(),
            started,
            ended: now(),
        };
        Ok((artifacts.keep(&key, &to, |document, artifact| outcome.write(document, artifact))?, false))
    }
}

impl Builder {
    /// Does work that asks a dependency, unless that is left alone.
    async fn asking(
        &self,
        dependency: Option<Dependency>,
        work: impl Future<Output = Result<(), BuildError>>,
    ) -> Result<(), BuildError> {
        let permit = dependency.map(|dependency| self.dependencies.admit(dependency, now())).transpose()?;
        let done = work.await;
        match (permit, &done) {
            (Some(permit), Ok(())) => permit.answered(),
            (Some(permit), Err(error)) if error.away => permit.failed(now()),
            _ => {}
        }
        done
    }
}

/// Identity of a build: everything that decides what comes out.
fn key(spec: &FunctionSpec, tree: &Tree, tools: &str) -> String {
    // The name is in the artifact, its namespace is not.
    let (name, entry) = (spec.name.name(), spec.entry);
    let parts = format!(
        "{LAYOUT}\n{}\n{:?}\n{:?}\n{:?}\n{:?}\n{name:?}\n{entry:?}\n{tools}",
        tree.digest, spec.language, spec.entrypoint, spec.version, spec.bundler
    );
    crate::deployment::digest(parts.as_bytes())
}

/// Runs what blocks on a thread for that.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BuildError> + Send + 'static,
) -> Result<T, BuildError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(BuildError::passing("Internal", format!("a build broke, please report it: {error}")))
    })
}

/// Bytes of the files below a folder.
fn size_of(folder: &Path) -> u64 {
    let mut open = vec![folder.to_owned()];
    let mut bytes = 0;
    while let Some(folder) = open.pop() {
        for entry in fs_err::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => open.push(entry.path()),
                Ok(found) => bytes += found.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::deployment::Declared;

    /// A builder, and a folder of code.
    fn builder(home: &Path) -> (Builder, PathBuf) {
        let (code, programs) = (home.join("code"), home.join("programs"));
        fs_err::create_dir_all(&code).expect("a folder");
        fs_err::create_dir_all(&programs).expect("a folder");
        fs_err::write(code.join("handler.mjs"), "export const predict = (body) => body;\n").expect("written");
        // It is asked for its version, and nothing else; there is no npm.
        std::os::unix::fs::symlink("/bin/echo", programs.join("node")).expect("a link");
        let environment = vec![("PATH".into(), programs.into_os_string())];
        let builder = Builder::open(BuildConfig {
            root: home.join("builds"),
            credentials: BTreeMap::new(),
            python: Settings { environment, ..Settings::default() },
            all_local: true,
            kept: 1,
            image: None,
            hosts: Vec::new(),
            launcher: None,
        })
        .expect("a builder");
        (builder, code)
    }

    fn task_of(folder: &Path, bundler: &str, kept: Option<String>) -> Task {
        let object = json!({
            "apiVersion": "v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "words"},
            "spec": {"type": "javascript", "sourceUri": format!("file:{}", folder.display()),
                     "entrypoint": "handler.predict", "build": {"bundler": bundler}, "target": {"platform": "local"}},
        });
        let declared = Declared::read("words", object.to_string().as_bytes(), berth_control::store::Rev(1));
        Task {
            spec: declared.spec.expect("a right spec"),
            text: declared.text,
            known: None,
            proved: false,
            kept,
            generation: 3,
            seen: now(),
            traceparent: None,
        }
    }

    #[tokio::test]
    async fn a_bundler_without_its_file_is_told_before_packages_are_fetched() {
        let home = tempfile::tempdir().expect("a folder");
        let (builder, code) = builder(home.path());
        fs_err::write(code.join("package.json"), r#"{"devDependencies": {"rollup": "4"}}"#).expect("written");
        let failed = builder.build(TaskId(1), &task_of(&code, "rollup", None)).await.expect_err("no file");
        let message = "the code has no rollup.config.js, which the bundler is to read: add it, or name another file in \
                       spec.build.configFile: it holds handler.mjs, package.json";
        assert_eq!((failed.reason, failed.message.as_str()), ("NoBundlerConfig", message));
        assert_eq!(failed.retry, Retry::Never);
        fs_err::write(code.join("rollup.config.js"), "export default {};\n").expect("written");
        let failed = builder.build(TaskId(2), &task_of(&code, "rollup", None)).await.expect_err("no npm");
        assert!(failed.log_tail.contains("$ npm install"), "packages come next: {}", failed.log_tail);
    }

    #[tokio::test]
    async fn an_artifact_that_is_not_kept_any_more_is_told() {
        let home = tempfile::tempdir().expect("a folder");
        let (builder, code) = builder(home.path());
        let task = |folder: &Path, kept: Option<String>| task_of(folder, "none", kept);
        let lost = format!("sha256:{}", "0".repeat(64));
        let built = builder.build(TaskId(1), &task(&code, Some(lost.clone()))).await.expect("built");
        let note = format!("The artifact {lost} is not kept any more: the code at its sourceUri was built.");
        assert_eq!((built.notes, built.restored), (vec![note.clone()], false));
        assert!(built.log_tail.contains(&format!("note: {note}")), "{}", built.log_tail);
        let again = builder.build(TaskId(2), &task(&code, Some(built.artifact.digest.clone()))).await.expect("kept");
        assert_eq!((again.artifact, again.restored), (built.artifact, true));
        let plain = builder.build(TaskId(3), &task(&code, None)).await.expect("built");
        assert_eq!(plain.notes, Vec::<String>::new(), "nobody asked for one");
        let failed = builder.build(TaskId(4), &task(&home.path().join("none"), Some(lost))).await.expect_err("no code");
        assert!(failed.log_tail.contains("is not kept any more: the code is read"), "{}", failed.log_tail);
    }
}
