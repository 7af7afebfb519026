//! The file of requirements in an artifact, which lists the packages that the model needs.

use std::path::{Path, PathBuf};

use berth_spec::{
    FailureCategory,
    card::{lock::LARGEST, requirements::Requirements},
};

use crate::{artifacts::Source, fault::Fault};

/// Reads the file at a path in the artifact.
pub(super) async fn read(artifact: Option<&Source>, path: &str) -> Result<Requirements, Fault> {
    let folder = match artifact {
        Some(Source::Folder(folder)) => folder.clone(),
        Some(Source::File(_)) => {
            let how = "is a file of the artifact's folder, and the artifact is one file: name the packages instead";
            return Err(wrong(path, how));
        }
        Some(Source::Opaque { .. }) | None => return Err(wrong(path, "needs an artifact that a worker fetches")),
    };
    let name = path.to_owned();
    tokio::task::spawn_blocking(move || read_in(&folder, &name)).await.map_err(Fault::internal)?
}

fn read_in(folder: &Path, path: &str) -> Result<Requirements, Fault> {
    let root = fs_err::canonicalize(folder).map_err(|error| Fault::disk(&error))?;
    // A link may lead out of the folder: into a file of the worker that the error would show.
    let found: Option<PathBuf> = fs_err::canonicalize(root.join(path)).ok();
    let file = found.filter(|file| file.starts_with(&root) && file.is_file());
    let file = file.ok_or_else(|| {
        wrong(path, "is no file of the artifact's folder: put it there, or name the packages (`packages`)")
    })?;
    let size = fs_err::metadata(&file).map_err(|error| Fault::disk(&error))?.len();
    if size > LARGEST as u64 {
        return Err(wrong(path, &format!("has {size} bytes, and {LARGEST} are allowed")));
    }
    let text = fs_err::read_to_string(&file).map_err(|error| wrong(path, &format!("cannot be read: {error}")))?;
    Requirements::read(&text).map_err(|error| wrong(path, &error.to_string()))
}

fn wrong(path: &str, how: &str) -> Fault {
    Fault::new(FailureCategory::Dependencies, format!("spec.model.environment.requirements: {path} {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn packages_are_read_from_the_folder_and_from_nowhere_else() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = place.path().join("model");
        fs_err::create_dir_all(&folder).expect("a folder");
        fs_err::write(folder.join("requirements.txt"), "# MLflow\nb==2\na==1\n").expect("written");
        fs_err::write(folder.join("loose.txt"), "a>=1\n").expect("written");
        fs_err::write(place.path().join("secret"), "a==1\n").expect("written");
        std::os::unix::fs::symlink("../secret", folder.join("link.txt")).expect("a link");
        let source = Source::Folder(folder.clone());
        let found = read(Some(&source), "requirements.txt").await.expect("packages");
        assert_eq!((found.packages, found.is_locked), (vec!["a==1".to_owned(), "b==2".to_owned()], false));
        for (source, path, said) in [
            (source.clone(), "loose.txt", "loose.txt line 1: \"a>=1\" is no pinned package"),
            (source.clone(), "none.txt", "is no file of the artifact's folder"),
            (source.clone(), "../secret", "is no file of the artifact's folder"),
            (source, "link.txt", "is no file of the artifact's folder"),
            (Source::File(folder.join("loose.txt")), "loose.txt", "the artifact is one file"),
        ] {
            let fault = read(Some(&source), path).await.expect_err(path);
            assert!(fault.message.contains(said), "{fault}");
            assert_eq!(fault.category, FailureCategory::Dependencies);
        }
    }
}
