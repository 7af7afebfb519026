//! Repositories as people keep them: a model with tags, a registry, and a source that follows it.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use berth_control::{
    Handle,
    source::{self, Setup, Source, SourceName, SourceStatus},
};
use berth_git::{Git, Identity, Protocols, Remote};
use berth_gitops::{GitConfig, GitMetrics, GitSource, WriteBackTo};
use berth_secrets::Keyring;
use berth_spec::{Epoch, RuntimeInfo, WorkerInfo, deployment::ModelFormat};
use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fixture::worker;

/// A folder with bare repositories and working trees.
pub(super) struct Forge {
    pub(super) root: TempDir,
}

pub(super) fn git(folder: &Path, arguments: &[&str]) -> String {
    let done = Command::new("git")
        .current_dir(folder)
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| name == "PATH"))
        .envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null"), ("LC_ALL", "C")])
        .args(["-c", "user.name=Ops", "-c", "user.email=ops@example.com"])
        .args(arguments)
        .output()
        .expect("git runs");
    assert!(done.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

impl Forge {
    /// A registry with a worker and no deployment, a model with the version 1.0.0.
    pub(super) fn new() -> Self {
        let forge = Self { root: tempfile::tempdir().expect("a folder") };
        for name in ["model", "registry"] {
            git(forge.root.path(), &["init", "-q", "--bare", "-b", "main", &format!("{name}.git")]);
            git(forge.root.path(), &["init", "-q", "-b", "main", name]);
            git(&forge.path(name), &["remote", "add", "origin", &forge.url(name)]);
        }
        forge.release("1.0.0");
        for folder in ["models/production", "models/staging", "transactions", "workers", "errors"] {
            forge.write(&format!("{folder}/.gitkeep"), "");
        }
        forge.write(
            "workers/worker-a.yaml",
            "worker_id: worker-a\nsupported_schema_versions: [\"3.0.0\"]\ncapacity: {max_models: 10, max_memory: 1Gi, max_cpu: 4.0}\nlabels: {pool: production, region: eu-west-1}\n",
        );
        forge
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(super) fn url(&self, name: &str) -> String {
        format!("file://{}/{name}.git", self.root.path().display())
    }

    /// A version of the model, tagged.
    pub(super) fn release(&self, version: &str) {
        let folder = self.path("model");
        let url = self.url("model");
        let card = format!(
            "schemaVersion: \"3.0.0\"\nmetadata: {{name: doubler, version: {version}, description: A model for tests, owner: ml@example.com}}\n\
             runtime: {{framework: custom, framework_version: 1.0.0, python_version: \"3.11\", dependencies: []}}\n\
             artifacts: {{storage_type: http, model_path: \"https://example.com/{version}.json\", checksum: {}, size_bytes: 10}}\n\
             code: {{repository: \"{url}\", path: src/, ref: v{version}, entrypoint: src.model}}\n\
             preprocessing: {{module: src.preprocessing, function: read}}\npostprocessing: {{module: src.postprocessing, function: write}}\n\
             interface:\n  input_schema: {{type: object, required: [x], properties: {{x: {{type: number}}}}}}\n  output_schema: {{type: object, properties: {{y: {{type: number}}}}}}\n\
             resources: {{cpu: 0.1, memory: 64Mi}}\n",
            "ab".repeat(32)
        );
        for (name, text) in [
            ("src/__init__.py", ""),
            ("src/model.py", "def load(path):\n    return None\n"),
            ("src/preprocessing.py", "def read(request, config):\n    return request\n"),
            ("src/postprocessing.py", "def write(output, config):\n    return output\n"),
            ("model-card.yaml", card.as_str()),
        ] {
            let path = folder.join(name);
            fs_err::create_dir_all(path.parent().expect("inside")).expect("a folder");
            fs_err::write(path, text).expect("written");
        }
        git(&folder, &["add", "-A"]);
        git(&folder, &["commit", "-q", "-m", version]);
        git(&folder, &["tag", &format!("v{version}")]);
        git(&folder, &["push", "-q", "--tags", "origin", "main"]);
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        let path = self.path("registry").join(path);
        fs_err::create_dir_all(path.parent().expect("inside")).expect("a folder");
        fs_err::write(path, text).expect("written");
    }

    pub(super) fn remove(&self, path: &str) {
        fs_err::remove_file(self.path("registry").join(path)).expect("removed");
    }

    pub(super) fn deploy(&self, id: &str, reference: &str, more: &str) {
        let text = format!(
            "id: {id}\nmodel_card_ref: {{repository: \"{}\", path: model-card.yaml, ref: {reference}}}\nenabled: {}\n\
             deployment_config: {{region: eu-west-1, replicas: 1, priority: 50, worker_selector: {{pool: production}}}}\n\
             metadata: {{owner: ml@example.com}}\n",
            self.url("model"),
            if more == "disabled" { "false" } else { "true" },
        );
        self.write(&format!("models/production/{id}.yaml"), &text);
    }

    /// Commits all of it and pushes.
    pub(super) fn push(&self, message: &str) -> String {
        let folder = self.path("registry");
        git(&folder, &["add", "-A"]);
        git(&folder, &["commit", "-q", "--allow-empty", "-m", message]);
        git(&folder, &["push", "-q", "--force", "origin", "main"]);
        git(&folder, &["rev-parse", "HEAD"])
    }

    pub(super) fn reset(&self, commit: &str) {
        git(&self.path("registry"), &["reset", "-q", "--hard", commit]);
        git(&self.path("registry"), &["push", "-q", "--force", "origin", "main"]);
    }

    /// In the bare registry.
    pub(super) fn ask(&self, arguments: &[&str]) -> String {
        git(&self.path("registry.git"), arguments)
    }

    pub(super) fn config(&self, disk: &str, write_back: WriteBackTo) -> GitConfig {
        let protocols = Protocols::default().with_local();
        GitConfig {
            cluster: "test".to_owned(),
            remote: Remote::parse(&self.url("registry"), protocols).expect("a URL"),
            branch: "main".to_owned(),
            protocols,
            credentials: Default::default(),
            interval: Duration::from_secs(30),
            folder: self.path(disk),
            git: Arc::new(Git::new(std::env::vars_os())),
            keyring: Arc::new(Keyring::default()),
            vault: None,
            write_back: Some(write_back),
            identity: Identity { name: "Berth".to_owned(), email: "berth@example.com".to_owned() },
            signing: None,
            webhook_secret: None,
            secrets: None,
            metrics: GitMetrics::register(&mut Registry::default()).of("git"),
        }
    }
}

/// The name of the source that runs.
pub(super) fn git_source() -> SourceName {
    SourceName::new("git").expect("a name")
}

/// A source that runs.
pub(super) struct Followed {
    stop: CancellationToken,
    task: JoinHandle<Result<(), berth_control::handle::Error>>,
    pub(super) handle: Handle,
}

impl Followed {
    #[expect(clippy::disallowed_methods, reason = "`stop` awaits it")]
    pub(super) fn start(config: GitConfig, handle: &Handle, epoch: u64) -> Self {
        let stop = CancellationToken::new();
        let source: Arc<dyn Source> = Arc::new(GitSource::new(config));
        let setup = Setup::new(vec![(git_source(), source)]).expect("one source");
        let task = tokio::spawn(source::run(setup, handle.clone(), Epoch(epoch), stop.clone()));
        Self { stop, task, handle: handle.clone() }
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("no panic").expect("no error");
    }

    pub(super) fn view(&self) -> SourceStatus {
        let blank = || SourceStatus::new(git_source(), "git", String::new());
        self.handle.sources().get(&git_source()).unwrap_or_else(blank)
    }

    /// Asks the source to look now; false if there is none.
    pub(super) fn sync(&self) -> bool {
        self.handle.sources().request(&git_source(), source::Request::Sync)
    }

    /// Waits until the source says so. The clock is the test's: hours pass while nothing happens.
    pub(super) async fn until(&self, what: &str, says: impl Fn(&SourceStatus) -> bool) -> SourceStatus {
        for _ in 0..10_000 {
            let view = self.view();
            if says(&view) {
                return view;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("never came: {what}; it is {:?}", self.view());
    }

    pub(super) async fn until_applied(&self, commit: &str) -> SourceStatus {
        self.until(commit, |view| view.revision.as_deref() == Some(commit) && view.problem.is_none()).await
    }
}

/// A worker of the pool that loads Python.
pub(super) fn python_worker(id: &str) -> WorkerInfo {
    WorkerInfo {
        runtimes: vec![RuntimeInfo::unlimited("python", &[ModelFormat::PYTHON])],
        schema_versions: vec!["3.0.0".to_owned()],
        ..worker(id, 1)
    }
}
