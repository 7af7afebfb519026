//! The changes of a commit in words, for the audit.

use std::{collections::BTreeMap, sync::Arc};

use berth_control::source::Reconciled;
use berth_registry::Desired;
use berth_spec::DeploymentName;

use crate::refusal;

/// Names in one line: more of them would fill a page.
const MAX_NAMED: usize = 20;

/// The changes of a commit against the one in force before it; nothing where that is not known.
pub(crate) fn changes(desired: &Desired, before: Option<&Desired>) -> Vec<String> {
    let Some(before) = before else { return Vec::new() };
    let mut changes = refusal::changes(desired, Some(before));
    let terms = |of: &Desired| -> BTreeMap<String, _> {
        of.workers.iter().map(|worker| (worker.worker_id.clone(), worker.terms())).collect()
    };
    changes.extend(differing(&terms(desired), &terms(before)).map(|worker| format!("terms of {worker}")));
    let secrets = |of: &Desired| {
        let mut files: BTreeMap<String, Vec<(String, Arc<str>)>> = BTreeMap::new();
        for file in &of.secret_files {
            files.entry(file.worker.clone()).or_default().push((file.path.clone(), Arc::clone(&file.text)));
        }
        files
    };
    changes.extend(differing(&secrets(desired), &secrets(before)).map(|worker| format!("secrets of {worker}")));
    if desired.settings != before.settings {
        changes.push("registry.yaml".to_owned());
    }
    changes
}

/// The same in one line; where it is not known what was in force, what was declared.
pub(crate) fn said(changes: &[String], declared: &Reconciled) -> String {
    if !changes.is_empty() {
        return some(changes);
    }
    let kinds = [("declared", names(&declared.changed)), ("deleted", names(&declared.deleted))];
    let said: Vec<String> = kinds
        .iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("{} {what}", some(names)))
        .collect();
    if said.is_empty() { "nothing that is declared has changed".to_owned() } else { said.join("; ") }
}

pub(crate) fn names(deployments: &[DeploymentName]) -> Vec<String> {
    deployments.iter().map(ToString::to_string).collect()
}

fn some(names: &[String]) -> String {
    let mut said = names.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > MAX_NAMED {
        said.push_str(&format!(" and {} more", names.len() - MAX_NAMED));
    }
    said
}

/// The keys whose values are not the same, or are not there, on one side.
fn differing<V: PartialEq>(one: &BTreeMap<String, V>, other: &BTreeMap<String, V>) -> impl Iterator<Item = String> {
    let mut keys: Vec<String> = one.keys().filter(|key| one.get(*key) != other.get(*key)).cloned().collect();
    keys.extend(other.keys().filter(|key| !one.contains_key(*key)).cloned());
    keys.sort();
    keys.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_commit_is_one_line() {
        let names: Vec<String> = (0..25).map(|n| format!("m{n}")).collect();
        let name = |name: &str| DeploymentName::new(name).expect("a name");
        let (changed, deleted) = (names.iter().map(|text| name(text)).collect(), vec![name("old")]);
        let declared = Reconciled { changed, deleted, ..Reconciled::default() };
        let line = said(&[], &declared);
        assert!(line.starts_with("m0, m1, ") && line.ends_with("m19 and 5 more declared; old deleted"), "{line}");
        assert_eq!(said(&["x added".to_owned()], &declared), "x added");
        assert_eq!(said(&[], &Reconciled::default()), "nothing that is declared has changed");
    }

    #[test]
    fn what_differs_is_named_once() {
        let map = |pairs: &[(&str, u8)]| pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
        let (now, before) = (map(&[("a", 1), ("b", 1), ("new", 1)]), map(&[("a", 1), ("b", 2), ("gone", 1)]));
        let found: Vec<String> = differing(&now, &before).collect();
        assert_eq!(found, ["b", "gone", "new"]);
    }
}
