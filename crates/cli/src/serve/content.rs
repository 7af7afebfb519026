//! Finds out which model a file or folder holds, by names and first bytes.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use fs_err as fs;

use super::estimator::Framework;
use crate::failure::Failure;

/// Entries of a folder that are looked at.
const MAX_ENTRIES: usize = 100_000;

/// Content of a file or folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// ONNX graphs, each a model.
    Onnx(Vec<PathBuf>),
    /// A folder with a model card and its code.
    Card(PathBuf),
    /// An estimator in a file.
    Estimator(Framework, PathBuf),
}

impl Content {
    /// Looks at a file or folder.
    pub(super) fn of(path: &Path) -> Result<Self, Failure> {
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() && !metadata.is_dir() {
            let why = "is neither a file nor a folder: save the model as a file, and name that";
            return Err(Failure::Invalid(format!("{} {why}", path.display())));
        }
        let path = fs::canonicalize(path)?;
        if metadata.is_file() {
            if metadata.len() == 0 {
                return Err(Failure::Invalid(format!("{} is empty: export the model again", path.display())));
            }
            return Self::of_file(&path)?.ok_or_else(|| unknown(&path));
        }
        if path.join("model-card.yaml").is_file() {
            return Ok(Self::Card(path));
        }
        if path.join("MLmodel").is_file() {
            return Ok(Self::Estimator(Framework::Mlflow, path));
        }
        if path.join("saved_model.pb").is_file() || has_versions(&path)? {
            return Ok(Self::Estimator(Framework::Tensorflow, path));
        }
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&path)?.take(MAX_ENTRIES) {
            files.push(entry?.path());
        }
        files.sort();
        let (mut graphs, mut others) = (Vec::new(), Vec::new());
        for file in files.into_iter().filter(|file| file.is_file()) {
            match Self::of_file(&file)? {
                Some(Self::Onnx(_)) => graphs.push(file),
                Some(other) => others.push(other),
                None => {}
            }
        }
        match (graphs.is_empty(), others.len()) {
            (false, _) => Ok(Self::Onnx(graphs)),
            (true, 1) => others.pop().ok_or_else(|| unknown(&path)),
            (true, 0) => Err(unknown(&path)),
            (true, count) => Err(Failure::Usage(format!(
                "{} holds {count} models that Python runs: name one of the files",
                path.display()
            ))),
        }
    }

    /// Looks at a file; `None`: it is no model that is known.
    fn of_file(file: &Path) -> Result<Option<Self>, Failure> {
        let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let framework = match extension {
            "onnx" => return Ok(Some(Self::Onnx(vec![file.to_owned()]))),
            "joblib" | "pkl" | "pickle" => Framework::Sklearn,
            "ubj" => Framework::Xgboost,
            // Both have this ending; LightGBM's form is text.
            "bst" if begins(file)?.starts_with("tree\n") => Framework::Lightgbm,
            "bst" => Framework::Xgboost,
            "pt" | "pth" => Framework::Pytorch,
            "keras" | "h5" => Framework::Tensorflow,
            "json" if begins(file)?.contains("\"learner\"") => Framework::Xgboost,
            "txt" | "lgb" | "model" if begins(file)?.starts_with("tree\n") => Framework::Lightgbm,
            _ => return Ok(None),
        };
        Ok(Some(Self::Estimator(framework, file.to_owned())))
    }
}

