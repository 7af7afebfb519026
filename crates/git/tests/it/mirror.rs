//! Asking, fetching, reading.

use berth_git::{Category, History, Mirror, Oid, Protocols, Remote, Rev};

use crate::fixture::{NONE, World, draft, git, git_program, stop};

fn tag(name: &str) -> Rev {
    Rev::Tag(name.to_owned())
}

fn commit(digits: &str) -> Rev {
    Rev::Commit(digits.to_owned())
}

#[test]
fn what_was_tagged_is_found_and_read() {
    let world = World::new();
    let first = world.commit(&[("a/x.txt", "one"), ("b.txt", "b")], "first");
    world.tag("v1.0.0");
    let second = world.commit(&[("a/x.txt", "two"), ("c d.txt", "c")], "second\n\nBody.\n\nTicket: 12\nBy: Ada");
    let mirror = world.mirror("m");
    let refs = mirror.ls_remote(&[], &NONE, &stop()).expect("refs");
    assert_eq!(refs.tag("v1.0.0"), Some(&first));
    assert_eq!(refs.branch("main"), Some(&second));

    mirror.fetch(&[tag("v1.0.0")], History::Tip, &NONE, &stop()).expect("fetched");
    let repository = mirror.repository();
    assert_eq!(repository.resolve(&tag("v1.0.0"), &stop()).expect("a commit"), first);
    assert!(!repository.has_commit(&second, &stop()).expect("asked"), "only what was asked for is fetched");
    assert_eq!(repository.read(&first, "a/x.txt", 10, &stop()).expect("read"), b"one");
    let category = |path, most| repository.read(&first, path, most, &stop()).expect_err("no").category;
    assert_eq!(category("a/x.txt", 2), Category::TooLarge);
    assert_eq!(category("a/none.txt", 2), Category::PathNotFound);
    assert_eq!(category("a", 2), Category::PathNotFound);
    assert_eq!(category("../x", 2), Category::Invalid);
    assert_eq!(category("-x", 2), Category::Invalid);

    mirror.fetch(&[Rev::Branch("main".to_owned())], History::Full, &NONE, &stop()).expect("fetched");
    assert_eq!(repository.tip("main", &stop()).expect("asked"), Some(second.clone()));
    let changes = repository.changed(Some(&first), &second, &stop()).expect("changes");
    assert_eq!(changes.iter().map(|c| c.path.as_str()).collect::<Vec<_>>(), ["a/x.txt", "c d.txt"]);
    assert!(changes[0].before.is_some() && changes[1].before.is_none());
    let log = repository.log(Some(&first), &second, 10, &stop()).expect("a log");
    assert_eq!(log.len(), 1);
    assert_eq!((log[0].subject.as_str(), log[0].trailer("ticket")), ("second", Some("12")));
    assert_eq!((log[0].author.email.as_str(), log[0].author.time), ("ada@example.com", 1_700_000_000));
    assert_eq!(repository.log(None, &second, 10, &stop()).expect("a log").len(), 2);
    let touched = repository.last_change(&second, "b.txt", &stop()).expect("asked").expect("a commit");
    assert_eq!(touched.oid, first);
    assert!(repository.is_ancestor(&first, &second, &stop()).expect("asked"));
    assert!(!repository.is_ancestor(&second, &first, &stop()).expect("asked"));

    let files = repository.list(&second, "", &stop()).expect("files");
    assert_eq!(files.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["a/x.txt", "b.txt", "c d.txt"]);
    let blobs: Vec<_> = files.iter().map(|f| (&f.oid, f.size)).collect();
    let contents = repository.read_all(&blobs, 1_000, &stop()).expect("contents");
    assert_eq!(contents[&files[2].oid], b"c");
    assert_eq!(repository.read_all(&blobs, 3, &stop()).expect_err("too much").category, Category::TooLarge);
}

#[test]
fn a_commit_is_fetched_by_its_name_or_its_first_digits() {
    let world = World::new();
    let first = world.commit(&[("x", "1")], "first");
    let second = world.commit(&[("x", "2")], "second");
    for (n, digits) in [first.as_str(), first.short(), second.as_str(), &second.as_str()[..7]].into_iter().enumerate() {
        let mirror = world.mirror(&format!("m{n}"));
        mirror.fetch(&[commit(digits)], History::Tip, &NONE, &stop()).expect("fetched");
        assert!(mirror.repository().resolve(&commit(digits), &stop()).expect("found").as_str().starts_with(digits));
        mirror.fetch(&[commit(digits)], History::Tip, &NONE, &stop()).expect("nothing to do");
    }
    let mirror = world.mirror("none");
    for digits in ["0123456", &"1".repeat(40)] {
        let error = mirror.fetch(&[commit(digits)], History::Tip, &NONE, &stop()).expect_err("no such commit");
        assert_eq!(error.category, Category::RefNotFound, "{error}");
    }
}

