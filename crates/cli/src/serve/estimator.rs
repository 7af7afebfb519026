//! Estimators: their formats, and the Python and packages that they run with.

use std::path::Path;

use berth_spec::card::{
    estimator::{PYTHON, usual_packages},
    requirements,
};
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

/// Version of Python for an estimator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Python {
    /// `3.MINOR`.
    pub(super) version: String,
    /// For people: who says so, where nobody chose it and it is not the usual one.
    pub(super) note: Option<String>,
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
        let text = fs::read_to_string(&file)?;
        let pins = pins(&text).map_err(|(line, what)| Failure::Usage(format!("{}:{line}: {what}", file.display())))?;
        Ok(Packages { from: format!("{} of {}", plural(pins.len(), "package"), file.display()), pins })
    }

    /// The version of Python: the chosen one, else the one that MLflow wrote down, else the one of the usual packages.
    pub(super) fn python(self, artifact: &Path, chosen: Option<&str>) -> Result<Python, Failure> {
        if let Some(chosen) = chosen {
            let wrong = || Failure::Usage(format!("--python {chosen}: write 3.MINOR, such as 3.12"));
            return Ok(Python { version: minor(chosen).ok_or_else(wrong)?, note: None });
        }
        let file = artifact.join("python_env.yaml");
        let written = if self == Self::Mlflow && file.is_file() { fs::read_to_string(&file)? } else { String::new() };
        // A pickle of one version of Python may be unreadable for another.
        let said = written.lines().find_map(|line| line.strip_prefix("python:"));
        let version = said.and_then(|said| minor(said.trim().trim_matches(['"', '\'']))).filter(|said| runs(said));
        let version = version.unwrap_or_else(|| PYTHON.to_owned());
        let note =
            (version != PYTHON).then(|| format!("{version}, as {} says; --python takes another", file.display()));
        Ok(Python { version, note })
    }
}

/// True of the versions `3.MINOR` that models run with; older ones are tried with the usual one.
fn runs(version: &str) -> bool {
    version.strip_prefix("3.").and_then(|minor| minor.parse().ok()).is_some_and(|minor: u8| minor >= 8)
}

/// The packages of a file of requirements; or the number of the line that is none, and why.
fn pins(text: &str) -> Result<Vec<String>, (usize, String)> {
    requirements::pins(text).map_err(|error| (error.line, error.message))
}

/// `3.12` of `3.12.3`; `None`: this is no version of Python 3.
fn minor(version: &str) -> Option<String> {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next()?, parts.next()?);
    let is_number = (1..=2).contains(&minor.len()) && minor.bytes().all(|b| b.is_ascii_digit());
    (major == "3" && is_number).then(|| format!("3.{minor}"))
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
        fs::write(&other, "a==1\n-r base.txt\n").expect("written");
        let refused = Framework::Sklearn.packages(&artifact, Some(&other)).expect_err("an option").to_string();
        assert!(refused.contains("other.txt:2: ") && refused.contains("lines of that file"), "{refused}");
    }

    #[test]
    fn a_line_that_is_no_package_is_told_with_the_way_to_go_on() {
        let text = "# ours\n\na==1  # as trained\nb[x]==2; python_version < '3.13'\n";
        assert_eq!(pins(text).expect("pins"), ["a==1", "b[x]==2; python_version < '3.13'"]);
        for (line, said) in [
            ("-r base.txt", "lines of that file"),
            ("--requirement=base.txt", "lines of that file"),
            ("-c limits.txt", "lines of that file"),
            ("--extra-index-url https://example.org/simple", "--package-index"),
            ("--index-url=https://example.org/simple", "--package-index"),
            ("-e .", "berth card new"),
            ("--no-binary :all:", "remove the option"),
            ("a==1 \\", "remove the hashes"),
            ("a==1 --hash=sha256:00", "remove the hashes"),
            ("    --hash=sha256:00", "remove the hashes"),
            ("a>=1", "NAME==VERSION"),
            ("a @ https://example.org/a.whl", "NAME==VERSION"),
        ] {
            let (at, what) = pins(&format!("b==1\n{line}\n")).expect_err(line);
            assert!(at == 2 && what.contains(said), "{line}: {at}: {what}");
        }
    }

    #[test]
    fn python_is_the_chosen_one_else_that_of_mlflow_else_the_usual_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let version = |framework: Framework, chosen: Option<&str>| {
            framework.python(folder.path(), chosen).map(|python| python.version).map_err(|failure| failure.to_string())
        };
        assert_eq!(version(Framework::Mlflow, None).expect("a version"), PYTHON, "nothing is said");
        let said = |text: &str| fs::write(folder.path().join("python_env.yaml"), text).expect("written");
        said("python: 3.12.3\nbuild_dependencies:\n- pip==24.0\ndependencies:\n- -r requirements.txt\n");
        assert_eq!(version(Framework::Mlflow, None).expect("a version"), "3.12");
        let note = Framework::Mlflow.python(folder.path(), None).expect("a version").note;
        assert!(note.is_some_and(|note| note.starts_with("3.12, as ") && note.contains("--python takes another")));
        assert_eq!(version(Framework::Sklearn, None).expect("a version"), PYTHON, "only MLflow writes it");
        assert_eq!(version(Framework::Mlflow, Some("3.10")).expect("a version"), "3.10");
        assert_eq!(version(Framework::Sklearn, Some("3.13.1")).expect("a version"), "3.13");
        let quoted = [
            ("python: '3.13'\n", "3.13"),
            ("python: \"3.9.1\"\n", "3.9"),
            ("python: cpython\n", PYTHON),
            ("python: 3.7.16\n", PYTHON),
        ];
        for (text, expected) in quoted {
            said(text);
            assert_eq!(version(Framework::Mlflow, None).expect("a version"), expected, "{text}");
        }
        for wrong in ["2.7", "3", "3.x", "312", ""] {
            let refused = version(Framework::Sklearn, Some(wrong)).expect_err(wrong);
            assert!(refused.contains("such as 3.12"), "{refused}");
        }
    }
}
