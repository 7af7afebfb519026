//! The manifests of a folder, as a snapshot.
//!
//! A file that cannot be understood changes nothing: what it declared when it was last understood stays. After a restart
//! nobody knows what such a file declared, so nothing that this process has not seen in a file is deleted until every file
//! is understood.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{Context as Hasher, SHA256};
use berth_spec::{
    DeploymentName,
    manifest::{self, Manifest, NameScope, ParseContext},
};
use url::Url;

use super::scan::{Scanned, Text};
use crate::{
    resolve,
    source::{Problem, Prune, Snapshot},
};

/// Bytes of a revision: as many as a short commit has.
const REVISION_BYTES: usize = 6;

/// A file of the folder.
#[derive(Debug, Default)]
struct File {
    text: Option<Text>,
    /// Last valid content; `None` if there was none.
    good: Option<Vec<Manifest>>,
    /// True if the current content is invalid.
    broken: bool,
}

/// The content of a folder's manifests at the last scan; of an invalid file, the last valid content.
#[derive(Debug, Default)]
pub(super) struct FolderManifests {
    files: BTreeMap<PathBuf, File>,
    /// Names that a file declared since the start.
    seen: BTreeSet<DeploymentName>,
}

impl FolderManifests {
    /// The files that were manifests before.
    pub(super) fn known(&self) -> BTreeSet<PathBuf> {
        self.files.keys().cloned().collect()
    }

    /// Takes in what was read; gives what the folder wants, and what is wrong with it.
    pub(super) fn take_in(&mut self, scanned: Scanned) -> (Snapshot, Vec<Problem>) {
        let mut problems = Vec::new();
        let incomplete = scanned.incomplete.is_some();
        if let Some(reason) = &scanned.incomplete {
            problems.push(problem("FolderIncomplete", format!("{reason}; nothing is deleted")));
        }
        self.read(scanned, &mut problems);
        let wanted = self.wanted(&mut problems);
        let prune = if incomplete {
            Prune::None
        } else if self.files.values().any(|file| file.broken && file.good.is_none()) {
            Prune::Only(self.seen.clone())
        } else {
            Prune::All
        };
        self.seen.extend(wanted.iter().map(|manifest| manifest.name().clone()));
        let mut snapshot = Snapshot { revision: self.revision(), prune, ..Snapshot::default() };
        for manifest in wanted {
            match manifest {
                Manifest::Deployment(manifest) => snapshot.deployments.push(*manifest),
                Manifest::Alias(manifest) => snapshot.aliases.push(*manifest),
                Manifest::Function(manifest) => snapshot.functions.push(*manifest),
            }
        }
        (snapshot, problems)
    }

    /// The local artifacts that the manifests name.
    pub(super) fn artifacts(snapshot: &Snapshot) -> Vec<PathBuf> {
        snapshot.deployments.iter().filter_map(|manifest| resolve::local_artifact(&manifest.spec.model)).collect()
    }

    /// Reads the manifests whose text changed.
    fn read(&mut self, scanned: Scanned, problems: &mut Vec<Problem>) {
        if scanned.incomplete.is_none() {
            let there: BTreeSet<&PathBuf> = scanned.files.iter().map(|(path, _)| path).collect();
            self.files.retain(|path, _| there.contains(path));
        }
        for (path, text) in scanned.files {
            let file = self.files.entry(path.clone()).or_default();
            if !file.broken && file.text.as_ref() == Some(&text) {
                continue;
            }
            match parse(&path, &text) {
                Ok(manifests) => (file.good, file.broken) = (Some(manifests), false),
                Err(message) => {
                    file.broken = true;
                    let kept = if file.good.is_some() { "; what it declared before stays" } else { "" };
                    problems.push(problem("ManifestInvalid", format!("{message}{kept}")));
                }
            }
            file.text = Some(text);
        }
    }

    /// The deployments, aliases and functions of all files; where two declare the same, the first by path counts.
    fn wanted(&self, problems: &mut Vec<Problem>) -> Vec<Manifest> {
        let mut wanted: BTreeMap<(NameScope, &DeploymentName), (&Path, &Manifest)> = BTreeMap::new();
        for (path, file) in &self.files {
            for manifest in file.good.iter().flatten() {
                if let Some((first, _)) = wanted.get(&manifest.key()) {
                    let (name, first, second) = (manifest.name(), first.display(), path.display());
                    let message = format!("{name} is declared in {first} and again in {second}: the first one counts");
                    let deployment = Some(name.clone());
                    problems.push(Problem { deployment, reason: "DeclaredTwice", message });
                } else {
                    wanted.insert(manifest.key(), (path, manifest));
                }
            }
        }
        wanted.into_values().map(|(_, manifest)| manifest.clone()).collect()
    }