/// True of a folder with numbered versions of a SavedModel, as TensorFlow Serving lays them out.
fn has_versions(folder: &Path) -> Result<bool, Failure> {
    for entry in fs::read_dir(folder)?.take(MAX_ENTRIES) {
        let entry = entry?;
        let name = entry.file_name();
        let is_number = name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        if is_number && entry.path().join("saved_model.pb").is_file() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The first kilobyte of a file, as far as it is text.
fn begins(file: &Path) -> Result<String, Failure> {
    let mut begin = Vec::new();
    fs::File::open(file)?.take(1024).read_to_end(&mut begin)?;
    Ok(String::from_utf8_lossy(&begin).into_owned())
}

fn unknown(path: &Path) -> Failure {
    let holds_manifests = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    if holds_manifests {
        return Failure::Usage(format!(
            "{} is no model; if it is a manifest, `berth up` starts a server and `berth apply -f` gives it the manifest",
            path.display()
        ));
    }
    Failure::Usage(format!(
        "{} holds no model that is known: an .onnx file, a folder of them, a folder with model-card.yaml, a scikit-learn \
         .joblib or .pkl, an XGBoost .ubj, .json or .bst, a LightGBM text file, a PyTorch .pt, a Keras .keras, a SavedModel or \
         MLflow folder. For anything else write a card: `berth card new`. A folder of manifests is for `berth up`",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_first_bytes_tell_what_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a folder");
        let put = |name: &str, content: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(&path, content).expect("written");
            path
        };
        let of = |name: &str| Content::of(&root.join(name)).map_err(|failure| failure.to_string());
        let estimator = |framework, file: &PathBuf| Ok(Content::Estimator(framework, file.clone()));
        let (joblib, ubj) = (put("sk/m.joblib", "\u{80}"), put("m.ubj", "{L"));
        assert_eq!(of("sk/m.joblib"), estimator(Framework::Sklearn, &joblib));
        assert_eq!(of("sk"), estimator(Framework::Sklearn, &joblib), "the only one of a folder");
        assert_eq!(of("m.ubj"), estimator(Framework::Xgboost, &ubj));
        for (name, content, framework) in [
            ("m.json", "{\"learner\": {}}", Framework::Xgboost),
            ("m.bst", "{L\0\0\0", Framework::Xgboost),
            ("m.txt", "tree\nversion=v4\nmax_feature_idx=3\n", Framework::Lightgbm),
            ("text.bst", "tree\nversion=v4\nmax_feature_idx=3\n", Framework::Lightgbm),
            ("m.pt", "PK", Framework::Pytorch),
            ("m.pth", "PK", Framework::Pytorch),
            ("m.keras", "PK", Framework::Tensorflow),
            ("m.h5", "PK", Framework::Tensorflow),
        ] {
            let file = put(name, content);
            assert_eq!(of(name), estimator(framework, &file), "{name}");
        }
        let graphs = vec![put("graphs/a.onnx", ""), put("graphs/b.onnx", "")];
        put("graphs/README.txt", "tree");
        assert_eq!(of("graphs"), Ok(Content::Onnx(graphs)));
        put("card/model-card.yaml", "");
        put("card/m.onnx", "");
        assert_eq!(of("card"), Ok(Content::Card(root.join("card"))));
        put("flow/MLmodel", "");
        assert_eq!(of("flow"), Ok(Content::Estimator(Framework::Mlflow, root.join("flow"))));
        put("saved/saved_model.pb", "");
        put("saved/variables/variables.index", "");
        assert_eq!(of("saved"), Ok(Content::Estimator(Framework::Tensorflow, root.join("saved"))));
        put("served/1/saved_model.pb", "");
        assert_eq!(of("served"), Ok(Content::Estimator(Framework::Tensorflow, root.join("served"))));
        put("two/a.pkl", "");
        put("two/b.pkl", "");
        assert!(of("two").is_err_and(|text| text.contains("name one of the files")));
        put("notes.txt", "trees");
        assert!(of("notes.txt").is_err_and(|text| text.contains("berth card new")));
        assert!(matches!(Content::of(&root.join("nothing")), Err(Failure::NotFound(_))));
        put("empty.joblib", "");
        assert!(of("empty.joblib").is_err_and(|text| text.contains("empty.joblib is empty")));
        assert!(of("/dev/null").is_err_and(|text| text.contains("neither a file nor a folder")));
        put("iris.yaml", "kind: ModelDeployment");
        assert!(of("iris.yaml").is_err_and(|text| text.contains("`berth apply -f`")));
    }
}
