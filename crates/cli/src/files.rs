//! Manifests from files, folders and standard input, checked before anything is sent.

use std::{
    io::{ErrorKind, Read},
    path::{Component, Path, PathBuf},
};

use berth_spec::manifest::{self, Manifest, ManifestError, ParseContext, SourceLine};
use clap::Args;
use fs_err as fs;
use url::Url;

use crate::failure::Failure;

/// Endings of the files that are read from a folder. A file that is named may have any.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// Most files that one command reads. Stops a walk of a wrong folder (`/`).
const MOST_FILES: usize = 100_000;

/// Manifests to read.
#[derive(Debug, Clone, Args)]
pub(crate) struct FileArgs {
    /// Manifest, folder of manifests (all *.yaml, *.yml and *.json below it), or - for standard input
    #[arg(short = 'f', long = "filename", value_name = "PATH", required = true)]
    pub(crate) filename: Vec<PathBuf>,
}

/// Manifests that share a base for relative locations.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The URI of their folder.
    pub(crate) base: String,
    /// Valid documents in the order of the text.
    pub(crate) documents: Vec<Manifest>,
}

/// Manifests that were read.
#[derive(Debug, Default)]
pub(crate) struct Manifests {
    /// Right ones, by folder in reading order.
    pub(crate) batches: Vec<Batch>,
    /// `ServingRuntime`s of KServe, as they were written, where they are taken.
    pub(crate) runtimes: Vec<serde_json::Value>,
    /// True if they are; else each is an error.
    takes_runtimes: bool,
    /// Errors of the invalid manifests.
    pub(crate) errors: Vec<ManifestError>,
    /// Files that were read.
    pub(crate) files: usize,
    /// Files of a folder that are something else: they have no `apiVersion`.
    pub(crate) skipped: usize,
}

/// Reason for reading a file.
#[derive(Clone, Copy)]
enum FoundBy {
    /// Somebody named it: it has to be a manifest.
    Named,
    /// Found in a folder that was named, perhaps among other files.
    InFolder,
}

impl FileArgs {
    /// Reads everything and checks it.
    pub(crate) fn read(&self) -> Result<Manifests, Failure> {
        self.read_into(Manifests::default())
    }

    /// The same, with model servers of KServe beside manifests; any error is a failure that shows all of them.
    pub(crate) fn read_with_runtimes(&self) -> Result<Manifests, Failure> {
        let manifests = self.read_into(Manifests { takes_runtimes: true, ..Manifests::default() })?;
        manifests.failure().map_or(Ok(manifests), Err)
    }

    fn read_into(&self, mut manifests: Manifests) -> Result<Manifests, Failure> {
        for path in &self.filename {
            if path.as_os_str() == "-" {
                let mut text = String::new();
                std::io::stdin()
                    .read_to_string(&mut text)
                    .map_err(|e| Failure::doing("cannot read standard input", e))?;
                manifests.add_named("-", &text, &base_of(&std::env::current_dir()?)?);
            } else if fs::metadata(path)?.is_dir() {
                let mut found = Vec::new();
                walk(path, &mut found)?;
                if found.is_empty() {
                    return Err(Failure::NotFound(format!("{} has no *.yaml, *.yml or *.json file", path.display())));
                }
                found.sort();
                let before = manifests.files;
                found.iter().try_for_each(|file| manifests.read_file(file, FoundBy::InFolder))?;
                if manifests.files == before {
                    let files = plural(found.len(), "file");
                    let message = format!(
                        "{} has no manifest, only {files} without an apiVersion: `berth schema manifest` shows every field",
                        path.display()
                    );
                    return Err(Failure::NotFound(message));
                }
            } else {
                manifests.read_file(path, FoundBy::Named)?;
            }
        }
        manifests.find_doubles();
        Ok(manifests)
    }

    /// Reads everything; any error is a failure that shows all of them.
    pub(crate) fn read_right(&self) -> Result<Vec<Batch>, Failure> {
        let manifests = self.read()?;
        manifests.failure().map_or(Ok(manifests.batches), Err)
    }
}

impl Manifests {
    fn read_file(&mut self, path: &Path, found: FoundBy) -> Result<(), Failure> {
        let text = match (fs::read_to_string(path), found) {
            (Ok(text), FoundBy::InFolder) if !text.contains("apiVersion") => {
                self.skipped += 1;
                return Ok(());
            }
            (Err(error), _) if error.kind() == ErrorKind::InvalidData => {
                let message = format!("{} is not text: -f takes manifests, `berth serve` a model", path.display());
                return Err(Failure::Invalid(message));
            }
            (text, _) => text?,
        };
        let absolute = from_root(path)?;
        let folder = absolute.parent().unwrap_or(&absolute);
        let (name, base) = (path.display().to_string(), base_of(folder)?);
        match found {
            FoundBy::Named => self.add_named(&name, &text, &base),
            FoundBy::InFolder => self.add(&name, &text, &base),
        }
        Ok(())
    }

    /// A text that somebody named: one that declares nothing is a mistake.
    fn add_named(&mut self, file: &str, text: &str, base: &str) {
        let found = |all: &Self| (all.count(), all.runtimes.len(), all.errors.len());
        let before = found(self);
        self.add(file, text, base);
        if before == found(self) {
            self.errors.push(ManifestError {
                file: file.to_owned(),
                line: 0,
                column: 0,
                path: String::new(),
                message: "it declares nothing".to_owned(),
                remedy: "write at least one document; `berth schema manifest` shows every field".to_owned(),
                source_line: SourceLine::default(),
            });
        }
    }

