//! Real repositories, and others who write to them.

use std::{path::Path, process::Command};

use berth_git::{Edit, Git, Protocols, Remote};
use fs_err as fs;

use super::*;

const BRANCH: &str = "berth/actual-state";

/// A bare repository, and what a controller writes to it.
struct Stage {
    folder: tempfile::TempDir,
    git: Arc<Git>,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let stage = Self { folder, git: Arc::new(Git::new(std::env::vars_os())) };
        stage.git(&["init", "--quiet", "--bare", "registry.git"]);
        stage
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("git");
        command.current_dir(self.folder.path()).args(arguments);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        let done = command.output().expect("git");
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("UTF-8").trim().to_owned()
    }

    fn bare(&self, arguments: &[&str]) -> String {
        self.git(&[&["--git-dir", "registry.git"], arguments].concat())
    }

    fn publisher(&self, copy: &str, epoch: u64) -> Publisher {
        let url = format!("file://{}", self.folder.path().join("registry.git").display());
        let remote = Remote::parse(&url, Protocols::default().with_local()).expect("a remote");
        let mirror = Mirror::open(Arc::clone(&self.git), &self.folder.path().join(copy), remote, &stop());
        Publisher {
            mirror: Arc::new(mirror.expect("a copy")),
            branch: BRANCH.to_owned(),
            shared: false,
            credentials: Credentials::default(),
            identity: Identity { name: "Berth".to_owned(), email: "berth@example.com".to_owned() },
            signing: None,
            writer: "prod".to_owned(),
            epoch: Epoch(epoch),
            passed: 0,
            most_commits: Some(MOST_COMMITS),
        }
    }

    fn hook(&self, text: &str) {
        let path = self.folder.path().join("registry.git/hooks/pre-receive");
        // Written by another process: what this one writes is held open by whatever other tests start meanwhile, and a
        // file that is open for writing cannot be run.
        let written = Command::new("sh")
            .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\""])
            .arg(&path)
            .arg(text)
            .status();
        assert!(written.expect("sh").success());
    }

    fn commits(&self) -> usize {
        self.bare(&["rev-list", "--count", BRANCH]).parse().expect("a number")
    }

    fn files(&self) -> Vec<String> {
        self.bare(&["ls-tree", "-r", "--name-only", BRANCH]).lines().map(str::to_owned).collect()
    }
}

fn stop() -> Stop {
    Stop::within(Duration::from_secs(60))
}

fn change(path: &str, text: &str) -> Change {
    let edit = Edit { path: path.to_owned(), content: Some(text.as_bytes().to_vec()) };
    Change { edits: vec![edit], message: format!("state: {text}"), trailers: Vec::new() }
}

fn wrote(written: Result<Written, GitError>) -> Oid {
    match written {
        Ok(Written::Commit { tip, unsquashed: None }) => tip,
        other => panic!("{other:?}"),
    }
}

