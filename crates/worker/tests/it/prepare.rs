//! Code and environments of model cards: real git, and a stand-in for uv that fails as it is asked to
//! (`tests/fixtures/uv.sh`). What needs the real one is in `prepare/real.rs`.

mod code;
mod packages;
pub(crate) mod real;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use berth_spec::{ByteSize, CredentialSet, FailureCategory, PinnedCard, Time};
use berth_worker::{
    Fault,
    prepare::{BlockedDependencies, Miss, Outcome, Prepared, Preparer, Settings},
};
use tokio::sync::watch;

/// A repository with code, and a place to prepare it in.
pub(crate) struct World {
    dir: tempfile::TempDir,
    pub(crate) commit: String,
    keys: watch::Sender<Arc<CredentialSet>>,
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let world = Self { dir, commit: String::new(), keys: watch::Sender::default() };
        fs_err::create_dir_all(world.path("code/src")).expect("made");
        fs_err::create_dir_all(world.path("bin")).expect("made");
        world.git(&["init", "--quiet", "--initial-branch=main"]);
        world.git(&["config", "uploadpack.allowAnySHA1InWant", "true"]);
        // An interpreter of a version that no machine has. Written by another process: a file that this one has open for
        // writing while another test starts a program cannot be run.
        let script = r#"printf '#!/bin/sh\necho 9.1\n' > "$0" && chmod 755 "$0""#;
        run(Command::new("/bin/sh").arg("-c").arg(script).arg(world.path("bin/python9.1")));
        Self { commit: world.commit("first", "v1.0.0"), ..world }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@example.org", "-C"]).arg(self.path("code"));
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        run(git.args(arguments)).trim().to_owned()
    }

    /// A commit with this text as code, and the tag that leads to it from now on.
    pub(crate) fn commit(&self, text: &str, tag: &str) -> String {
        fs_err::write(self.path("code/src/model.py"), text).expect("written");
        self.git(&["add", "."]);
        self.git(&["commit", "--quiet", "--message", text]);
        self.git(&["tag", "--force", tag]);
        self.git(&["rev-parse", "HEAD"])
    }

    pub(crate) fn settings(&self) -> Settings {
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.path("bin").display());
        let environment = vec![("PATH".into(), path.into()), ("AWS_SECRET_ACCESS_KEY".into(), "hush".into())];
        let uv = Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/uv.sh"));
        Settings { uv, local_repositories: true, environment, ..Settings::default() }
    }

    fn preparer(&self) -> Preparer {
        self.preparer_with(self.settings())
    }

    fn preparer_with(&self, settings: Settings) -> Preparer {
        Preparer::open(&self.path("prepared"), ByteSize::gib(1), settings, self.keys.subscribe()).expect("opened")
    }

    pub(crate) fn card(&self, dependencies: &[&str]) -> Arc<PinnedCard> {
        let url = format!("file://{}", self.path("code").display());
        let mut card = crate::card(&url, &self.commit, "3.0.0");
        card.card.runtime.python_version = "9.1".to_owned();
        card.card.runtime.dependencies = dependencies.iter().map(|&package| package.to_owned()).collect();
        Arc::new(card)
    }

    /// The calls of uv, one word a call.
    fn calls(&self) -> Vec<String> {
        let calls = fs_err::read_to_string(self.path("prepared/uv/calls")).unwrap_or_default();
        let word = |call: &str| {
            let words = ["venv", "install", "freeze"];
            let found = words.iter().find(|word| call.split(' ').any(|part| part == **word))?;
            Some(format!("{found}{}", if call.contains("--offline") { " offline" } else { "" }))
        };
        calls.lines().filter_map(word).collect()
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

async fn prepare(preparer: &Preparer, card: &Arc<PinnedCard>) -> Result<Prepared, Fault> {
    let Outcome { result, .. } = preparer.prepare(card, BlockedDependencies::default(), &|_| ()).await;
    match result {
        Ok(prepared) => Ok(prepared.with(None, Vec::new())),
        Err(Miss::Failed(fault)) => Err(fault),
        Err(held_off) => panic!("nobody is blocked: {held_off:?}"),
    }
}
