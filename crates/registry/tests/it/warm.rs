//! Unchanged files are not validated again.

use crate::fixture::{NOW, World, git, path, stop, told};

#[test]
fn only_files_that_changed_are_parsed_again() {
    let world = World::new();
    for n in 0..20 {
        let id = format!("d{n}");
        world.write(&format!("models/staging/{id}.yaml"), &world.manifest(&id, "v1.2.3"));
    }
    assert_eq!(world.validate().counts.parsed, 23, "manifests, a worker and a card");
    assert_eq!(world.validate().counts.parsed, 0);
    world.write("models/staging/d7.yaml", &world.manifest("d7", "v1.2.3").replace("priority: 80", "priority: 70"));
    assert_eq!(world.validate().counts.parsed, 1);
    world.restart();
    assert_eq!(world.validate().counts.parsed, 23);
}

/// A `git` that counts what it is asked.
fn counting(world: &World) -> std::path::PathBuf {
    let (program, log) = (world.root.path().join("git-counted"), world.root.path().join("asked"));
    let text = format!("#!/bin/sh\necho \"$*\" >> '{}'\nexec git \"$@\"\n", log.display());
    // Written by another process: what this one writes is held open by whatever other tests start meanwhile, and a file
    // that is open for writing cannot be run.
    let written = std::process::Command::new("sh")
        .args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""])
        .arg(&program)
        .arg(text)
        .status();
    assert!(written.expect("sh").success());
    log
}

#[test]
fn a_repository_is_asked_once_in_a_pass() {
    let world = World::new();
    for n in 0..20 {
        let id = format!("d{n}");
        world.release(&format!("v1.3.{n}"), &world.card().replace("1.2.3", &format!("1.3.{n}")));
        world.write(&format!("models/staging/{id}.yaml"), &world.manifest(&id, &format!("v1.3.{n}")));
    }
    let log = counting(&world);
    let git = std::sync::Arc::new(berth_git::Git::new(path()).with_program(world.root.path().join("git-counted")));
    let none = Box::new(|_: &berth_git::Remote| berth_git::Credentials::None);
    let protocols = berth_git::Protocols::default().with_local();
    let remotes = berth_registry::Remotes::open(git, &world.root.path().join("c"), protocols, none).expect("a cache");
    let validator = berth_registry::Validator::new(remotes);
    // 20 new cards: one question, one fetch. Later: one question, and nothing else that reaches the repository.
    for (round, fetches) in [("first", 1), ("nothing is new", 0)] {
        fs_err::write(&log, "").expect("written");
        let tree = berth_registry::Tree::Folder(world.registry());
        let pass = berth_registry::Pass { tree: &tree, previous: None, now: NOW, allow_empty: false, stop: &stop() };
        let report = validator.validate(&pass).expect("it can be read");
        assert!(report.is_accepted(), "{}", told(&report));
        let asked = fs_err::read_to_string(&log).expect("a log");
        let count = |word: &str| asked.lines().filter(|line| line.split(' ').any(|part| part == word)).count();
        assert_eq!((count("ls-remote"), count("fetch")), (1, fetches), "{round}: {asked}");
    }
}

/// The figure for docs/registry.md: `cargo test -p berth-registry --test it -- --ignored --nocapture thousand`.
#[test]
#[ignore = "measures"]
fn a_thousand_manifests() {
    let world = World::new();
    for n in 0..1_000 {
        let id = format!("d{n}");
        world.write(&format!("models/production/{id}.yaml"), &world.manifest(&id, &format!("v1.2.{}", n % 100)));
    }
    for n in 0..100 {
        let card = world.card().replace("1.2.3", &format!("1.2.{n}"));
        world.release(&format!("v1.2.{n}"), &card);
    }
    git(&world.model(), &["gc", "-q"]);
    for name in ["cold", "warm", "after a restart"] {
        if name == "after a restart" {
            world.restart();
        }
        let commit = world.commit(name);
        let start = std::time::Instant::now();
        let report = world.validate_commit(commit);
        println!("{name}: {:?}, parsed {}", start.elapsed(), report.counts.parsed);
        assert!(report.is_accepted(), "{}", told(&report));
    }
}
