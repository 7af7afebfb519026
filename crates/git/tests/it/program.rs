//! Environment, limits and end of the git program, with scripts in its place.

use std::{path::PathBuf, sync::Arc, time::Duration};

use berth_git::{Category, Credentials, Git, HostKeys, Mirror, Protocols, Remote, Stop};
use tempfile::TempDir;

use crate::fixture::{self, path, stop};

/// A script that stands in for git, but makes an empty repository when it is told to.
fn stand_in(script: &str) -> (TempDir, Arc<Git>) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("git");
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in *init*) exec git \"$@\";; esac\ncd '{}'\n{script}\n",
        folder.path().display()
    );
    fixture::program(&program, &text);
    let git = Git::new(path()).with_program(program);
    (folder, Arc::new(git))
}

fn mirror(folder: &TempDir, git: &Arc<Git>, url: &str) -> Mirror {
    let remote = Remote::parse(url, Protocols::default().with_http()).expect("a URL");
    Mirror::open(Arc::clone(git), &folder.path().join("m"), remote, &stop()).expect("a mirror")
}

#[test]
fn the_whole_group_ends_at_the_deadline() {
    let (folder, git) = stand_in("sleep 1000 & echo $! > child; wait");
    let mirror = mirror(&folder, &git, "https://h/x");
    // Time enough for the script to begin, also on a busy machine.
    let short = Stop::within(Duration::from_secs(10));
    let error = mirror.ls_remote(&[], &Credentials::None, &short).expect_err("late");
    assert_eq!(error.category, Category::TimedOut, "{error}");
    let pid: i32 = fs_err::read_to_string(folder.path().join("child")).expect("a pid").trim().parse().expect("a pid");
    // An orphan that nobody has collected yet is dead, too.
    let dead = || match fs_err::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => text.contains(") Z "),
        Err(_) => true,
    };
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !dead() {
        assert!(std::time::Instant::now() < until, "the child outlived its group");
        std::thread::yield_now();
    }
}

#[test]
fn a_flag_ends_a_call_and_those_after_it() {
    let (folder, git) = stand_in("echo here > started; sleep 1000");
    let mirror = mirror(&folder, &git, "https://h/x");
    let flag = stop();
    let (other, started) = (flag.clone(), folder.path().join("started"));
    let canceller = std::thread::spawn(move || {
        let until = std::time::Instant::now() + Duration::from_secs(120);
        while !started.exists() {
            assert!(std::time::Instant::now() < until, "it was never started");
            std::thread::yield_now();
        }
        other.cancel();
    });
    let error = mirror.ls_remote(&[], &Credentials::None, &flag).expect_err("cancelled");
    assert_eq!(error.category, Category::Cancelled);
    canceller.join().expect("joined");
    let error = mirror.ls_remote(&[], &Credentials::None, &flag).expect_err("still cancelled");
    assert_eq!(error.category, Category::Cancelled);
}

#[test]
fn endless_output_is_too_much() {
    let (folder, git) = stand_in("exec cat /dev/zero");
    let mirror = mirror(&folder, &git, "https://h/x");
    let error = mirror.ls_remote(&[], &Credentials::None, &stop()).expect_err("endless");
    assert_eq!(error.category, Category::TooLarge, "{error}");
}

#[test]
fn a_git_that_is_not_there_is_said() {
    let git = Git::new(path()).with_program(PathBuf::from("/nonexistent/git"));
    let error = git.version(&stop()).expect_err("no git");
    assert!(error.to_string().contains("/nonexistent/git"), "{error}");
    let (_folder, old) = stand_in("echo git version 2.20.1");
    assert!(old.version(&stop()).expect_err("old").to_string().contains("2.31"));
    assert!(Git::new(path()).version(&stop()).expect("a git") >= (2, 31));
}

/// Environment and arguments of a run.
fn seen(url: &str, credentials: &Credentials) -> (String, String) {
    let (folder, _) = stand_in(
        "env > env; echo \"$*\" > args; case \"$GIT_SSH_COMMAND\" in *\"-i '\"*) cat $(echo \"$GIT_SSH_COMMAND\" | sed \"s/.* -i '\\([^']*\\)'.*/\\1/\") > key;; esac",
    );
    let surroundings = [("GIT_DIR", "/x"), ("SSH_AUTH_SOCK", "/x"), ("https_proxy", "http://p"), ("AWS_SECRET", "x")];
    let both = path().into_iter().chain(surroundings.map(|(name, value)| (name.into(), value.into())));
    let program = folder.path().join("git");
    let git = Arc::new(Git::new(both).with_program(program));
    let mirror = mirror(&folder, &git, url);
    let _ = mirror.ls_remote(&[], credentials, &stop());
    let read = |name| fs_err::read_to_string(folder.path().join(name)).unwrap_or_default();
    (read("env") + &read("key"), read("args"))
}

#[test]
fn git_sees_only_what_it_needs() {
    let (env, _) = seen("https://h/x", &Credentials::None);
    for absent in ["GIT_DIR=", "SSH_AUTH_SOCK", "AWS_SECRET"] {
        assert!(!env.contains(absent), "{absent} in {env}");
    }
    for present in
        ["https_proxy=http://p", "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ALLOW_PROTOCOL=https"]
    {
        assert!(env.lines().any(|line| line == present), "{present} in {env}");
    }
}

#[test]
fn credentials_are_never_arguments() {
    let token = Credentials::Token { username: String::new(), token: "s3cret".to_owned() };
    let (env, arguments) = seen("https://h:8443/x", &token);
    assert!(env.contains("=credential.https://h:8443.helper\n"), "{env}");
    assert!(env.contains("BERTH_GIT_USER=x-access-token\n") && env.contains("BERTH_GIT_TOKEN=s3cret\n"), "{env}");
    assert!(!arguments.contains("s3cret"), "{arguments}");

    let hosts = HostKeys::Lines("h ssh-ed25519 AAAA".to_owned());
    let key = Credentials::SshKey { key: "PRIVATE".to_owned(), hosts };
    let (env, arguments) = seen("ssh://git@h/x", &key);
    assert!(env.contains("StrictHostKeyChecking=yes") && env.ends_with("PRIVATE\n"), "{env}");
    assert!(!arguments.contains("PRIVATE"));
}

#[test]
fn a_token_never_crosses_the_network_in_the_clear() {
    let (folder, git) = stand_in("exit 0");
    let mirror = mirror(&folder, &git, "http://h/x");
    let token = Credentials::Token { username: String::new(), token: "s3cret".to_owned() };
    let error = mirror.ls_remote(&[], &token, &stop()).expect_err("refused");
    assert_eq!(error.category, Category::Invalid);
    assert!(!error.to_string().contains("s3cret"));
}