#[test]
fn a_branch_called_like_a_commit_is_not_one() {
    let world = World::new();
    world.commit(&[("x", "1")], "first");
    git(&world.work(), &["push", "-q", "origin", "HEAD:refs/heads/abcdef1"]);
    let mirror = world.mirror("m");
    let fetched = mirror.fetch(&[commit("abcdef1")], History::Tip, &NONE, &stop());
    let error = fetched.expect_err("a branch is no pin");
    assert_eq!(error.category, Category::RefNotFound);
}

#[test]
fn a_moved_tag_is_seen_and_followed() {
    let world = World::new();
    let first = world.commit(&[("x", "1")], "first");
    world.tag("v1.0.0");
    let mirror = world.mirror("m");
    mirror.fetch(&[tag("v1.0.0")], History::Tip, &NONE, &stop()).expect("fetched");
    let second = world.commit(&[("x", "2")], "second");
    world.tag("v1.0.0");
    let refs = mirror.ls_remote(&["refs/tags/v1.0.0*"], &NONE, &stop()).expect("refs");
    assert_eq!(refs.tag("v1.0.0"), Some(&second));
    assert_eq!(mirror.repository().resolve(&tag("v1.0.0"), &stop()).expect("the old one"), first);
    mirror.fetch(&[tag("v1.0.0")], History::Tip, &NONE, &stop()).expect("fetched");
    assert_eq!(mirror.repository().resolve(&tag("v1.0.0"), &stop()).expect("the new one"), second);
}

#[test]
fn what_is_not_there_is_told_apart() {
    let world = World::new();
    world.commit(&[("x", "1")], "first");
    let mirror = world.mirror("m");
    let missing = mirror.fetch(&[tag("v9.0.0")], History::Tip, &NONE, &stop()).expect_err("no tag");
    assert_eq!(missing.category, Category::RefNotFound, "{missing}");
    let odd = mirror.fetch(&[tag("--upload-pack=x")], History::Tip, &NONE, &stop()).expect_err("an option");
    assert_eq!(odd.category, Category::Invalid);
    fs_err::rename(world.server(), world.root.path().join("elsewhere.git")).expect("moved");
    let gone = mirror.ls_remote(&[], &NONE, &stop()).expect_err("no repository");
    assert_eq!(gone.category, Category::NotFound, "{gone}");
}

#[test]
fn an_ended_git_is_swept_and_a_broken_mirror_made_anew() {
    let world = World::new();
    let first = world.commit(&[("x", "1")], "first");
    let main = [Rev::Branch("main".to_owned())];
    drop(world.mirror("m"));
    let folder = world.root.path().join("m");
    for left in ["packed-refs.lock", "shallow.lock", "refs/heads/main.lock", "objects/pack/tmp_pack_1"] {
        fs_err::create_dir_all(folder.join(left).parent().expect("inside")).expect("a folder");
        fs_err::write(folder.join(left), "").expect("written");
    }
    let mirror = world.mirror("m");
    mirror.fetch(&main, History::Full, &NONE, &stop()).expect("no lock is in the way");
    drop(mirror);
    fs_err::remove_file(folder.join("HEAD")).expect("removed");
    let mirror = world.mirror("m");
    mirror.fetch(&main, History::Full, &NONE, &stop()).expect("fetched again");
    assert_eq!(mirror.repository().tip("main", &stop()).expect("asked"), Some(first));
}

/// Every file of objects, made empty: what a disk leaves after a power failure.
fn break_objects(folder: &std::path::Path) {
    let mut rooms = vec![folder.join("objects")];
    while let Some(room) = rooms.pop() {
        for entry in fs_err::read_dir(room).expect("a folder").flatten() {
            if entry.path().is_dir() {
                rooms.push(entry.path());
            } else {
                fs_err::remove_file(entry.path()).expect("removed");
                fs_err::write(entry.path(), "").expect("made empty");
            }
        }
    }
}

