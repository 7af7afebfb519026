//! Repositories made by the real git, as people make them.

use std::{
    ffi::OsString,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use berth_git::{Credentials, Draft, Edit, Git, Identity, Mirror, Oid, Protocols, Remote, Stop};
use tempfile::TempDir;

/// A bare repository, a working tree that pushes to it, and room for mirrors.
pub(crate) struct World {
    pub(crate) root: TempDir,
}

pub(crate) const NONE: Credentials = Credentials::None;

/// Long: only a test that hangs meets it.
pub(crate) fn stop() -> Stop {
    Stop::within(Duration::from_secs(120))
}

pub(crate) fn git_program() -> Arc<Git> {
    Arc::new(Git::new(path()))
}

pub(crate) fn path() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| name == "PATH").collect()
}

/// Writes a program, by another one: what this process writes itself is held open by whatever its other threads start
/// meanwhile, and a file that is open for writing cannot be run.
pub(crate) fn program(path: &Path, text: &str) {
    let mut writes = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh");
    writes.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    assert!(writes.wait().expect("it ends").success());
}

/// Runs git as a person with an empty configuration would.
pub(crate) fn git(folder: &Path, arguments: &[&str]) -> String {
    git_with(folder, arguments, &[], b"")
}

pub(crate) fn git_with(folder: &Path, arguments: &[&str], env: &[(&str, &str)], input: &[u8]) -> String {
    let mut command = Command::new("git");
    command.current_dir(folder).env_clear().envs(path()).envs([
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_AUTHOR_NAME", "Ada"),
        ("GIT_AUTHOR_EMAIL", "ada@example.com"),
        ("GIT_COMMITTER_NAME", "Ada"),
        ("GIT_COMMITTER_EMAIL", "ada@example.com"),
        ("GIT_AUTHOR_DATE", "@1700000000 +0000"),
        ("GIT_COMMITTER_DATE", "@1700000000 +0000"),
        ("LC_ALL", "C"),
    ]);
    let mut child = command
        .envs(env.iter().copied())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("git runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), input).expect("written");
    let out = child.wait_with_output().expect("git ends");
    assert!(out.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

impl World {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        git(root.path(), &["init", "-q", "--bare", "-b", "main", "server.git"]);
        git(root.path(), &["init", "-q", "-b", "main", "work"]);
        let world = Self { root };
        git(&world.work(), &["remote", "add", "origin", "../server.git"]);
        world
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.root.path().join("work")
    }

    pub(crate) fn server(&self) -> PathBuf {
        self.root.path().join("server.git")
    }

    /// Writes files, commits and pushes them.
    pub(crate) fn commit(&self, files: &[(&str, &str)], message: &str) -> Oid {
        for (name, text) in files {
            let path = self.work().join(name);
            fs_err::create_dir_all(path.parent().expect("inside")).expect("a folder");
            fs_err::write(path, text).expect("written");
        }
        git(&self.work(), &["add", "-A"]);
        git(&self.work(), &["commit", "-q", "-m", message]);
        git(&self.work(), &["push", "-q", "origin", "HEAD:main"]);
        self.head()
    }

    pub(crate) fn head(&self) -> Oid {
        Oid::parse(&git(&self.work(), &["rev-parse", "HEAD"])).expect("a commit")
    }

    pub(crate) fn tag(&self, name: &str) {
        git(&self.work(), &["tag", "-f", "-a", "-m", "a version", name]);
        git(&self.work(), &["push", "-q", "-f", "origin", name]);
    }

    pub(crate) fn remote(&self) -> Remote {
        let url = format!("file://{}", self.server().display());
        Remote::parse(&url, Protocols::default().with_local()).expect("a URL")
    }

    pub(crate) fn mirror(&self, name: &str) -> Mirror {
        Mirror::open(git_program(), &self.root.path().join(name), self.remote(), &stop()).expect("a mirror")
    }
}

pub(crate) fn draft(edits: &[(&str, Option<&str>)]) -> Draft {
    let edit = |(path, content): &(&str, Option<&str>)| Edit {
        path: (*path).to_owned(),
        content: content.map(|text| text.as_bytes().to_vec()),
    };
    Draft {
        edits: edits.iter().map(edit).collect(),
        author: Identity { name: "Berth".to_owned(), email: "berth@example.com".to_owned() },
        time: 1_700_000_000,
        message: "state: iris is ready".to_owned(),
        trailers: vec![("Berth-Writer".to_owned(), "test".to_owned())],
        signing: None,
    }
}
