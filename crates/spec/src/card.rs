//! The model card: the immutable description of one model version in a Git repository, as its authors wrote it and as
//! the registry pinned it. Field names are those of the published schema (`berth schema model-card`).
//!
//! ```text
//! model-card.yaml @ tag ──schema, pin──▶ PinnedCard ──▶ ModelSource.card ──▶ Revision.card ──▶ the Python runtime
//! ```
//! Here are the typed fields only; the published schema and its messages with line and path are the registry's.

pub mod estimator;
mod function;
pub mod lock;
pub mod package;
pub mod requirements;
pub mod signature;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{ByteSize, Digest, network::Network};

/// The card versions that this version of Berth reads.
pub const SCHEMA_VERSIONS: [&str; 2] = ["3.0.0", "3.1.0"];

/// A complete description of how a model is loaded and run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// The version of the card's format.
    #[serde(rename = "schemaVersion")]
    pub schema_version: String,
    /// Name, version and owner.
    pub metadata: Metadata,
    /// Framework, version of Python and packages.
    pub runtime: Runtime,
    /// Location and digest of its weights.
    pub artifacts: Artifacts,
    /// Repository and commit of its code.
    pub code: Code,
    /// From a request to the model's input.
    pub preprocessing: Function,
    /// From the model's output to the answer.
    pub postprocessing: Function,
    /// Schemas of requests and answers, and how many requests one call of the model takes.
    pub interface: Interface,
    /// Memory, cores and GPUs of one replica, as the card's authors ask for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Hosts that it reaches from its sandbox; none unless it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
}

/// Name, version and owner of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metadata {
    /// Lower-case letters, digits and dashes.
    pub name: String,
    /// MAJOR.MINOR.PATCH: the version that clients see.
    pub version: String,
    /// A description for people.
    pub description: String,
    /// An e-mail address.
    pub owner: String,
    /// Free words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
}

/// Framework and environment of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Runtime {
    /// The framework that the authors made it with, by which its packages are checked.
    pub framework: Framework,
    /// The framework's version; the pinned package decides which one is installed.
    pub framework_version: String,
    /// MAJOR.MINOR.
    pub python_version: String,
    /// `package==version`.
    pub dependencies: Vec<String>,
    /// A file of the code repository, from its root, that has all packages with their hashes: the environment has these and
    /// no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependencies_lock: Option<String>,
    /// Packages of the worker's operating system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub system_packages: Vec<String>,
}

/// Framework that a model was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framework {
    /// TensorFlow.
    Tensorflow,
    /// PyTorch.
    Pytorch,
    /// scikit-learn.
    Sklearn,
    /// XGBoost.
    Xgboost,
    /// ONNX, run by the card's own Python code.
    Onnx,
    /// Anything that its code can load.
    Custom,
}

impl Framework {
    /// The word in cards.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tensorflow => "tensorflow",
            Self::Pytorch => "pytorch",
            Self::Sklearn => "sklearn",
            Self::Xgboost => "xgboost",
            Self::Onnx => "onnx",
            Self::Custom => "custom",
        }
    }
}

/// A model's weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Artifacts {
    /// Where they are kept.
    pub storage_type: StorageType,
    /// Their full URI.
    pub model_path: String,
    /// The full URI of a configuration that the loading function gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_path: Option<String>,
    /// SHA-256 of what is at `model_path`, in hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Bytes of what is at `model_path`, by the authors' word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

impl Artifacts {
    /// The checksum, if there is one that can be read.
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        self.checksum.as_deref()?.parse().ok()
    }
}

/// Where weights are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageType {
    /// Amazon S3 and what speaks like it.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    AzureBlob,
    /// A web server.
    Http,
}

/// Repository, commit and entry point of a model's code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Code {
    /// The Git repository's URL.
    pub repository: String,
    /// The folder in it that holds the code.
    pub path: String,
    /// A tag or a commit, never a branch.
    #[serde(rename = "ref")]
    pub reference: String,
    /// The module whose loading function gives the model, e.g. `src.model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
}

/// A function in the card's code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Its module, e.g. `src.preprocessing`.
    pub module: String,
    /// The name of the function in its module.
    pub function: String,
    /// Configuration beside the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Map<String, Value>>,
}

/// Requests and answers of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    /// A JSON schema of one request.
    pub input_schema: Value,
    /// A JSON schema of one answer.
    pub output_schema: Value,
    /// The most requests in one call of the model. Absent: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u32>,
}

/// Resources of one replica, as the card's authors ask for them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// CPU cores, with fractions.
    pub cpu: f32,
    /// `512Mi` or `4Gi`.
    pub memory: String,
    /// The number of GPUs; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The only kind of GPU that will do: `T4`, `V100`, `A100`, `H100`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
}

impl Resources {
    /// The memory in bytes, if it can be read.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<ByteSize> {
        size(&self.memory)
    }
}

/// Reads `512Mi` or `4Gi`, as cards and worker configurations write sizes.
#[must_use]
pub fn size(text: &str) -> Option<ByteSize> {
    let (number, unit) = match (text.strip_suffix("Mi"), text.strip_suffix("Gi")) {
        (Some(number), _) => (number, 1_u64 << 20),
        (_, Some(number)) => (number, 1 << 30),
        (None, None) => return None,
    };
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    plain.then_some(())?;
    number.parse::<u64>().ok()?.checked_mul(unit).map(ByteSize)
}

/// A card, and the exact commits that it and its code were read at: nothing about it can move any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PinnedCard {
    /// As its authors wrote it.
    pub card: ModelCard,
    /// The repository that the card came from; credentials never are part of it.
    pub repository: String,
    /// The tag or commit that was asked for.
    #[serde(rename = "ref")]
    pub reference: String,
    /// The commit that the card was read at: 40 hex digits.
    pub commit: String,
    /// The commit of `card.code`: 40 hex digits.
    pub code_commit: String,
}

impl PinnedCard {
    /// Content of the revision as bytes to hash: the code's commit and the card without name, description and owner.
    ///
    /// Two cards with equal content load the same model, wherever they were read.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        let ModelCard { schema_version: _, metadata, runtime, artifacts, code, .. } = &self.card;
        let ModelCard { preprocessing, postprocessing, interface, resources, network, .. } = &self.card;
        let content = (
            &metadata.version,
            runtime,
            artifacts,
            (&code.repository, &code.path, &code.entrypoint, &self.code_commit),
            (preprocessing, postprocessing),
            (interface, resources),
        );
        let mut content = serde_json::to_vec(&content).expect("texts, numbers and JSON");
        if let Some(network) = network {
            content.extend(serde_json::to_vec(network).expect("texts"));
        }
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_mebibytes_and_gibibytes() {
        assert_eq!(size("512Mi"), Some(ByteSize::mib(512)));
        assert_eq!(size("4Gi"), Some(ByteSize::gib(4)));
        for bad in ["", "Mi", "4G", "4", "-1Gi", "1.5Gi", "+1Gi", "99999999999999999999Gi", "4Gi "] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }
}
