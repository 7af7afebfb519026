//! `ModelDeployment`: a model application, as pods of the user's image.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{inference_pool::InferencePool, open, status::Status};

/// A model application: a container of the user's, untouched, with the model's parameters in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "berth.dev",
    version = "v1",
    kind = "ModelDeployment",
    plural = "modeldeployments",
    shortname = "mdep",
    category = "berth",
    namespaced,
    status = "Status",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Replicas","type":"integer","jsonPath":".status.readyReplicas"}"#,
    printcolumn = r#"{"name":"Render","type":"integer","jsonPath":".status.render.version"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Message","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ModelDeploymentSpec {
    /// The container that answers requests. A model has this or `fleet`.
    #[serde(default, skip_serializing_if = "Container::is_absent")]
    pub container: Container,
    /// The fields of `spec` in docs/manifest.md: `model`, `replicas` and so on. A fleet that follows the cluster serves it, without pods of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub fleet: Option<Value>,
    /// Files of the model, fetched before the container starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<Parameters>,
    /// The number of pods. Leave it out where a HorizontalPodAutoscaler scales the Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub replicas: Option<u32>,
    /// A HorizontalPodAutoscaler, in place of a number.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "Autoscaling::read")]
    pub autoscaling: Option<Autoscaling>,
    /// Settings of the pods.
    #[serde(default, skip_serializing_if = "Pod::is_default")]
    pub pod: Pod,
    /// The proxy that requests pass on their way to the container (docs/executor.md). It is there where this is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<Executor>,
    /// A pool of the pods, for Gateways that ask an endpoint picker for each request, and that picker.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "InferencePool::read")]
    pub inference_pool: Option<InferencePool>,
}

/// Settings of a model's pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// More labels of the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The pods' service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Secrets with the credentials of image registries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<SecretReference>,
    /// Labels of the nodes that pods may run on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate, as in a pod.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "open::list")]
    #[schemars(schema_with = "open::objects")]
    pub tolerations: Vec<Value>,
    /// The time that a pod gets to end, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub termination_grace_period_seconds: Option<u32>,
    /// Privileges of all containers, as in a pod: `fsGroup`, `runAsUser` and so on. The profile of seccomp is `RuntimeDefault` where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub security_context: Option<Value>,
    /// Nodes and pods that the pods should be near to, as in a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub affinity: Option<Value>,
    /// Spread over zones and nodes, as in a pod; over nodes, as far as that is possible, where it is left out. Without `labelSelector`, the model's pods are counted.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "open::list")]
    #[schemars(schema_with = "open::objects")]
    pub topology_spread_constraints: Vec<Value>,
    /// The class that says who has to go where room is short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}

impl Pod {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A Secret of the object's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretReference {
    /// The name.
    pub name: String,
}

/// The rules by which the number of pods follows their load.
// No field is required: where it is taken out of an applied object, API servers of 1.20 leave an empty one behind, with null in
// open fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Autoscaling {
    /// The least number of pods, 1 where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub min_replicas: Option<u32>,
    /// The greatest number of pods. It cannot be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_replicas: Option<u32>,
    /// The use of processors that is aimed at, in percent of what the pods request. It is 80 where `metrics` is left out too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub cpu_utilization: Option<u32>,
    /// More measures, as in a HorizontalPodAutoscaler of autoscaling/v2.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "open::list")]
    #[schemars(schema_with = "open::objects")]
    pub metrics: Vec<Value>,
    /// The speed up and down, as in a HorizontalPodAutoscaler of autoscaling/v2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub behavior: Option<Value>,
}

impl Autoscaling {
    /// Reads it; an empty one is none.
    fn read<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        let read = Option::<Self>::deserialize(from)?;
        Ok(read.filter(|read| *read != Self::default()))
    }
}

/// The executor before a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Executor {
    /// False leaves it out: requests go to the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The image, in place of the operator's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub image: Option<String>,
    /// Requests and limits, as in a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub resources: Option<Value>,
    /// The port of its probes and metrics, 9901 where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 65535))]
    pub admin_port: Option<u16>,
    /// Secrets that it sees as files, /var/run/secrets/berth/SECRET/KEY: passwords of queues, keys of callbacks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Access rules: fields of `access` in docs/executor.md. `model` is the name of this object where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub access: Option<Value>,
    /// Settings by port. Ports that are not named have none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ExecutorPort>,
}

/// A port of the container, as the executor treats it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecutorPort {
    /// The name of the container's port.
    pub name: String,
    /// True leaves the executor out: for what is not HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<bool>,
    /// Fields of `ports[]` in docs/executor.md: `paths`, `timeout`, `maxInFlight`, `async` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub settings: Option<Value>,
}

/// The user's container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// The image.
    #[schemars(length(min = 1))]
    pub image: String,
    /// The time when the image is pulled: `Always`, `IfNotPresent` or `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^(Always|IfNotPresent|Never)$"))]
    pub image_pull_policy: Option<String>,
    /// The program, in place of the image's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The program's arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables, as in a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "open::list")]
    #[schemars(schema_with = "open::objects")]
    pub env: Vec<Value>,
    /// Sources of environment variables, as in a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "open::list")]
    #[schemars(schema_with = "open::objects")]
    pub env_from: Vec<Value>,
    /// The ports that it listens on. The Service has the same.
    #[schemars(length(min = 1, max = 16))]
    pub ports: Vec<Port>,
    /// Requests and limits, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub resources: Option<Value>,
    /// The probe that lets requests in, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub readiness_probe: Option<Value>,
    /// The probe whose failure restarts it, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub liveness_probe: Option<Value>,
    /// The probe that the others wait for, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub startup_probe: Option<Value>,
    /// Privileges, as in a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub security_context: Option<Value>,
}

impl Container {
    fn is_absent(&self) -> bool {
        *self == Self::default()
    }
}

/// A port of the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// The name, unique in the container.
    #[schemars(length(min = 1, max = 15), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The number that the container listens on.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The number that the Service answers at; the same where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub service_port: Option<u16>,
}

/// Files that an init container fetches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Parameters {
    /// The name, unique in the object.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The location: s3, gs, az, http or https. A folder ends with a slash.
    #[schemars(regex(pattern = "^(s3|gs|az|https?)://.+$"))]
    pub uri: String,
    /// The SHA-256 of the file; of a folder, that of its sorted lines `DIGEST  PATH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub sha256: Option<String>,
    /// The folder of the container that shows them, read-only.
    #[schemars(regex(pattern = "^/.+$"))]
    pub mount_path: String,
    /// A Secret whose entries are the environment of the fetch: `AWS_ACCESS_KEY_ID` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<String>,
    /// Requests and limits of the fetch, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open::object")]
    pub resources: Option<Value>,
}
