//! Files as they were committed, and nothing that leads out.

use std::os::unix::fs::{PermissionsExt, symlink};

use berth_git::{Category, CheckoutLimits, LeftOut, Oid, Repository};

use crate::fixture::{World, git, git_program, git_with, stop};

fn repository(world: &World) -> Repository {
    Repository::open(git_program(), &world.server(), &stop()).expect("a repository")
}

#[test]
fn files_are_exactly_as_they_were_committed() {
    let world = World::new();
    let work = world.work();
    let large = "x".repeat(3 << 20);
    // Attributes that would change what other ways of checking out write.
    fs_err::write(work.join(".gitattributes"), "*.txt text eol=crlf export-subst\nhidden export-ignore\n")
        .expect("written");
    symlink("a/x.txt", work.join("link")).expect("a link");
    fs_err::write(work.join("run.sh"), "#!/bin/sh\n").expect("written");
    fs_err::set_permissions(work.join("run.sh"), std::fs::Permissions::from_mode(0o755)).expect("executable");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 3\n";
    let files = [("a/x.txt", "one\n$Format:%H$\n"), ("hidden", "h"), ("large.bin", &large), ("weights.bin", pointer)];
    world.commit(&files, "first");
    git(&work, &["update-index", "--add", "--cacheinfo", &format!("160000,{},sub", "1".repeat(40))]);
    git(&work, &["commit", "-q", "-m", "a submodule"]);
    git(&work, &["push", "-q", "origin", "HEAD:main"]);
    let target = world.root.path().join("out/here");
    let done = repository(&world).checkout(&world.head(), &target, CheckoutLimits::default(), &stop()).expect("done");
    for (name, text) in files {
        assert_eq!(fs_err::read_to_string(target.join(name)).expect("a file"), text, "{name}");
    }
    assert_eq!(fs_err::read_link(target.join("link")).expect("a link").to_str(), Some("a/x.txt"));
    let mode = |name: &str| fs_err::metadata(target.join(name)).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode("run.sh"), mode("hidden")), (0o755, 0o644));
    assert!(!target.join(".git").exists());
    let left = [LeftOut::Submodule("sub".to_owned()), LeftOut::LfsPointer("weights.bin".to_owned())];
    assert_eq!(done.left_out, left);
    assert_eq!(done.files, 7);

    let again = repository(&world).checkout(&world.head(), &target, CheckoutLimits::default(), &stop());
    assert_eq!(again.expect_err("there already").category, Category::Invalid);
}

/// A commit with one entry that no git would make.
fn hostile(world: &World, mode: &str, path: &[u8], content: &[u8]) -> Oid {
    let server = world.server();
    let blob = git_with(&server, &["hash-object", "-w", "--stdin"], &[], content);
    let mut tree = format!("{mode} ").into_bytes();
    tree.extend_from_slice(path);
    tree.push(0);
    tree.extend((0..20).map(|n| u8::from_str_radix(&blob[2 * n..2 * n + 2], 16).expect("hex")));
    let tree = git_with(&server, &["hash-object", "-w", "--literally", "-t", "tree", "--stdin"], &[], &tree);
    Oid::parse(&git(&server, &["commit-tree", &tree, "-m", "x"])).expect("a commit")
}

#[test]
fn nothing_is_written_outside() {
    let world = World::new();
    world.commit(&[("x", "1")], "first");
    for (mode, path, content) in [
        ("100644", "..", "x"),
        ("100644", ".git", "x"),
        ("100644", "../x", "x"),
        ("100644", "/x", "x"),
        ("120000", "link", "/etc/passwd"),
        ("120000", "link", "../../x"),
    ] {
        let commit = hostile(&world, mode, path.as_bytes(), content.as_bytes());
        let target = world.root.path().join("out/here");
        let error = repository(&world)
            .checkout(&commit, &target, CheckoutLimits::default(), &stop())
            .expect_err("a path that leads out");
        assert_eq!(error.category, Category::Invalid, "{path}: {error}");
        let left = fs_err::read_dir(target.parent().expect("a folder")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{path} left something");
    }
}

#[test]
fn limits_hold_before_anything_is_written() {
    let world = World::new();
    let commit = world.commit(&[("x", "12345"), ("y", "1")], "first");
    for limits in [CheckoutLimits { bytes: 5, files: 10 }, CheckoutLimits { bytes: 100, files: 1 }] {
        let target = world.root.path().join("here");
        let error = repository(&world).checkout(&commit, &target, limits, &stop()).expect_err("too much");
        assert_eq!(error.category, Category::TooLarge, "{error}");
        assert!(!target.exists());
    }
}