    fn add(&mut self, file: &str, text: &str, base: &str) {
        self.files += 1;
        let context = ParseContext { file: file.to_owned(), base: Some(base.to_owned()), ..ParseContext::default() };
        let read = if self.takes_runtimes {
            manifest::parse_beside_runtimes(text, &context).map(|(documents, runtimes)| {
                self.runtimes.extend(runtimes);
                documents
            })
        } else {
            manifest::parse_all(text, &context)
        };
        match read.and_then(|documents| functions_right(documents, file)) {
            Ok(documents) => match self.batches.last_mut() {
                Some(batch) if batch.base == base => batch.documents.extend(documents),
                _ => self.batches.push(Batch { base: base.to_owned(), documents }),
            },
            Err(errors) => self.errors.extend(errors),
        }
    }

    /// Within one file the parser finds them; this is for several files.
    fn find_doubles(&mut self) {
        let mut seen = std::collections::BTreeSet::new();
        for document in self.batches.iter().flat_map(|batch| &batch.documents) {
            if !seen.insert(document.key()) {
                self.errors.push(ManifestError {
                    file: "the given files".to_owned(),
                    line: 0,
                    column: 0,
                    path: "metadata.name".to_owned(),
                    message: format!("{} is declared in more than one of them", document.name()),
                    remedy: "remove one, or give it another name".to_owned(),
                    source_line: SourceLine::default(),
                });
            }
        }
    }

    /// Number of valid documents.
    pub(crate) fn count(&self) -> usize {
        self.batches.iter().map(|batch| batch.documents.len()).sum()
    }

    /// All errors as they are shown on a terminal; `None` when there are none.
    pub(crate) fn failure(&self) -> Option<Failure> {
        if self.errors.is_empty() {
            return None;
        }
        let mut text: String = self.errors.iter().map(|error| error.render() + "\n\n").collect();
        text.push_str(&plural(self.errors.len(), "error"));
        Some(Failure::Invalid(text))
    }
}

impl Batch {
    /// Bodies for the API, none larger than it takes: documents in JSON, which is YAML, one to a line.
    pub(crate) fn bodies(&self) -> Vec<String> {
        let mut bodies = vec![String::new()];
        for manifest in &self.documents {
            let mut document = manifest.raw().clone();
            if let Some(version) = manifest.resource_version() {
                document["metadata"]["resourceVersion"] = version.into();
            }
            if let Some(base) = manifest.base().filter(|base| *base != self.base) {
                document["metadata"]["baseUri"] = base.into();
            }
            let text = format!("---\n{document}\n");
            match bodies.last_mut() {
                Some(body) if body.len() + text.len() <= berth_wire::api::MAX_BODY => body.push_str(&text),
                _ => bodies.push(text),
            }
        }
        bodies
    }
}

/// Checks what the form of a function does not say: its entrypoint, its place, its versions.
fn functions_right(documents: Vec<Manifest>, file: &str) -> Result<Vec<Manifest>, Vec<ManifestError>> {
    let wrong = |document: &Manifest| {
        let Manifest::Function(function) = document else { return None };
        let message = berth_functions::deployment::check(function).err()?;
        Some(ManifestError {
            file: file.to_owned(),
            line: 0,
            column: 0,
            path: format!("{}.spec", function.name),
            message,
            remedy: "docs/functions.md describes the fields".to_owned(),
            source_line: SourceLine::default(),
        })
    };
    let errors: Vec<ManifestError> = documents.iter().filter_map(wrong).collect();
    if errors.is_empty() { Ok(documents) } else { Err(errors) }
}

/// `1 error`, `2 errors`.
pub(crate) fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A path from the root without `..`, so that a folder has the same address wherever the command is typed. Links keep their names,
/// but for those that a `..` leaves.
fn from_root(path: &Path) -> std::io::Result<PathBuf> {
    let mut found = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        if part == Component::ParentDir {
            if found.is_symlink() {
                found = fs::canonicalize(&found)?;
            }
            found.pop();
        } else {
            found.push(part);
        }
    }
    Ok(found)
}

/// The `file:` URI of a folder.
pub(crate) fn base_of(folder: &Path) -> Result<String, Failure> {
    Url::from_directory_path(folder)
        .map(String::from)
        .map_err(|()| Failure::Usage(format!("{} is not an absolute path", folder.display())))
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), Failure> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if kind.is_dir() && !hidden {
            walk(&path, found)?;
        } else if !hidden && path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known)) {
            found.push(path);
        }
        if found.len() > MOST_FILES {
            return Err(Failure::Usage(format!(
                "{} has more than {MOST_FILES} files: name a smaller folder",
                folder.display()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leaves_a_link_for_where_it_leads_and_keeps_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = fs::canonicalize(folder.path()).expect("it is there");
        fs::create_dir_all(at.join("a/b")).expect("folders");
        std::os::unix::fs::symlink(at.join("a/b"), at.join("link")).expect("a link");
        for (path, found) in [
            ("a/b/../m.yaml", "a/m.yaml"),
            ("a/../link/m.yaml", "link/m.yaml"),
            ("link/../m.yaml", "a/m.yaml"),
            ("a/b/../../link/../../m.yaml", "m.yaml"),
        ] {
            assert_eq!(from_root(&at.join(path)).expect("it is there"), at.join(found), "{path}");
        }
    }
}
