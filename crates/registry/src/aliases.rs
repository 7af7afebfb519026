//! Aliases of a registry: `aliases/**.yaml`, one `kind: Alias` each, in the form that `berth apply` takes.
//!
//! An alias leads to deployments of the registry alone, so that a commit says all that its names lead to.

use std::{collections::BTreeMap, sync::Arc};

use berth_spec::{
    id::DEFAULT_NAMESPACE,
    manifest::{Manifest, ManifestAlias, ParseContext, closest, is_list, node::Position, parse_all},
};

use crate::{
    DeploymentManifest,
    document::Document,
    parse::Parsed,
    problem::{Problem, Step},
};

/// The step that checks aliases: they are manifests.
pub(crate) const STEP: Step = Step::Manifests;

/// A file of `aliases/`: its alias, and the places of the name and the targets.
#[derive(Debug)]
pub(crate) struct AliasFile {
    pub(crate) alias: ManifestAlias,
    name_at: (Position, String),
    /// The place at which each target is named, in their order.
    targets_at: Vec<(Position, String)>,
}

/// Step 2 for one alias.
pub(crate) fn read(file: &str, text: &str) -> Parsed<AliasFile> {
    let problem = |rule, message: String, remedy: &str| Problem::new(STEP, rule, file, message).remedy(remedy);
    let document = match Document::read(text, file, STEP) {
        Ok(Some(document)) => document,
        Ok(None) => {
            let empty = problem("empty", "the file declares nothing".to_owned(), "fill it in, or remove it");
            return Parsed::invalid(file, text, vec![empty]);
        }
        Err(problem) => return Parsed::invalid(file, text, vec![*problem]),
    };
    let at = |found: Problem, pointer: &str| {
        let (place, path) = document.place(pointer);
        found.at(place, &path, text)
    };
    if is_list(&document.node) {
        let list = problem("kind", "the file holds a list".to_owned(), "declare one alias in each file");
        return Parsed::invalid(file, text, vec![at(list, "/items")]);
    }
    let context = ParseContext { file: file.to_owned(), ..ParseContext::default() };
    let alias = match parse_all(text, &context).map(|mut read| read.pop()) {
        Ok(Some(Manifest::Alias(alias))) => *alias,
        Ok(_) => {
            let other = problem("kind", "only aliases lie here".to_owned(), "write kind: Alias, or move the file");
            return Parsed::invalid(file, text, vec![at(other, "/kind")]);
        }
        Err(errors) => {
            let told = errors.into_iter().map(|error| {
                let place = Position { line: error.line, column: error.column };
                problem("schema", error.message, &error.remedy).at(place, &error.path, text)
            });
            return Parsed::invalid(file, text, told.collect());
        }
    };
    if alias.name.namespace() != DEFAULT_NAMESPACE {
        let message = format!("{} is not in the namespace of a registry", alias.name);
        let remedy = "leave metadata.namespace out: what a registry declares is in `default`";
        return Parsed::invalid(file, text, vec![at(problem("namespace", message, remedy), "/metadata/namespace")]);
    }
    let targets_at = (0..alias.targets.len()).map(|n| document.place(&format!("/spec/targets/{n}/deployment")));
    let (name_at, targets_at) = (document.place("/metadata/name"), targets_at.collect());
    Parsed::valid(file, text, AliasFile { alias, name_at, targets_at })
}

/// Checks aliases against deployments: a name is one thing, and leads to deployments of the registry.
pub(crate) fn check(aliases: &[Arc<Parsed<AliasFile>>], manifests: &[Arc<Parsed<DeploymentManifest>>]) -> Vec<Problem> {
    let deployments: BTreeMap<&str, &str> = manifests
        .iter()
        .filter_map(|one| Some((one.value.as_deref()?.id.as_str(), one)))
        .map(|(id, one)| (id, one.file()))
        .collect();
    // One that cannot be read may be the one that is meant.
    let is_partial = manifests.iter().any(|one| one.value.is_none());
    let (mut names, mut found) = (deployments.clone(), Vec::new());
    for one in aliases {
        let Some(file) = one.value.as_deref() else { continue };
        let text = one.source().1;
        let mut problem = |rule, (place, path): &(Position, String), message: String, remedy: String| {
            found.push(Problem::new(STEP, rule, one.file(), message).at(*place, path, &text).remedy(remedy));
        };
        let name = file.alias.name.as_str();
        if let Some(other) = names.insert(name, one.file()) {
            let message = format!("{name} is declared in {other}, too");
            problem("duplicate", &file.name_at, message, "give one of them another name, or remove it".to_owned());
        }
        for ((target, _), at) in file.alias.targets.iter().zip(&file.targets_at) {
            if is_partial || deployments.contains_key(target.as_str()) {
                continue;
            }
            let remedy = match closest(target.as_str(), deployments.keys().copied()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "name the id of a manifest in models/, or add one".to_owned(),
            };
            problem("unknown-target", at, format!("the registry has no deployment {:?}", target.as_str()), remedy);
        }
    }
    found
}
