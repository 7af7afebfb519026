use std::{
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

use berth_peer::{
    Identity, PkiError,
    joining::Issued,
    pki::{Authority, CA, GOSSIP_KEY, NODE, NODE_KEY, NodeSubject},
};
use berth_spec::Class;
use fs_err as fs;

use crate::node::{Ca, name};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("a file").permissions().mode() & 0o777
}

#[test]
fn a_node_is_named_by_its_certificate() {
    let ca = Ca::new();
    for node in ["a", "gpu-1.rack-2", "under_score", "0"] {
        let folder = ca.authority.issue(&name(node), &["10.0.0.1".into(), "host.example".into()]).expect("issued");
        assert_eq!(Identity::load(&folder).expect("loads").name().as_str(), node);
        assert_eq!([CA, NODE].map(|file| mode(&folder.join(file))), [0o644; 2]);
        assert_eq!([NODE_KEY, GOSSIP_KEY].map(|file| mode(&folder.join(file))), [0o600; 2]);
    }
    assert_eq!(mode(&ca.folder.path().join("ca.key")), 0o600);
}

#[test]
fn it_is_known_when_a_certificate_ends() {
    let ca = Ca::new();
    let now = SystemTime::now();
    let folder = ca.authority.issue_for(&name("a"), &[], now - DAY, 10 * DAY).expect("issued");
    let ends = Identity::load(folder).expect("loads").ends().expect("it ends");
    let left = ends.duration_since(now).expect("later");
    assert!(left <= 9 * DAY && left > 9 * DAY - Duration::from_secs(2), "{left:?}");
}

#[test]
fn what_cannot_be_issued_is_said() {
    let ca = Ca::new();
    for (node, host) in [("a..b", "10.0.0.1"), ("a", "not a host"), ("a", "b.node.berth")] {
        let error = ca.authority.issue(&name(node), &[host.into()]).expect_err("cannot");
        assert_eq!(error.class(), Class::Invalid, "{error}");
    }
    assert!(matches!(Authority::create(ca.folder.path()), Err(PkiError::Exists(_))));
    let error = Authority::open(ca.folder.path().join("elsewhere")).expect_err("nothing there").to_string();
    assert!(error.contains("ca.pem") && error.contains("berth pki init"), "{error}");
}

#[test]
fn a_folder_that_does_not_hold_together_says_which_file_and_the_remedy() {
    type Spoil = fn(&Ca, &Path);
    let cases: [(&str, &str, Spoil); 9] = [
        (NODE, "berth pki issue", |_, at| fs::remove_file(at.join(NODE)).expect("removed")),
        (NODE_KEY, "not the key of node.pem", |ca, at| {
            fs::copy(ca.folder("other").join(NODE_KEY), at.join(NODE_KEY)).expect("copied");
        }),
        (NODE_KEY, "chmod 600", |_, at| {
            fs::set_permissions(at.join(NODE_KEY), std::fs::Permissions::from_mode(0o640)).expect("set");
        }),
        (NODE, "not issued by a CA in ca.pem", |_, at| {
            fs::copy(Ca::new().folder("x").join(CA), at.join(CA)).expect("copied");
        }),
        (NODE, "expired 3 days ago", |ca, _| {
            let from = SystemTime::now() - 10 * DAY;
            ca.authority.issue_for(&name("a"), &[], from, 7 * DAY).expect("issued");
        }),
        (NODE, "set this machine's clock", |ca, _| {
            ca.authority.issue_for(&name("a"), &[], SystemTime::now() + DAY, 7 * DAY).expect("issued");
        }),
        (NODE, "names no node", |ca, at| {
            fs::copy(at.join(CA), at.join(NODE)).expect("copied");
            fs::copy(ca.folder.path().join("ca.key"), at.join(NODE_KEY)).expect("copied");
        }),
        (CA, "holds no certificate", |_, at| fs::write(at.join(CA), "").expect("written")),
        (GOSSIP_KEY, "line 1", |_, at| fs::write(at.join(GOSSIP_KEY), "nonsense").expect("written")),
    ];
    for (file, says, spoil) in cases {
        let ca = Ca::new();
        let folder = ca.folder("a");
        spoil(&ca, &folder);
        let error = Identity::load(&folder).expect_err(says).to_string();
        // A CA's own certificate is refused before its name is looked at.
        let says = if says == "names no node" { "does not hold" } else { says };
        assert!(error.contains(file) && error.contains(says), "{error}");
    }
}

