//! Arbitrary text never panics, and a problem is always somewhere in it.

use berth_git::{Protocols, Stop};
use berth_registry::{CardRules, Matrix, Pass, Settings, Tree, Validator, check_card};
use proptest::prelude::*;

use crate::fixture::{CARD, NOW, WORKER, stop};

/// A document that is right, with one piece of it cut out, doubled, or replaced by what YAML has pitfalls for.
fn mutated(document: &'static str) -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("".to_owned()),
        Just("~".to_owned()),
        Just("[]".to_owned()),
        Just("{a: &x [*x]}".to_owned()),
        Just("? [1]\n: 2".to_owned()),
        Just("!!binary x".to_owned()),
        Just("\u{feff}\u{85}\t".to_owned()),
        Just("1e999".to_owned()),
        Just("---\n---\n".to_owned()),
        ".{0,20}",
    ];
    (0..document.len(), 0..40_usize, piece).prop_map(move |(start, length, piece)| {
        let end = (start + length).min(document.len());
        match (document.get(..start), document.get(end..)) {
            (Some(before), Some(after)) => format!("{before}{piece}{after}"),
            _ => piece,
        }
    })
}

fn check(text: &str) -> Result<(), TestCaseError> {
    let matrix = Matrix::embedded();
    let rules = CardRules { matrix: &matrix, today: "2026-11-22", protocols: Protocols::default() };
    for problem in check_card(text, "c.yaml", &rules).problems {
        // YAML breaks lines at a lone carriage return, too.
        let lines = text.split(['\n', '\r']).count();
        prop_assert!(problem.line as usize <= lines + 1, "{problem:?}");
        prop_assert!(!problem.render().is_empty());
    }
    let _ = Settings::read(text);
    let _ = Matrix::read(text, "m.yaml");
    Ok(())
}

fn folder_with(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in berth_registry::FOLDERS {
        fs_err::create_dir_all(folder.path().join(name)).expect("a folder");
    }
    for file in ["models/production/x.yaml", "workers/worker-a.yaml"] {
        fs_err::write(folder.path().join(file), text).expect("written");
    }
    fs_err::create_dir_all(folder.path().join("workers/secrets")).expect("a folder");
    fs_err::write(folder.path().join("workers/secrets/worker-a-secrets.yaml"), text).expect("written");
    folder
}

fn validate(folder: &tempfile::TempDir, stop: &Stop) -> berth_registry::Report {
    let tree = Tree::Folder(folder.path().to_owned());
    let validator = Validator::offline(Protocols::default());
    let pass = Pass { tree: &tree, previous: None, now: NOW, allow_empty: false, stop };
    validator.validate(&pass).expect("the folder can be read")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text_never_panics(text in "(?s).{0,200}") {
        check(&text)?;
    }

    #[test]
    fn mutated_cards_never_panic(text in mutated(CARD)) {
        check(&text)?;
    }

    #[test]
    fn mutated_files_never_panic(text in mutated(WORKER)) {
        let folder = folder_with(&text);
        let report = validate(&folder, &stop());
        prop_assert!(report.desired.is_none());
    }
}

#[test]
fn a_folder_is_checked_without_git() {
    let folder = folder_with(WORKER);
    let report = validate(&folder, &stop());
    assert!(report.offline && report.counts.workers == 1);
    assert!(!report.is_accepted());
}
