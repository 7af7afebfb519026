//! A registry and a model repository, as people would make them.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use berth_git::{Credentials, Git, Oid, Protocols, Repository, Stop};
use berth_registry::{Pass, Remotes, Report, Tree, Validator};
use tempfile::TempDir;

pub(crate) const CARD: &str = include_str!("fixture/model-card.yaml");
pub(crate) const WORKER: &str = include_str!("fixture/worker.yaml");

/// 2026-11-22.
pub(crate) const NOW: i64 = 1_795_305_600;

pub(crate) fn stop() -> Stop {
    Stop::within(Duration::from_secs(120))
}

pub(crate) fn path() -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    std::env::vars_os().filter(|(name, _)| name == "PATH").collect()
}

pub(crate) fn git(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(folder).env_clear().envs(path()).envs([
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_AUTHOR_NAME", "Ada"),
        ("GIT_AUTHOR_EMAIL", "ada@example.com"),
        ("GIT_COMMITTER_NAME", "Ada"),
        ("GIT_COMMITTER_EMAIL", "ada@example.com"),
        ("LC_ALL", "C"),
    ]);
    let out = command.args(arguments).output().expect("git runs");
    assert!(out.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// A model repository, a registry beside it, and a validator with a memory.
pub(crate) struct World {
    pub(crate) root: TempDir,
    validator: Cell<Option<Validator>>,
    pub(crate) previous: Cell<Option<Oid>>,
}

impl World {
    /// A registry with one deployment of one model, and one worker for it; all of it right.
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        for name in ["model", "registry"] {
            git(root.path(), &["init", "-q", "-b", "main", name]);
        }
        let world = Self { root, validator: Cell::new(None), previous: Cell::new(None) };
        world.release("v1.2.3", &world.card());
        for folder in berth_registry::FOLDERS {
            world.write(&format!("{folder}/.gitkeep"), "");
        }
        world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", "v1.2.3"));
        world.write("workers/worker-a.yaml", WORKER);
        world
    }

    pub(crate) fn model(&self) -> PathBuf {
        self.root.path().join("model")
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.model().display())
    }

    /// A card whose code is where the card is.
    pub(crate) fn card(&self) -> String {
        CARD.replace("https://git.example.com/iris.git", &self.url())
    }

    pub(crate) fn manifest(&self, id: &str, reference: &str) -> String {
        include_str!("fixture/manifest.yaml")
            .replace("iris-prod", id)
            .replace("https://git.example.com/iris.git", &self.url())
            .replace("v1.2.3", reference)
    }

    /// Tags a commit with this card.
    pub(crate) fn release(&self, tag: &str, card: &str) -> Oid {
        fs_err::write(self.model().join("model-card.yaml"), card).expect("written");
        git(&self.model(), &["add", "-A"]);
        git(&self.model(), &["commit", "-q", "--allow-empty", "-m", tag]);
        git(&self.model(), &["tag", "-f", tag]);
        Oid::parse(&git(&self.model(), &["rev-parse", "HEAD"])).expect("a commit")
    }

    pub(crate) fn registry(&self) -> PathBuf {
        self.root.path().join("registry")
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.registry().join(file);
        fs_err::create_dir_all(path.parent().expect("inside")).expect("a folder");
        fs_err::write(path, text).expect("written");
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.registry().join(path);
        if path.is_dir() { fs_err::remove_dir_all(path) } else { fs_err::remove_file(path) }.expect("removed");
    }

    pub(crate) fn commit(&self, message: &str) -> Oid {
        git(&self.registry(), &["add", "-A"]);
        git(&self.registry(), &["commit", "-q", "--allow-empty", "-m", message]);
        Oid::parse(&git(&self.registry(), &["rev-parse", "HEAD"])).expect("a commit")
    }

    pub(crate) fn fresh_validator(&self) -> Validator {
        let git = Arc::new(Git::new(path()));
        let folder = self.root.path().join("cache");
        let none = Box::new(|_: &berth_git::Remote| Credentials::None);
        Validator::new(Remotes::open(git, &folder, Protocols::default().with_local(), none).expect("a cache"))
    }

    /// Commits what is there and validates it, after the commit that was accepted before.
    pub(crate) fn validate(&self) -> Report {
        let commit = self.commit("change");
        self.validate_commit(commit)
    }

    pub(crate) fn validate_commit(&self, commit: Oid) -> Report {
        let git = Arc::new(Git::new(path()));
        let repository = Repository::open(git, &self.registry(), &stop()).expect("a repository");
        let validator = self.validator.take().unwrap_or_else(|| self.fresh_validator());
        let previous = self.previous.take();
        let tree = Tree::Commit { repository, commit: commit.clone() };
        let pass = Pass { tree: &tree, previous: previous.as_ref(), now: NOW, allow_empty: false, stop: &stop() };
        let report = validator.validate(&pass).expect("the registry can be read");
        self.validator.set(Some(validator));
        self.previous.set(if report.is_accepted() { Some(commit) } else { previous });
        report
    }

    /// Validates what lies there, by a validator of its own.
    pub(crate) fn validate_folder(&self) -> Report {
        let tree = Tree::Folder(self.registry());
        let pass = Pass { tree: &tree, previous: None, now: NOW, allow_empty: false, stop: &stop() };
        Validator::offline(Protocols::default().with_local()).validate(&pass).expect("the folder can be read")
    }

    /// Forgets what is in memory, as a restart does.
    pub(crate) fn restart(&self) {
        self.validator.set(None);
    }
}

/// All problems in one text each.
pub(crate) fn told(report: &Report) -> String {
    report.problems.iter().map(|problem| problem.render() + "\n").collect()
}
