//! `ServingRuntime` and `ClusterServingRuntime` of KServe and ModelMesh, as files of a worker. They are read, never written.
//!
//! The command line makes a `Runtime` of them (`cli/src/settings/runtime/serving_runtime.rs`): which programs a machine has, and on
//! which ports, is known there. Field names: modelmesh-serving 0.12 `apis/serving/v1alpha1`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::super::{
    Dialect, Field, Hub,
    Mapping::{Refused, To},
};

/// Kinds that become runtimes of a worker.
pub const KINDS: [&str; 2] = ["ServingRuntime", "ClusterServingRuntime"];

/// An object of either kind.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ServingRuntime {
    /// The object's name, which becomes the runtime's.
    pub metadata: RuntimeMetadata,
    /// The model server.
    pub spec: RuntimeSpec,
}

/// The part of the metadata that counts.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct RuntimeMetadata {
    /// The name of the object.
    pub name: String,
}

/// A model server.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeSpec {
    /// The formats that its server loads.
    #[serde(default)]
    pub supported_model_formats: Vec<SupportedFormat>,
    /// True for a server that loads models when it is told to; false for one that is started with its model.
    #[serde(default)]
    pub multi_model: bool,
    /// True for a server that takes no models.
    #[serde(default)]
    pub disabled: bool,
    /// The place where its adapter listens.
    pub grpc_endpoint: Option<String>,
    /// The place where requests go, if it is another.
    pub grpc_data_endpoint: Option<String>,
    /// A server that ModelMesh knows.
    pub built_in_adapter: Option<BuiltInAdapter>,
    /// The containers of its pods: the model server, and adapters beside it.
    #[serde(default)]
    pub containers: Vec<Container>,
}

/// A format, with one of its versions or all.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct SupportedFormat {
    /// The name of the format, such as `sklearn`.
    pub name: String,
    /// The version. Left out: all.
    pub version: Option<String>,
}

/// A server that ModelMesh knows.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuiltInAdapter {
    /// `mlserver`, `triton` or `ovms`.
    pub server_type: String,
    /// Bytes of its memory that are not for models.
    #[serde(default)]
    pub mem_buffer_bytes: u64,
}

/// A container of the pod: one program.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Container {
    /// The container's name, by which the server's is found among them.
    #[serde(default)]
    pub name: String,
    /// The program, in place of the image's.
    #[serde(default)]
    pub command: Vec<String>,
    /// Arguments of the program.
    #[serde(default)]
    pub args: Vec<String>,
    /// Variables of the program's environment.
    #[serde(default)]
    pub env: Vec<Variable>,
    /// Resources of the container, of which the memory limit counts.
    #[serde(default)]
    pub resources: ContainerResources,
}

/// A variable of a container's environment.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Variable {
    /// The variable's name.
    pub name: String,
    /// The value. Left out: it comes from elsewhere in a cluster.
    pub value: Option<String>,
}

/// Resources of a container; only limits are read.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct ContainerResources {
    /// Upper limits: quantities, which YAML may have read as numbers.
    #[serde(default)]
    pub limits: BTreeMap<String, Value>,
}

/// Runtimes of KServe and ModelMesh.
pub const DIALECT: Dialect = Dialect {
    title: "Runtimes of KServe and ModelMesh",
    introduction: "A worker takes a file with a `ServingRuntime` or `ClusterServingRuntime` (`serving.kserve.io/v1alpha1`) by `--runtime` ([runtimes.md](runtimes.md#servingruntimes-of-kserve)) \
                   and reads it as a file of kind `Runtime`, which `berth convert` prints. `berth apply` and the API refuse it, and say so: a worker starts programs for whoever started it, \
                   and for nobody else. A field that is not in this table is ignored; it is named nowhere. In a cluster, a fleet looks at \
                   `disabled` and `supportedModelFormats` of the runtime that an object names: a model that it could not take is refused, and its status says why \
                   ([from-kserve.md](from-kserve.md)).",
    hub: Hub::Runtime,
    one_way: true,
    fields: &[
        Field { path: "metadata.name", mapping: To(&["metadata.name"]), note: "" },
        Field {
            path: "spec.supportedModelFormats",
            mapping: To(&["spec.formats"]),
            note: "a format without a version takes all versions",
        },
        Field {
            path: "spec.multiModel",
            mapping: To(&["spec.modelsPerProcess"]),
            note: "`false`, or not there: 1, and `protocol: v2`. Each model has a process of the container's `command` and `args`, in which `{{.Name}}` is the model, \
                   `/mnt/models` the folder with its artifact, and the number of each port one that is free",
        },
        Field { path: "spec.disabled", mapping: Refused, note: "where it is `true`" },
        Field {
            path: "spec.grpcEndpoint",
            mapping: To(&["spec.address"]),
            note: "`port:NUMBER` or `unix:/PATH`; without effect beside `builtInAdapter`",
        },
        Field {
            path: "spec.grpcDataEndpoint",
            mapping: To(&["spec.inferenceAddress"]),
            note: "as `grpcEndpoint`, and without effect where that has none",
        },
        Field {
            path: "spec.builtInAdapter.serverType",
            mapping: To(&["spec.protocol", "spec.layout", "spec.command", "spec.environment"]),
            note: "`mlserver`, `triton` or `ovms`, started from this machine's `PATH`; others are refused",
        },
        Field {
            path: "spec.builtInAdapter.memBufferBytes",
            mapping: To(&["spec.memory"]),
            note: "subtracted from the limit of the container",
        },
        Field {
            path: "spec.containers",
            mapping: To(&["spec.memory", "spec.command", "spec.environment"]),
            note: "with `multiModel`, `resources.limits.memory` of the container that is named as the server, else of the first. Without it, `command`, `args` and `env` of \
                   `kserve-container`, else of the first. Images are ignored, and so are probes, which ask for a server's own signs of health: `spec.health` of the \
                   `Runtime` says when it is given up",
        },
    ],
    inputs: &[],
};
