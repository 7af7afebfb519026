//! Estimators without a card: a model of a usual framework, the packages that it runs with, and nothing else of its author.
//!
//! They become a card whose code is part of Berth (`berth.estimators` of the Python package), so that everything after the
//! manifest has one way of running Python.

use std::sync::Arc;

use serde_json::json;

use super::{
    Artifacts, Code, Framework, Function, Interface, Metadata, ModelCard, PinnedCard, Runtime, SCHEMA_VERSIONS,
    StorageType,
};

/// The repository of cards whose code is part of Berth. No URL: nothing is fetched.
const BUILT_IN: &str = "built in";

/// The formats that Berth runs by itself, each with the packages that it needs where nothing is said.
const FORMATS: [(&str, &[&str]); 6] = [
    ("sklearn", &["scikit-learn==1.7.2", "joblib==1.5.2", "numpy==2.3.4"]),
    ("xgboost", &["xgboost-cpu==3.1.1", "numpy==2.3.4"]),
    ("lightgbm", &["lightgbm==4.6.0", "numpy==2.3.4"]),
    ("mlflow", &[]),
    ("pytorch", &[]),
    ("tensorflow", &[]),
];

/// Python of an environment that names none: the one that all of these packages are built for.
pub const PYTHON: &str = "3.11";

/// The packages of an estimator's environment, from the manifest or from its artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packages {
    /// Named, each `NAME==VERSION`.
    Pinned(Vec<String>),
    /// Listed in this file of the artifact's folder.
    InFile(String),
}

/// The file in which a model of this format lists its packages by itself; `None`: it does not.
#[must_use]
pub fn own_file(format: &str) -> Option<&'static str> {
    (format == "mlflow").then_some("requirements.txt")
}

/// The formats that Berth runs by itself.
pub fn formats() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|(name, _)| *name)
}

/// The packages that a format runs with where nothing is said; empty: they must be named.
#[must_use]
pub fn usual_packages(format: &str) -> &'static [&'static str] {
    FORMATS.iter().find(|(name, _)| *name == format).map_or(&[], |(_, packages)| packages)
}

/// The card of an estimator. `packages` are pinned: `NAME==VERSION`.
#[must_use]
pub fn card(format: &str, python: &str, packages: Vec<String>) -> PinnedCard {
    let function =
        |name: &str| Function { module: "berth.estimators".to_owned(), function: name.to_owned(), config: None };
    let no_commit = "0".repeat(40);
    let card = ModelCard {
        schema_version: SCHEMA_VERSIONS[1].to_owned(),
        metadata: Metadata {
            name: format.to_owned(),
            version: "0.0.0".to_owned(),
            description: String::new(),
            owner: String::new(),
            tags: Vec::new(),
            created_at: None,
        },
        runtime: Runtime {
            framework: Framework::Custom,
            framework_version: String::new(),
            python_version: python.to_owned(),
            dependencies: packages,
            dependencies_lock: None,
            system_packages: Vec::new(),
        },
        artifacts: Artifacts {
            storage_type: StorageType::Http,
            model_path: String::new(),
            config_path: None,
            checksum: None,
            size_bytes: None,
        },
        code: Code {
            repository: BUILT_IN.to_owned(),
            path: String::new(),
            reference: no_commit.clone(),
            entrypoint: Some(format!("berth.estimators:load_{format}")),
        },
        preprocessing: function("to_rows"),
        postprocessing: function("to_answer"),
        interface: Interface {
            input_schema: json!({
                "type": "object",
                "required": ["features"],
                "properties": {"features": {"type": "array", "items": {"type": "number"}}},
            }),
            output_schema: json!({"type": "object", "required": ["prediction"]}),
            batch_size: Some(64),
        },
        resources: None,
        network: None,
    };
    let (reference, commit, repository) = (no_commit.clone(), no_commit.clone(), BUILT_IN.to_owned());
    PinnedCard { card, repository, reference, commit, code_commit: no_commit }
}

impl PinnedCard {
    /// True for a card whose code is part of Berth.
    #[must_use]
    pub fn is_built_in(&self) -> bool {
        self.card.code.repository == BUILT_IN
    }

    /// The card of an estimator, ready to be shared.
    #[must_use]
    pub fn of_estimator(format: &str, python: &str, packages: Packages) -> Arc<Self> {
        let (packages, file) = match packages {
            Packages::Pinned(packages) => (packages, None),
            Packages::InFile(file) => (Vec::new(), Some(file)),
        };
        let mut pinned = card(format, python, packages);
        pinned.card.runtime.dependencies_lock = file;
        Arc::new(pinned)
    }

    /// The file in the artifact's folder that lists the packages, where the artifact does so.
    #[must_use]
    pub fn own_requirements(&self) -> Option<&str> {
        self.card.runtime.dependencies_lock.as_deref().filter(|_| self.is_built_in())
    }
}