#[test]
fn debug_shows_no_secret() {
    let ca = Ca::new();
    let folder = ca.folder("a");
    let shown = format!(
        "{:?} {:?}",
        Identity::load(&folder).expect("loads"),
        Identity::load(&folder).expect("loads").keyring()
    );
    let key = fs::read_to_string(folder.join(GOSSIP_KEY)).expect("a key");
    assert!(shown.contains("name: a") && !shown.contains(key.trim()), "{shown}");
}

#[test]
fn changed_files_are_taken_up_and_bad_ones_are_not() {
    let ca = Ca::new();
    let folder = ca.folder("a");
    let identity = Identity::load(&folder).expect("loads");
    assert!(!identity.reload().expect("nothing changed"));
    ca.folder("a");
    assert!(identity.reload().expect("renewed"));
    for file in [NODE, NODE_KEY] {
        fs::copy(ca.folder("b").join(file), folder.join(file)).expect("copied");
    }
    // `b` was issued twice: certificate and key do not belong together.
    identity.reload().expect_err("key of another");
    let other = ca.folder("b");
    for file in [NODE, NODE_KEY] {
        fs::copy(other.join(file), folder.join(file)).expect("copied");
    }
    let error = identity.reload().expect_err("another's").to_string();
    assert!(error.contains("is for b, and the one before it for a"), "{error}");
    ca.folder("a");
    assert!(identity.reload().expect("mended"));
}