fn touched(written: Result<Written, GitError>) -> (Option<String>, Vec<String>) {
    match written {
        Ok(Written::Touched { by, paths }) => (by, paths),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_branch_that_has_grown_long_becomes_one_commit_with_all_its_files() {
    let stage = Stage::new();
    let publisher = Publisher { most_commits: Some(3), ..stage.publisher("a", 7) };
    let mut tip = None;
    for n in 0..4 {
        let next = wrote(publisher.write(&change(&format!("errors/{n}.yaml"), "x"), tip.as_ref(), n, &stop()));
        tip = Some(next);
    }
    assert_eq!((stage.commits(), stage.files().len()), (1, 4));
    let said = stage.bare(&["log", "-1", "--format=%B", BRANCH]);
    assert!(said.starts_with("state: what 3 commits came to") && said.contains("Berth-Term: 7"), "{said}");
    wrote(publisher.write(&change(ACTUAL_STATE, "on top"), tip.as_ref(), 9, &stop()));
    assert_eq!((stage.commits(), stage.files().len()), (2, 5));
}

#[test]
fn a_host_that_lets_nobody_rewrite_keeps_its_history_and_says_so() {
    let stage = Stage::new();
    stage.bare(&["config", "receive.denyNonFastForwards", "true"]);
    let publisher = Publisher { most_commits: Some(1), ..stage.publisher("a", 7) };
    let first = wrote(publisher.write(&change(ACTUAL_STATE, "1"), None, 1, &stop()));
    let second = publisher.write(&change(ACTUAL_STATE, "2"), Some(&first), 2, &stop());
    let Ok(Written::Commit { tip, unsquashed: Some(_) }) = second else { panic!("{second:?}") };
    assert_eq!(
        (stage.commits(), stage.bare(&["rev-parse", BRANCH])),
        (2, tip.to_string()),
        "what was written is there"
    );
    let patient = Publisher { most_commits: None, ..publisher };
    wrote(patient.write(&change(ACTUAL_STATE, "3"), Some(&tip), 3, &stop()));
    assert_eq!(stage.commits(), 3);
}

#[test]
fn somebody_who_is_faster_loses_nothing_and_neither_do_we() {
    let stage = Stage::new();
    let (ours, theirs) = (stage.publisher("a", 7), stage.publisher("b", 7));
    let known = wrote(ours.write(&change(ACTUAL_STATE, "1"), None, 1, &stop()));
    // The first push finds that the branch has moved between the fetch and the push: the hook of the host sees to it.
    let other = theirs.mirror.repository();
    theirs.read(&stop()).expect("it is read");
    let draft = theirs.draft(&change("README.md", "of a person"), 2);
    let commit = other.build(&draft, Some(&known), &stop()).expect("a commit").expect("one");
    theirs.mirror.push("elsewhere", None, &commit, &theirs.credentials, &stop()).expect("its objects are there");
    let script = format!(
        "[ -e moved ] || {{ : > moved; env -u GIT_QUARANTINE_PATH git update-ref refs/heads/{BRANCH} {commit}; }}"
    );
    stage.hook(&script);
    let tip = wrote(ours.write(&change(ACTUAL_STATE, "2"), Some(&known), 3, &stop()));
    assert!(Path::new(&stage.folder.path().join("registry.git/moved")).exists(), "the race took place");
    assert_eq!(stage.files(), ["README.md", ACTUAL_STATE], "both are there");
    assert_eq!(stage.bare(&["rev-list", "--count", tip.as_str()]), "3");
}

#[test]
fn a_branch_that_always_moves_is_given_up_after_some_attempts() {
    let stage = Stage::new();
    let ours = stage.publisher("a", 7);
    let known = wrote(ours.write(&change(ACTUAL_STATE, "1"), None, 1, &stop()));
    let script = format!(
        "echo x >> attempts; tree=$(git rev-parse {BRANCH}^{{tree}})\n\
         export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b\n\
         unset GIT_QUARANTINE_PATH GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES\n\
         git update-ref refs/heads/{BRANCH} $(git commit-tree $tree -p {BRANCH} -m other)"
    );
    stage.hook(&script);
    let error = ours.write(&change(ACTUAL_STATE, "2"), Some(&known), 2, &stop()).expect_err("it never gets in");
    assert_eq!(error.category, Category::Moved, "{error}");
    assert_eq!(
        fs::read_to_string(stage.folder.path().join("registry.git/attempts")).expect("a file").lines().count(),
        6
    );
}

#[test]
fn a_host_that_refuses_is_asked_once_and_its_words_are_told() {
    let stage = Stage::new();
    stage.hook("echo x >> attempts; echo 'only people may push here' >&2; exit 1");
    let error = stage.publisher("a", 7).write(&change(ACTUAL_STATE, "1"), None, 1, &stop()).expect_err("refused");
    assert_eq!(error.category, Category::Refused, "{error}");
    assert!(error.to_string().contains("only people may push here"), "{error}");
    assert_eq!(fs::read_to_string(stage.folder.path().join("registry.git/attempts")).expect("a file"), "x\n");
}

#[test]
fn what_is_not_as_it_was_is_read_before_it_is_written() {
    let stage = Stage::new();
    let (ours, theirs) = (stage.publisher("a", 7), Publisher { writer: "test".to_owned(), ..stage.publisher("b", 0) });
    let known = wrote(ours.write(&change(ACTUAL_STATE, "1"), None, 1, &stop()));
    let moved = wrote(theirs.write(&change("README.md", "hello"), Some(&known), 2, &stop()));
    let on_top = wrote(ours.write(&change(ACTUAL_STATE, "2"), Some(&known), 3, &stop()));
    assert_eq!(stage.bare(&["rev-parse", &format!("{BRANCH}~1")]), moved.to_string(), "what is not ours is no matter");
    wrote(theirs.write(&change(ACTUAL_STATE, "theirs"), Some(&on_top), 4, &stop()));
    let found = touched(ours.write(&change("errors/1.yaml", "3"), Some(&on_top), 5, &stop()));
    assert_eq!(found, (Some("Berth".to_owned()), vec![ACTUAL_STATE.to_owned()]));
    let (found, tip) = ours.read(&stop()).expect("it is read");
    assert_eq!(found.state.as_deref(), Some("theirs"));
    stage.bare(&["update-ref", "-d", &format!("refs/heads/{BRANCH}")]);
    let (by, paths) = touched(ours.write(&change("errors/1.yaml", "3"), tip.as_ref(), 6, &stop()));
    assert!(by.is_some() && paths.is_empty(), "a branch with an error file alone would be half of it");
    assert_eq!(ours.read(&stop()).expect("it is read").1, None);
    wrote(ours.write(&change(ACTUAL_STATE, "4"), None, 7, &stop()));
}

#[test]
fn a_later_term_has_the_word_unless_its_store_is_no_more() {
    let stage = Stage::new();
    let (old, new) = (stage.publisher("a", 7), stage.publisher("b", 9));
    let known = wrote(new.write(&change(ACTUAL_STATE, "new"), None, 1, &stop()));
    let written = old.write(&change(ACTUAL_STATE, "old"), Some(&known), 2, &stop());
    assert!(matches!(written, Ok(Written::Overtaken(9))), "{written:?}");
    let sure = Publisher { passed: 9, ..old };
    wrote(sure.write(&change(ACTUAL_STATE, "the store was made anew"), Some(&known), 3, &stop()));
}
