//! `CLOpsDeployment`: the one object that people write.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{model_deployment::ModelDeploymentSpec, status::Status};

/// A model application with everything that serves it. The operator derives the other objects from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "berth.dev",
    version = "v1",
    kind = "CLOpsDeployment",
    plural = "clopsdeployments",
    shortname = "clops",
    category = "berth",
    namespaced,
    status = "Status",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Replicas","type":"integer","jsonPath":".status.readyReplicas"}"#,
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".status.address"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Message","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct CLOpsDeploymentSpec {
    /// The model application: its image, its parameters, its ports.
    pub model: ModelDeploymentSpec,
}