    /// A digest of all texts that count.
    fn revision(&self) -> String {
        let mut hasher = Hasher::new(&SHA256);
        for (path, file) in &self.files {
            hasher.update(path.as_os_str().as_encoded_bytes());
            hasher.update(&[0]);
            if let Some(Ok(text)) = &file.text {
                hasher.update(text.as_bytes());
            }
            hasher.update(&[0]);
        }
        let digest = hasher.finish();
        digest.as_ref().iter().take(REVISION_BYTES).map(|byte| format!("{byte:02x}")).collect()
    }
}

fn problem(reason: &'static str, message: String) -> Problem {
    Problem { deployment: None, reason, message }
}

fn parse(path: &Path, text: &Text) -> Result<Vec<Manifest>, String> {
    let text = text.as_ref().map_err(Clone::clone)?;
    let base = path.parent().and_then(|folder| Url::from_directory_path(folder).ok()).map(String::from);
    let context = ParseContext { file: path.display().to_string(), base, ..ParseContext::default() };
    manifest::parse_all(text, &context)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanned(files: &[(&str, &str)], incomplete: bool) -> Scanned {
        let read = |(path, text): &(&str, &str)| (PathBuf::from(path), Ok((*text).to_owned()));
        let incomplete = incomplete.then(|| "the disk is tired".to_owned());
        Scanned { files: files.iter().map(read).collect(), incomplete }
    }

    fn declares(name: &str) -> String {
        format!(
            "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: {name}}}\nspec:\n  model: {{format: onnx, uri: \"file:model.onnx\"}}\n"
        )
    }

    #[test]
    fn nothing_unknown_is_deleted_while_a_file_is_broken_or_unread() {
        let (a, b) = (declares("a"), declares("b"));
        let mut manifests = FolderManifests::default();
        let (first, problems) = manifests.take_in(scanned(&[("/f/a.yaml", &a), ("/f/b.yaml", "apiVersion: [")], false));
        assert_eq!((first.deployments.len(), problems.len()), (1, 1));
        assert_eq!(first.prune, Prune::Only(BTreeSet::new()), "nobody knows what b declared");
        let (second, _) = manifests.take_in(scanned(&[("/f/a.yaml", &a), ("/f/b.yaml", &b)], false));
        assert_eq!((second.deployments.len(), &second.prune), (2, &Prune::All));
        assert_ne!(first.revision, second.revision);
        let (third, problems) = manifests.take_in(scanned(&[("/f/a.yaml", &a), ("/f/b.yaml", "apiVersion: [")], false));
        assert!(third.deployments.len() == 2 && problems[0].message.ends_with("what it declared before stays"));
        let (fourth, _) = manifests.take_in(scanned(&[("/f/a.yaml", &a)], true));
        assert_eq!((fourth.deployments.len(), &fourth.prune), (2, &Prune::None));
    }

    #[test]
    fn aliases_stand_beside_deployments_and_share_their_names() {
        let alias = "apiVersion: berth.dev/v1\nkind: Alias\nmetadata: {name: b}\nspec: {targets: [{deployment: a}]}\n";
        let (a, b) = (declares("a"), declares("b"));
        let mut manifests = FolderManifests::default();
        let (first, _) = manifests.take_in(scanned(&[("/f/a.yaml", &a), ("/f/b.yaml", alias)], false));
        assert_eq!((first.deployments.len(), first.aliases.len()), (1, 1));
        let (_, problems) =
            manifests.take_in(scanned(&[("/f/a.yaml", &a), ("/f/b.yaml", alias), ("/f/c.yaml", &b)], false));
        assert_eq!(problems[0].reason, "DeclaredTwice", "{}", problems[0].message);
    }

    #[test]
    fn of_two_files_with_one_name_the_first_counts() {
        let (one, two) = (declares("same"), declares("same").replace("model.onnx", "other.onnx"));
        let (snapshot, problems) =
            FolderManifests::default().take_in(scanned(&[("/f/a.yaml", &one), ("/f/b.yaml", &two)], false));
        assert!(snapshot.deployments[0].spec.model.uri.ends_with("model.onnx") && snapshot.deployments.len() == 1);
        assert_eq!(problems[0].reason, "DeclaredTwice");
    }
}
