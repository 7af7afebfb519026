//! The hub version of a function, field by field. `berth-functions` gives them their meaning, also to objects in etcd.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiVersion, Metadata, RawNetwork};
use crate::manifest::scalar::Whole;

/// Declares code that is built and run beside models.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawFunction {
    /// The version of this format.
    pub api_version: ApiVersion,
    /// The kind of object.
    pub kind: FunctionKind,
    /// Name, namespace, labels and annotations. The name has 1 to 63 letters, digits, dashes, underscores and dots.
    pub metadata: Metadata,
    /// The code and its settings.
    pub spec: RawFunctionSpec,
    /// Set by the server and ignored here, so that the output of `berth get` can be applied again.
    #[serde(default, skip_serializing)]
    pub status: Option<serde_json::Value>,
}

/// The kind of a manifest that declares a function.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
pub enum FunctionKind {
    /// Code that is built and run beside models.
    Function,
}

/// The code of a function and its settings.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawFunctionSpec {
    /// The language of the code.
    pub r#type: FunctionType,
    /// The place of the code: `file:PATH` (a folder or an archive; a relative path starts at the manifest's folder), `http(s)://…`,
    /// `s3://BUCKET/KEY`, `azure-blob://CONTAINER/BLOB` or `git+https://…@COMMIT`.
    pub source_uri: String,
    /// The SHA-256 that the archive must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_sha256: Option<String>,
    /// The function that is called: `MODULE.FUNCTION` in Python, `FILE.EXPORT` in JavaScript, without the file's ending.
    pub entrypoint: String,
    /// Versions of languages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RawFunctionRuntime>,
    /// The build of JavaScript.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<RawFunctionBuild>,
    /// The platform that runs it.
    pub target: RawFunctionTarget,
    /// Variables of its environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The network that it reaches from its sandbox. Not given: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<RawNetwork>,
    /// Bounds of its requests and processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<RawFunctionLimits>,
    /// JSON that a new version must answer with 2xx before it takes over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<serde_json::Value>,
}

/// The language of a function.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FunctionType {
    /// Python, with packages of `requirements.lock` or `requirements.txt`.
    Python,
    /// The same as `python`.
    Keras,
    /// JavaScript, with packages of `package.json`.
    JavaScript,
    /// The same as `javascript`.
    Tfjs,
}

/// Versions of languages.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawFunctionRuntime {
    /// The version of Python, as text: `"3.11"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python_version: Option<String>,
    /// The version of Node.js, as text: `"20"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_version: Option<String>,
}

/// The build of JavaScript.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawFunctionBuild {
    /// The bundler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundler: Option<FunctionBundler>,
    /// Rollup's configuration (`rollup.config.js` where none is named), or a script that calls esbuild.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_file: Option<String>,
}

/// A bundler.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FunctionBundler {
    /// Rollup.
    Rollup,
    /// esbuild.
    Esbuild,
    /// No bundler.
    None,
}

/// The platform that runs a function.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawFunctionTarget {
    /// The platform.
    pub platform: FunctionPlatform,
    /// The resource group of the function app in Azure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_group: Option<String>,
    /// The name of the function app in Azure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_name: Option<String>,
    /// The programming model of a Python function in Azure. Not given: `v2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programming_model: Option<FunctionModel>,
    /// Callers that Azure lets through. Not given: `anonymous`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_level: Option<FunctionAuthLevel>,
    /// Replicas of platform `replica`. Not given: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Whole<1, 1_000>>,
}

/// A programming model of Azure's Python worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FunctionModel {
    /// `function.json` declares the trigger.
    V1,
    /// Code declares the trigger: `function_app.py`.
    V2,
}

/// Callers that Azure lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FunctionAuthLevel {
    /// All.
    Anonymous,
    /// Those who send a key of the function or of its app. For `azure-function` only.
    Function,
}

/// A platform of functions.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FunctionPlatform {
    /// Processes beside the gateway.
    Local,
    /// Azure Functions.
    AzureFunction,
    /// Workers: a deployment of the same name, which answers at `/replicas/NAME`. Python only.
    Replica,
}

/// Bounds of a function's requests and processes.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawFunctionLimits {
    /// The longest that one request may take. Not given: 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<Whole<1, 600>>,
    /// Requests that run at once. Not given: 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Whole<1, 1_000>>,
    /// Time without a request after which its process ends. Not given: 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<Whole<1, 86_400>>,
    /// Memory of its process, in MiB. Not given: 2048.
    #[serde(default, rename = "memoryMiB", skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<Whole<32, 1_048_576>>,
    /// Another name for `memoryMiB`.
    #[serde(default, rename = "memoryMib", skip_serializing_if = "Option::is_none")]
    pub memory_mib_also: Option<Whole<32, 1_048_576>>,
}
