//! Estimators: their formats, and the packages that they run with.

use std::path::Path;

use berth_spec::card::estimator::usual_packages;
use fs_err as fs;

use crate::{failure::Failure, files::plural};

/// Framework of an estimator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framework {
    Sklearn,
    Xgboost,
    Lightgbm,
    Mlflow,
    Pytorch,
    Tensorflow,
}

/// Packages of an estimator, and where that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packages {
    pub(super) pins: Vec<String>,
    /// For people.
    pub(super) from: String,
}

impl Framework {
    /// The format in manifests.
    pub(super) const fn format(self) -> &'static str {
        match self {
            Self::Sklearn => "sklearn",
            Self::Xgboost => "xgboost",
            Self::Lightgbm => "lightgbm",
            Self::Mlflow => "mlflow",
            Self::Pytorch => "pytorch",
            Self::Tensorflow => "tensorflow",
        }
    }

    /// The packages for a file: declared, from its folder, or pinned here.
    pub(super) fn packages(self, artifact: &Path, declared: Option<&Path>) -> Result<Packages, Failure> {
        let beside = if artifact.is_dir() {
            artifact.join("requirements.txt")
        } else {
            artifact.with_file_name("requirements.txt")
        };
        let file = declared.map(Path::to_owned).or_else(|| beside.is_file().then(|| beside.clone()));
        let Some(file) = file else {
            let pins: Vec<String> = usual_packages(self.format()).iter().map(|pin| (*pin).to_owned()).collect();
            if pins.is_empty() {
                return Err(Failure::Usage(format!(
                    "which packages does it need? Write them into {} or another file for --requirements, each \
                     NAME==VERSION: `pip freeze` prints those of the environment that made the model",
                    beside.display()
                )));
            }
            let from = format!(
                "{}: pinned here, as nothing else is said; a requirements.txt beside the model, or --requirements, takes others",
                pins.join(", ")
            );
            return Ok(Packages { pins, from });
        };
        let text = fs::read_to_string(&file).map_err(|error| Failure::NotFound(error.to_string()))?;
        let pins = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let pins: Vec<String> = pins.filter(|line| !line.is_empty()).map(str::to_owned).collect();
        Ok(Packages { from: format!("{} of {}", plural(pins.len(), "package"), file.display()), pins })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_the_declared_ones_else_those_beside_the_model_else_pinned() {
        let folder = tempfile::tempdir().expect("a folder");
        let artifact = folder.path().join("m.joblib");
        let pinned = Framework::Sklearn.packages(&artifact, None).expect("packages");
        assert!(pinned.pins[0].starts_with("scikit-learn==") && pinned.from.contains("pinned here"), "{pinned:?}");
        fs::write(folder.path().join("requirements.txt"), "# ours\nscikit-learn==1.6.0  # as trained\n\n")
            .expect("written");
        let beside = Framework::Sklearn.packages(&artifact, None).expect("packages");
        assert_eq!(beside.pins, ["scikit-learn==1.6.0"]);
        let other = folder.path().join("other.txt");
        fs::write(&other, "a==1\nb==2\n").expect("written");
        let declared = Framework::Sklearn.packages(&artifact, Some(&other)).expect("packages");
        assert_eq!(declared.pins, ["a==1", "b==2"]);
        assert!(declared.from.contains("2 packages of"), "{}", declared.from);
        assert!(Framework::Sklearn.packages(&artifact, Some(&folder.path().join("none.txt"))).is_err());
    }
}