/// Changes a file of the CA, and reads it again: what is refused, in words.
fn changed(authority: &mut Authority, at: &Path, file: &str, text: &str) -> Result<(), String> {
    fs::write(at.join(file), text).expect("written");
    match authority.reread() {
        Ok(read) => {
            *authority = read.expect("it changed");
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_ca_is_replaced_step_by_step_while_its_nodes_run() {
    let (ca, next) = (Ca::new(), Ca::new());
    let (at, mut authority) = (ca.folder.path(), Authority::open(ca.folder.path()).expect("a CA"));
    assert!(authority.reread().expect("read").is_none());
    let [old, new] = [&ca, &next].map(|ca| fs::read_to_string(ca.folder.path().join(CA)).expect("a CA"));
    let key = fs::read_to_string(next.folder.path().join("ca.key")).expect("a key");
    let (first, second) = (format!("{old}{new}"), format!("{new}{old}"));

    let one = Identity::load(ca.folder("a")).expect("a node");
    assert_eq!(one.trust(), authority.trust());
    changed(&mut authority, at, CA, &first).expect("both are trusted");
    assert_ne!(authority.trust(), one.trust());
    // The certificate and the key come one after the other: what is between is refused.
    let between = changed(&mut authority, at, CA, &second).expect_err("the key is the old one's");
    assert!(between.contains("is not that of the private key"), "{between}");
    fs::write(at.join("ca.key"), &key).expect("written");
    changed(&mut authority, at, CA, &second).expect("nodes trust it by now");
    assert_eq!(authority.fingerprint(), next.authority.fingerprint());

    let request = one.request().expect("a request");
    let subject = NodeSubject { name: one.name(), roles: one.roles(), hosts: &[] };
    let issued = Issued {
        certificate: authority.sign(&request, subject, DAY, 0).expect("signed"),
        authorities: authority.authorities().to_owned(),
        gossip: Some(authority.gossip().to_owned()),
        members: Vec::new(),
    };
    one.renewed(&issued).expect("in use");
    assert_eq!(one.trust(), authority.trust());
    changed(&mut authority, at, CA, &new).expect("the old one goes");

    let at_once = changed(&mut authority, at, CA, &old).expect_err("nodes do not trust it any more");
    assert!(at_once.contains("ca.pem") && at_once.contains("is not that of the private key"), "{at_once}");
    fs::copy(Ca::new().folder.path().join("ca.key"), at.join("ca.key")).expect("copied");
    authority.reread().expect_err("the key of another CA");
}

#[test]
fn a_ca_that_nodes_could_not_follow_is_refused() {
    let (ca, next) = (Ca::new(), Ca::new());
    let (at, mut authority) = (ca.folder.path(), Authority::open(ca.folder.path()).expect("a CA"));
    let [old, new] = [&ca, &next].map(|ca| fs::read_to_string(ca.folder.path().join(CA)).expect("a CA"));
    fs::copy(next.folder.path().join("ca.key"), at.join("ca.key")).expect("copied");
    for text in [new.clone(), format!("{new}{old}")] {
        let refused = changed(&mut authority, at, CA, &text).expect_err("its nodes do not trust the new one yet");
        assert!(refused.contains("add the new one first"), "{refused}");
    }
    assert_eq!(authority.fingerprint(), ca.authority.fingerprint());
}

#[test]
fn a_controller_does_not_start_with_a_ca_that_skips_a_step() {
    let (ca, next) = (Ca::new(), Ca::new());
    let (at, folder) = (ca.folder.path(), ca.folder("a"));
    let read = |ca: &Ca, file: &str| fs::read_to_string(ca.folder.path().join(file)).expect("a file");
    let [old, new] = [&ca, &next].map(|ca| (read(ca, CA), read(ca, "ca.key")));
    let (first, second) = (format!("{}{}", old.0, new.0), format!("{}{}", new.0, old.0));
    let start = |authorities: &str, key: &str| {
        fs::write(at.join(CA), authorities).expect("written");
        fs::write(at.join("ca.key"), key).expect("written");
        let node = Identity::load(&folder).expect("a node");
        Authority::open(at).expect("a CA").check_followed_by(&node).map_err(|error| error.to_string())
    };
    start(&old.0, &old.1).expect("as it was");
    start(&first, &old.1).expect("the first step");
    for skipped in [&second, &new.0] {
        let refused = start(skipped, &new.1).expect_err("this node and others know nothing of the new one");
        assert!(refused.contains("its first CA is not in") && refused.contains("berth pki issue"), "{refused}");
    }
    // It has followed the first step, and missed the second.
    fs::write(folder.join(CA), &first).expect("written");
    start(&second, &new.1).expect("the second step");
    let refused = start(&new.0, &new.1).expect_err("its certificate is the old one's");
    assert!(refused.contains("none of its CAs signed"), "{refused}");
    start(&second, &new.1).expect("back");
    fs::copy(next.folder.path().join(GOSSIP_KEY), at.join(GOSSIP_KEY)).expect("copied");
    let refused = start(&second, &new.1).expect_err("nodes do not open its gossip");
    assert!(refused.contains("gossip.key") && refused.contains("do not open each other's"), "{refused}");
}

#[test]
fn a_key_of_gossip_is_replaced_step_by_step() {
    let (ca, other) = (Ca::new(), Ca::new());
    let (at, mut authority) = (ca.folder.path(), Authority::open(ca.folder.path()).expect("a CA"));
    let [old, new] = [&ca, &other].map(|ca| fs::read_to_string(ca.folder.path().join(GOSSIP_KEY)).expect("a key"));
    for refused in [new.clone(), format!("{new}{old}"), "nonsense".to_owned()] {
        changed(&mut authority, at, GOSSIP_KEY, &refused).expect_err("nodes could not open each other's");
        assert_eq!(authority.gossip(), old);
    }
    for step in [format!("{old}{new}"), format!("{new}{old}"), new.clone()] {
        changed(&mut authority, at, GOSSIP_KEY, &step).expect("a step");
        assert_eq!(authority.gossip(), step);
    }
    assert!(!format!("{authority:?}").contains(new.trim()), "no secret is shown");
}