#[test]
fn a_mirror_whose_objects_broke_is_made_anew() {
    let world = World::new();
    let first = world.commit(&[("x", "1")], "first");
    let main = [Rev::Branch("main".to_owned())];
    let mirror = world.mirror("m");
    mirror.fetch(&main, History::Full, &NONE, &stop()).expect("fetched");
    break_objects(&world.root.path().join("m"));
    let error = mirror.repository().list(&first, "", &stop()).expect_err("it cannot be read");
    assert_eq!(error.category, Category::Corrupt, "{error}");
    mirror.ls_remote(&[], &NONE, &stop()).expect("refs");
    assert!(!mirror.repository().has_commit(&first, &stop()).expect("asked"), "what is broken is gone");
    mirror.fetch(&main, History::Full, &NONE, &stop()).expect("fetched again");
    assert_eq!(mirror.repository().read(&first, "x", 10, &stop()).expect("read"), b"1");
}

#[test]
fn a_repository_with_names_by_sha256_is_copied_and_pushed_to() {
    let root = tempfile::tempdir().expect("a folder");
    let format = "--object-format=sha256";
    git(root.path(), &["init", "-q", "--bare", format, "-b", "main", "server.git"]);
    git(root.path(), &["init", "-q", format, "-b", "main", "work"]);
    let work = root.path().join("work");
    fs_err::write(work.join("x"), "1").expect("written");
    git(&work, &["add", "-A"]);
    git(&work, &["commit", "-q", "-m", "first"]);
    git(&work, &["push", "-q", "../server.git", "HEAD:main"]);
    let url = format!("file://{}", root.path().join("server.git").display());
    let remote = Remote::parse(&url, Protocols::default().with_local()).expect("a URL");
    let mirror = Mirror::open(git_program(), &root.path().join("m"), remote, &stop()).expect("a mirror");
    mirror.fetch(&[Rev::Branch("main".to_owned())], History::Full, &NONE, &stop()).expect("fetched");
    let tip = mirror.repository().tip("main", &stop()).expect("asked").expect("a tip");
    assert_eq!((tip.as_str().len(), tip.as_str()), (64, git(&work, &["rev-parse", "HEAD"]).as_str()));
    mirror.publish("main", &draft(&[("x", None), ("y", Some("2"))]), 1, &NONE, &stop()).expect("pushed");
    assert_eq!(git(&root.path().join("server.git"), &["ls-tree", "--name-only", "main"]), "y");
}

#[test]
fn a_copy_has_a_bound_on_disk() {
    let world = World::new();
    // What does not compress.
    let mut seed = 1u64;
    let noise = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        format!("{:x}", seed >> 16)
    });
    // More files than git leaves unpacked.
    let files: Vec<(String, String)> = noise.take(200).enumerate().map(|(n, text)| (format!("f{n}"), text)).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    world.commit(&files, "many");
    let main = [Rev::Branch("main".to_owned())];
    let mirror = world.mirror("m").at_most(1_000);
    let error = mirror.fetch(&main, History::Full, &NONE, &stop()).expect_err("more than a thousand bytes");
    assert_eq!(error.category, Category::TooLarge, "{error}");
    world.mirror("n").fetch(&main, History::Full, &NONE, &stop()).expect("there is room");
}

#[test]
fn one_folder_has_one_mirror() {
    let world = World::new();
    let _first = world.mirror("m");
    let stop = berth_git::Stop::within(std::time::Duration::ZERO);
    let program = crate::fixture::git_program();
    let folder = world.root.path().join("m");
    let error = berth_git::Mirror::open(program, &folder, world.remote(), &stop).expect_err("taken");
    assert_eq!(error.category, Category::TimedOut, "{error}");
}

#[test]
fn a_shallow_copy_becomes_whole_when_history_is_asked_for() {
    let world = World::new();
    let first = world.commit(&[("x", "1")], "first");
    let second = world.commit(&[("x", "2")], "second");
    let mirror = world.mirror("m");
    mirror.fetch(&[commit(second.as_str())], History::Tip, &NONE, &stop()).expect("fetched");
    assert!(!mirror.repository().has_commit(&first, &stop()).expect("asked"));
    mirror.fetch(&[Rev::Branch("main".to_owned())], History::Full, &NONE, &stop()).expect("fetched");
    assert!(mirror.repository().has_commit(&first, &stop()).expect("asked"));
    let bogus = Oid::parse(&"a".repeat(40)).expect("a name");
    assert!(!mirror.repository().has_commit(&bogus, &stop()).expect("asked"));
}
