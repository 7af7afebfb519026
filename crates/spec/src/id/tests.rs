use std::collections::{BTreeSet, HashSet};

use proptest::{prelude::*, test_runner::TestCaseError};

use std::borrow::Cow;

use equivalent::Equivalent as _;

use super::*;

fn name(text: &str) -> DeploymentName {
    DeploymentName::new(text).expect("a name")
}

#[test]
fn names_are_free_and_what_is_refused_says_why() {
    let long = "ü".repeat(MAX_NAME);
    for good in
        ["a", "iris", "myModel", "a b", "a@b", "team/iris", "team/a/b", "default/a/b", "é", "日本", "...", &long]
    {
        assert!(DeploymentName::new(good).is_ok(), "{good}");
    }
    for (bad, character, remedy) in [
        ("", "", "at least one"),
        ("a\nb", "'\\n'", "remove"),
        ("a\u{202e}b", "202e", "remove"),
        ("a\u{61c}b", "61c", "remove"),
        (" a", "' '", "remove"),
        ("a\u{2003}", "2003", "remove"),
        (".", ".", "another name"),
        ("..", "..", "another name"),
        ("/iris", "", "write NAMESPACE/NAME"),
        ("Team/iris", "'T'", "lower-case"),
        ("-a/iris", "'-'", "begin and end"),
        ("a.b/iris", "'.'", "lower-case"),
        (&format!("{}/iris", "x".repeat(64)), "64", "shorten"),
        (&"x".repeat(254), "254", "shorten"),
    ] {
        let error = DeploymentName::new(bad).expect_err(bad).to_string();
        assert!(error.contains(character) && error.contains(remedy), "{bad:?}: {error}");
    }
}

#[test]
fn the_default_namespace_is_left_out_where_that_is_unambiguous() {
    for (namespace, text, written) in [
        ("default", "iris", "iris"),
        ("default", "a/b", "default/a/b"),
        ("team", "iris", "team/iris"),
        ("a", "/", "a//"),
    ] {
        let namespace = Namespace::new(namespace).expect("a namespace");
        let name = DeploymentName::within(&namespace, text).expect("a name");
        assert_eq!((name.to_string().as_str(), name.namespace(), name.name()), (written, namespace.as_str(), text));
        assert_eq!(written.parse(), Ok(name.clone()));
        assert_eq!((name.to_namespace(), name.moved_to(&namespace)), (namespace, name));
    }
}

#[test]
fn a_model_server_knows_a_name_of_the_default_namespace_as_it_was_given() {
    for (written, id) in
        [("iris", "iris"), ("default/a/b", "a/b"), ("team/iris", "team/iris"), ("team/a/b", "team/a/b")]
    {
        assert_eq!(name(written).model_id(), id);
    }
}

#[test]
fn names_of_a_namespace_are_together() {
    let names: BTreeSet<_> = ["zoo", "b/x", "b-c/x", "iris", "b/a", "a/x"].map(name).into();
    let written: Vec<_> = names.iter().map(DeploymentName::as_str).collect();
    assert_eq!(written, ["a/x", "b-c/x", "b/a", "b/x", "iris", "zoo"]);
}

#[test]
fn file_names_are_those_of_old_where_those_were_names() {
    for (written, file) in [
        ("iris", "iris"),
        ("iris-v2.1_b", "iris-v2.1_b"),
        ("Iris", "%49ris"),
        ("team/iris", "team%2Firis"),
        (".hidden", "%2Ehidden"),
        ("é~", "%C3%A9%7E"),
    ] {
        assert_eq!(name(written).file_name(), file);
    }
    let all: HashSet<_> = ["a", "b"].map(|end| name(&format!("{}{end}", "x".repeat(200))).file_name()).into();
    assert!(all.len() == 2 && all.iter().all(|file| file.len() == coded::MAX_FILE_NAME), "{all:?}");
}

#[test]
fn worker_names() {
    for good in ["a", "iris", "iris-v2", "a.b_c-1", &"x".repeat(63)] {
        assert!(WorkerId::new(good).is_ok(), "{good}");
    }
    for bad in ["", "-a", "a-", "A", "ä", "a b", "a/b", "../x", "a@b", &"x".repeat(64)] {
        assert!(WorkerId::new(bad).is_err(), "{bad}");
    }
}

#[test]
fn digests_and_revisions_read_back() {
    let digest = Digest([0xab; 32]);
    assert_eq!(digest.to_string().parse(), Ok(digest));
    assert_eq!(format!("sha256:{digest}").parse(), Ok(digest));
    assert!("xyz".parse::<Digest>().is_err());
    let id = RevisionId::of(name("iris"), b"content");
    assert_eq!(id.to_string().parse(), Ok(id.clone()));
    for bad in ["iris", "iris@12", "iris@zzzzzzzzzzzz", "iris@+1+2+3+4+5+6", "@0123456789ab", "iris@0123456789äb"] {
        assert!(bad.parse::<RevisionId>().is_err(), "{bad}");
    }
}

/// Everything that a name is written as reads back as the same name.
fn survives(name: &DeploymentName) -> Result<(), TestCaseError> {
    prop_assert_eq!(&name.to_string().parse::<DeploymentName>(), &Ok(name.clone()));
    prop_assert!(name.coded().bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/'));
    let decoded = percent_decode(&name.coded()).map(Cow::into_owned);
    prop_assert_eq!(decoded.as_deref(), Some(name.as_str()));
    let json = serde_json::to_string(name).expect("text");
    prop_assert_eq!(&serde_json::from_str::<DeploymentName>(&json).expect("a name"), name);
    let revision = RevisionId::of(name.clone(), b"content");
    prop_assert_eq!(&revision.to_string().parse::<RevisionId>(), &Ok(revision.clone()));
    prop_assert_eq!(RevisionId::from_coded(&revision.coded()), Some(revision));
    let file = name.file_name();
    prop_assert!(file.len() <= coded::MAX_FILE_NAME && !file.starts_with('.') && !file.contains('/'), "{}", file);
    prop_assert_eq!(DeploymentName::within(&name.to_namespace(), name.name()), Ok(name.clone()));
    let map: std::collections::HashMap<DeploymentName, ()> = [(name.clone(), ())].into();
    prop_assert!(map.contains_key(name));
    prop_assert!(name.key().equivalent(name));
    Ok(())
}

proptest! {
    #[test]
    fn any_text_is_refused_with_a_message_or_survives(text in any::<String>(), namespace in "[a-z0-9-]{0,66}") {
        match DeploymentName::new(&text) {
            Ok(name) => survives(&name)?,
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        if let Ok(namespace) = Namespace::new(&namespace) {
            prop_assert_eq!(&namespace.to_string().parse(), &Ok(namespace.clone()));
            if let Ok(name) = DeploymentName::within(&namespace, &text) {
                survives(&name)?;
            }
        }
    }

    #[test]
    fn different_names_have_different_texts(a in "[aA/. ~%]{1,5}", b in "[aA/. ~%]{1,5}", same in any::<bool>()) {
        let (one, other) = (Namespace::DEFAULT, Namespace::new(if same { "default" } else { "a" }).expect("a namespace"));
        if let (Ok(a), Ok(b)) = (DeploymentName::within(&one, &a), DeploymentName::within(&other, &b)) {
            prop_assert_eq!(a == b, a.as_str() == b.as_str());
            prop_assert_eq!(a == b, a.coded() == b.coded());
            prop_assert_eq!(a == b, a.file_name() == b.file_name());
        }
    }
}
