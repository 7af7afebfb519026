//! Functions of a registry: `functions/**.yaml`, one `kind: Function` each, in the form that `berth apply` takes.

use std::{collections::BTreeMap, sync::Arc};

use berth_spec::manifest::{Manifest, ManifestFunction, ParseContext, is_list, node::Position, parse_all};

use crate::{
    document::Document,
    parse::Parsed,
    problem::{Problem, Step},
};

/// The step that checks functions: they are manifests.
pub(crate) const STEP: Step = Step::Manifests;

/// A file of `functions/`: its manifest, and the place of the name.
#[derive(Debug)]
pub(crate) struct FunctionFile {
    pub(crate) function: ManifestFunction,
    name_at: (Position, String),
}

/// Step 2 for one function.
pub(crate) fn read(file: &str, text: &str) -> Parsed<FunctionFile> {
    let problem = |rule, message: String, remedy: &str| Problem::new(STEP, rule, file, message).remedy(remedy);
    let document = match Document::read(text, file, STEP) {
        Ok(Some(document)) => document,
        Ok(None) => {
            let empty = problem("empty", "the file declares nothing".to_owned(), "fill it in, or remove it");
            return Parsed::invalid(file, text, vec![empty]);
        }
        Err(problem) => return Parsed::invalid(file, text, vec![*problem]),
    };
    if is_list(&document.node) {
        let list = problem("kind", "the file holds a list".to_owned(), "declare one function in each file");
        let (place, path) = document.place("/items");
        return Parsed::invalid(file, text, vec![list.at(place, &path, text)]);
    }
    let context = ParseContext { file: file.to_owned(), ..ParseContext::default() };
    let function = match parse_all(text, &context).map(|mut read| read.pop()) {
        Ok(Some(Manifest::Function(function))) => *function,
        Ok(_) => {
            let other = problem("kind", "only functions lie here".to_owned(), "write kind: Function, or move the file");
            let (place, path) = document.place("/kind");
            return Parsed::invalid(file, text, vec![other.at(place, &path, text)]);
        }
        Err(errors) => {
            let told = errors.into_iter().map(|error| {
                let place = Position { line: error.line, column: error.column };
                problem("schema", error.message, &error.remedy).at(place, &error.path, text)
            });
            return Parsed::invalid(file, text, told.collect());
        }
    };
    let name_at = document.place("/metadata/name");
    Parsed::valid(file, text, FunctionFile { function, name_at })
}

/// Finds names that two files declare.
pub(crate) fn check(functions: &[Arc<Parsed<FunctionFile>>]) -> Vec<Problem> {
    let (mut names, mut found) = (BTreeMap::new(), Vec::new());
    for one in functions {
        let Some(file) = one.value.as_deref() else { continue };
        if let Some(other) = names.insert(file.function.name.as_str(), one.file()) {
            let message = format!("{} is declared in {other}, too", file.function.name);
            let (place, path) = &file.name_at;
            let problem = Problem::new(STEP, "duplicate", one.file(), message).at(*place, path, &one.source().1);
            found.push(problem.remedy("give one of them another name, or remove it"));
        }
    }
    found
}
