//! Model cards for estimators: what the framework's own way of loading needs, and nothing of the user.

use std::path::Path;

use fs_err as fs;

use crate::{failure::Failure, files::plural};

/// Framework of an estimator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framework {
    Sklearn,
    Xgboost,
    Lightgbm,
}

/// Packages of an estimator, and where that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packages {
    pub(super) pins: Vec<String>,
    /// For people.
    pub(super) from: String,
}

const PREPROCESSING: &str = "\"\"\"One row of numbers for each request.\"\"\"\n\n\ndef to_rows(request, config=None):\n    return request[\"features\"]\n";

const POSTPROCESSING: &str = "\"\"\"What the model predicts for the row.\"\"\"\n\n\ndef to_answer(output, config=None):\n    return {\"prediction\": output}\n";

/// LightGBM's boosters take the rows of all requests in one call.
const LIGHTGBM: &str = "\"\"\"Loads a LightGBM booster from its text form.\"\"\"\n\nimport berth\n\n\ndef load(path, config=None):\n    import lightgbm\n    import numpy\n\n    booster = lightgbm.Booster(model_file=path)\n\n    @berth.batched\n    def predict(rows):\n        return list(booster.predict(numpy.asarray(rows, dtype=float)))\n\n    return predict\n";

impl Framework {
    /// The framework's name in cards, and its version there.
    const fn of_card(self) -> (&'static str, &'static str) {
        match self {
            Self::Sklearn => ("sklearn", "1.7.2"),
            Self::Xgboost => ("xgboost", "3.1.1"),
            // The card's own code loads it.
            Self::Lightgbm => ("custom", "1.0.0"),
        }
    }

    const fn pins(self) -> &'static [&'static str] {
        match self {
            Self::Sklearn => &["scikit-learn==1.7.2", "joblib==1.5.2", "numpy==2.3.4"],
            Self::Xgboost => &["xgboost==3.1.1", "numpy==2.3.4"],
            Self::Lightgbm => &["lightgbm==4.6.0", "numpy==2.3.4"],
        }
    }

    /// The packages for a file: declared, from its folder, or pinned here.
    pub(super) fn packages(self, artifact: &Path, declared: Option<&Path>) -> Result<Packages, Failure> {
        let beside = artifact.with_file_name("requirements.txt");
        let file = declared.map(Path::to_owned).or_else(|| beside.is_file().then_some(beside));
        let Some(file) = file else {
            let pins: Vec<String> = self.pins().iter().map(|pin| (*pin).to_owned()).collect();
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

    /// The card of a model, as text, with its code beside it.
    pub(super) fn write(self, folder: &Path, packages: &Packages) -> Result<String, Failure> {
        let (framework, version) = self.of_card();
        let code = folder.join("src");
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(&code)?;
        fs::write(code.join("__init__.py"), "")?;
        fs::write(code.join("preprocessing.py"), PREPROCESSING)?;
        fs::write(code.join("postprocessing.py"), POSTPROCESSING)?;
        let entrypoint = match self {
            Self::Lightgbm => {
                fs::write(code.join("model.py"), LIGHTGBM)?;
                "  entrypoint: src.model\n"
            }
            Self::Sklearn | Self::Xgboost => "",
        };
        let list = |pin: &String| format!("\n    - {}", serde_json::Value::from(pin.as_str()));
        let pins: String = packages.pins.iter().map(list).collect();
        let pins = if pins.is_empty() { " []".to_owned() } else { pins };
        let card = format!(
            "schemaVersion: \"3.1.0\"\nmetadata:\n  name: served\n  version: 0.1.0\n  description: An estimator that berth serve was given\n  \
             owner: berth@localhost.localdomain\n  tags: []\nruntime:\n  framework: {framework}\n  framework_version: {version}\n  \
             python_version: \"3.11\"\n  dependencies:{pins}\nartifacts:\n  storage_type: s3\n  model_path: s3://models/here\ncode:\n  \
             repository: https://localhost/served.git\n  path: src/\n  ref: v0.1.0\n{entrypoint}preprocessing:\n  module: src.preprocessing\n  \
             function: to_rows\npostprocessing:\n  module: src.postprocessing\n  function: to_answer\ninterface:\n  batch_size: 64\n  \
             input_schema:\n    type: object\n    required: [features]\n    properties:\n      features:\n        type: array\n        \
             items:\n          type: number\n  output_schema:\n    type: object\n    required: [prediction]\n"
        );
        fs::write(folder.join("model-card.yaml"), &card)?;
        Ok(card)
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

    #[test]
    fn every_card_is_valid() {
        for framework in [Framework::Sklearn, Framework::Xgboost, Framework::Lightgbm] {
            let folder = tempfile::tempdir().expect("a folder");
            let packages = framework.packages(Path::new("m"), None).expect("packages");
            framework.write(&folder.path().join("code"), &packages).expect("written");
            crate::commands::card::card_of(&folder.path().join("code")).expect("a card");
        }
    }
}
