//! Commits without a working tree, and pushes that others get in the way of.

use berth_git::{Category, History, Pushed, Rev, SigningKey, TrustedKeys};

use crate::fixture::{NONE, World, draft, git, program, stop};

#[test]
fn edits_become_a_commit_on_the_tip() {
    let world = World::new();
    let tip = world.commit(&[("keep/x", "1"), ("old", "2")], "first");
    let mirror = world.mirror("m");
    let wish = draft(&[("state/a.yaml", Some("a")), ("old", None), ("never", None)]);
    let Pushed::Commit(commit) = mirror.publish("main", &wish, 3, &NONE, &stop()).expect("pushed") else {
        panic!("a commit")
    };
    assert_eq!(git(&world.server(), &["rev-parse", "main"]), commit.as_str());
    assert_eq!(git(&world.server(), &["ls-tree", "-r", "--name-only", "main"]), "keep/x\nstate/a.yaml");
    let info = mirror.repository().commit(&commit, &stop()).expect("a commit");
    assert_eq!((info.parents, info.author.name.as_str()), (vec![tip], "Berth"));
    assert_eq!(info.trailers, [("Berth-Writer".to_owned(), "test".to_owned())]);
    let again = mirror.publish("main", &wish, 3, &NONE, &stop()).expect("nothing to do");
    assert_eq!(again, Pushed::Unchanged(Some(commit)));
}

#[test]
fn a_branch_can_begin_with_a_commit() {
    let world = World::new();
    world.commit(&[("x", "1")], "first");
    let mirror = world.mirror("m");
    let pushed = mirror.publish("actual/one", &draft(&[("state.yaml", Some("a"))]), 3, &NONE, &stop()).expect("pushed");
    assert!(matches!(pushed, Pushed::Commit(_)));
    assert_eq!(git(&world.server(), &["ls-tree", "-r", "--name-only", "actual/one"]), "state.yaml");
    assert_eq!(git(&world.server(), &["rev-list", "--count", "actual/one"]), "1");
}

#[test]
fn whoever_was_faster_is_not_overwritten() {
    let world = World::new();
    let old = world.commit(&[("x", "1")], "first");
    let mirror = world.mirror("m");
    mirror.fetch(&[Rev::Branch("main".to_owned())], History::Full, &NONE, &stop()).expect("fetched");
    let wish = draft(&[("state.yaml", Some("a"))]);
    let commit = mirror.repository().build(&wish, Some(&old), &stop()).expect("built").expect("a commit");
    let faster = world.commit(&[("x", "2")], "faster");
    let error = mirror.push("main", Some(&old), &commit, &NONE, &stop()).expect_err("too late");
    assert_eq!(error.category, Category::Moved, "{error}");
    let error = mirror.push("main", None, &commit, &NONE, &stop()).expect_err("it is there");
    assert_eq!(error.category, Category::Moved, "{error}");
    let Pushed::Commit(replayed) = mirror.publish("main", &wish, 3, &NONE, &stop()).expect("replayed") else {
        panic!("a commit")
    };
    assert_eq!(mirror.repository().commit(&replayed, &stop()).expect("a commit").parents, [faster]);
}

#[test]
fn many_writers_of_one_branch_all_get_through() {
    let world = World::new();
    world.commit(&[("x", "1")], "first");
    std::thread::scope(|scope| {
        for n in 0..4 {
            let world = &world;
            scope.spawn(move || {
                let path = format!("state/{n}.yaml");
                let wish = draft(&[(&path, Some("a"))]);
                world.mirror(&format!("m{n}")).publish("main", &wish, 10, &NONE, &stop()).expect("pushed");
            });
        }
    });
    assert_eq!(git(&world.server(), &["rev-list", "--count", "main"]), "5");
}

#[test]
fn a_hook_that_refuses_is_quoted() {
    let world = World::new();
    world.commit(&[("x", "1")], "first");
    let hook = world.server().join("hooks/pre-receive");
    fs_err::create_dir_all(hook.parent().expect("hooks")).expect("a folder");
    program(&hook, "#!/bin/sh\necho 'models/x.yaml:3:1: no such region'\nexit 1\n");
    let mirror = world.mirror("m");
    let error = mirror.publish("main", &draft(&[("y", Some("a"))]), 3, &NONE, &stop()).expect_err("refused");
    assert_eq!(error.category, Category::Refused);
    assert!(error.to_string().contains("no such region"), "{error}");
}

#[test]
fn a_commit_can_be_signed_with_an_ssh_key() {
    let world = World::new();
    let folder = world.root.path();
    let out = std::process::Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "berth", "-f"])
        .arg(folder.join("key"))
        .status();
    assert!(out.expect("ssh-keygen").success());
    let read = |name: &str| fs_err::read_to_string(folder.join(name)).expect("a key");
    let wish = berth_git::Draft { signing: Some(SigningKey::Ssh(read("key"))), ..draft(&[("y", Some("a"))]) };
    let mirror = world.mirror("m");
    let Pushed::Commit(commit) = mirror.publish("main", &wish, 1, &NONE, &stop()).expect("pushed") else {
        panic!("a commit")
    };
    let trusted = TrustedKeys::new(&[], &format!("berth@example.com {}", read("key.pub")), &stop()).expect("keys");
    assert_eq!(
        mirror.repository().verify_commit(&commit, &trusted, &stop()).expect("signed").name,
        "berth@example.com"
    );
}

#[test]
fn what_git_would_misread_is_refused() {
    let world = World::new();
    let mirror = world.mirror("m");
    let build = |wish| mirror.repository().build(&wish, None, &stop()).expect_err("refused").category;
    for path in ["../x", "/x", ".git/config", "a//b", ""] {
        assert_eq!(build(draft(&[(path, Some("x"))])), Category::Invalid, "{path}");
    }
    assert_eq!(build(berth_git::Draft { message: " ".to_owned(), ..draft(&[]) }), Category::Invalid);
    let trailers = vec![("Bad key".to_owned(), "x".to_owned())];
    assert_eq!(build(berth_git::Draft { trailers, ..draft(&[]) }), Category::Invalid);
}
