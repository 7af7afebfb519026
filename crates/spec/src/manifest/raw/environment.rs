//! Fields of the environment of a model that Berth runs by itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::card::estimator::PYTHON;

/// The Python environment of a model without a card.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawEnvironment {
    /// The version of Python, such as `3.12`.
    #[schemars(regex(pattern = "^3\\.[0-9]{1,2}$"))]
    pub python: String,
    /// Its packages, each pinned: `scikit-learn==1.7.2`. Not given: those of `requirements`; else a usual set for `sklearn`,
    /// `xgboost` and `lightgbm`, and the `requirements.txt` of an `mlflow` model; the others need theirs.
    pub packages: Vec<String>,
    /// In place of `packages`: the path of a file in the artifact's folder that pins them, such as `requirements.txt`, or a lock
    /// with hashes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requirements: Option<String>,
}

impl Default for RawEnvironment {
    fn default() -> Self {
        Self { python: PYTHON.to_owned(), packages: Vec::new(), requirements: None }
    }
}
