//! Signatures of commits and tags.

use std::{path::Path, process::Command};

use berth_git::{Category, Repository, SigningKey, TrustedKeys};

use crate::fixture::{NONE, World, draft, git, git_program, path, stop};

fn run(program: &str, folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.env_clear().envs(path()).env("GNUPGHOME", folder).current_dir(folder).args(arguments);
    let out = command.output().unwrap_or_else(|e| panic!("this test needs {program}: {e}"));
    assert!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn ssh_key(folder: &Path, name: &str) -> String {
    run("ssh-keygen", folder, &["-q", "-t", "ed25519", "-N", "", "-C", name, "-f", name]);
    fs_err::read_to_string(folder.join(format!("{name}.pub"))).expect("a public key")
}

fn why(result: Result<berth_git::Signer, berth_git::GitError>) -> String {
    let error = result.expect_err("not trusted");
    assert_eq!(error.category, Category::Signature, "{error}");
    error.to_string()
}

#[test]
fn ssh_signatures_count_if_their_key_is_trusted() {
    let world = World::new();
    let keys = world.root.path();
    let ada = ssh_key(keys, "ada");
    ssh_key(keys, "eve");
    let trusted = TrustedKeys::new(&[], &format!("ada@example.com {ada}"), &stop()).expect("keys");
    let unsigned = world.commit(&[("x", "1")], "unsigned");
    let sign = |name: &str, message: &str| {
        let key = format!("user.signingkey={}", keys.join(name).display());
        let config = ["-c", "gpg.format=ssh", "-c", &key];
        git(&world.work(), &[&config[..], &["commit", "-q", "--allow-empty", "-S", "-m", message]].concat());
        world.head()
    };
    let (by_ada, by_eve) = (sign("ada", "signed"), sign("eve", "signed by another"));
    let repository = Repository::open(git_program(), &world.work(), &stop()).expect("a repository");
    let signer = repository.verify_commit(&by_ada, &trusted, &stop()).expect("signed");
    assert_eq!(signer.name, "ada@example.com");
    assert!(signer.key.starts_with("SHA256:"), "{signer:?}");
    assert!(why(repository.verify_commit(&unsigned, &trusted, &stop())).contains("is not signed"));
    assert!(why(repository.verify_commit(&by_eve, &trusted, &stop())).contains("not trusted"));
}

#[test]
fn gpg_signatures_count_if_their_key_is_trusted() {
    let world = World::new();
    let home = tempfile::Builder::new().prefix("g").tempdir().expect("a folder");
    let make = |name: &str| {
        run("gpg", home.path(), &["--batch", "--quiet", "--passphrase", "", "--quick-gen-key", name, "ed25519", "sign"])
    };
    make("Ada <ada@example.com>");
    make("Eve <eve@example.com>");
    let public = run("gpg", home.path(), &["--armor", "--export", "ada@example.com"]);
    let trusted = TrustedKeys::new(&[public], "", &stop()).expect("keys");
    let mirror = world.mirror("m");
    let mut commits = Vec::new();
    for who in ["ada@example.com", "eve@example.com"] {
        let signing = Some(SigningKey::Gpg { home: home.path().to_owned(), key: who.to_owned() });
        let draft = berth_git::Draft { signing, ..draft(&[(who, Some("x"))]) };
        commits.push(mirror.publish(who, &draft, 1, &NONE, &stop()).expect("pushed"));
    }
    // The agent that gpg has started lives in this home.
    run("gpgconf", home.path(), &["--kill", "gpg-agent"]);
    let verify = |pushed: &berth_git::Pushed| match pushed {
        berth_git::Pushed::Commit(commit) => mirror.repository().verify_commit(commit, &trusted, &stop()),
        berth_git::Pushed::Unchanged(_) => panic!("a new commit"),
    };
    let signer = verify(&commits[0]).expect("signed");
    assert_eq!(signer.name, "Ada <ada@example.com>");
    assert_eq!(signer.key.len(), 40);
    assert!(why(verify(&commits[1])).contains("not trusted"));
    assert!(TrustedKeys::new(&["no key".to_owned()], "", &stop()).is_err());
}
