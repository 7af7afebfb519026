//! The table of functions that people keep in etcd (`v1alpha1`). `functions/src/deployment/spec.rs` reads them: places of code, and so Git,
//! are known there. That reader takes manifests of functions, too, so that a field means the same in both.

use super::{Dialect, Field, Hub, Mapping::To};

/// Functions in etcd.
pub const DIALECT: Dialect = Dialect {
    title: "Functions in etcd",
    introduction: "People and tools put them below `/models/deployments/` as JSON, `apiVersion: v1alpha1` and `kind: ModelDeployment` ([functions.md](functions.md)). They \
                   become what a manifest of kind `Function` is; `berth apply` writes the same objects. A field that is not in this table stays in the \
                   object and has no effect; those of `spec` are named in the condition `SpecValid`. A field of a wrong form is refused: the phase is `Failed`, and \
                   the message names it. `status` is written by Berth.",
    hub: Hub::Function,
    one_way: false,
    fields: &[
        Field { path: "apiVersion", mapping: To(&["apiVersion"]), note: "`v1alpha1`, or `berth.dev/v1`" },
        Field { path: "kind", mapping: To(&["kind"]), note: "`ModelDeployment`, or `Function`" },
        Field { path: "metadata.name", mapping: To(&["metadata.name"]), note: "the last part of the key" },
        Field {
            path: "metadata.namespace",
            mapping: To(&["metadata.namespace"]),
            note: "the part of the key before the name: `/models/deployments/NAMESPACE/NAME`; without one, `default`. May be left out",
        },
        Field { path: "metadata.labels", mapping: To(&["metadata.labels"]), note: "" },
        Field {
            path: "metadata.annotations",
            mapping: To(&["metadata.annotations"]),
            note: "without `berth.dev/origin`, which names the source that declared the function",
        },
        Field {
            path: "metadata.generation",
            mapping: To(&["metadata.generation"]),
            note: "a number that grows with each change; where it is left out or 0, Berth numbers the contents",
        },
        Field {
            path: "metadata.deletionTimestamp",
            mapping: To(&["metadata.deleting"]),
            note: "removes the function, then the object",
        },
        Field { path: "spec.type", mapping: To(&["spec.type"]), note: "`keras` is `python`, `tfjs` is `javascript`" },
        Field {
            path: "spec.sourceUri",
            mapping: To(&["spec.sourceUri"]),
            note: "a path of `file:` is absolute: there is no file that it could be relative to",
        },
        Field { path: "spec.sourceSha256", mapping: To(&["spec.sourceSha256"]), note: "" },
        Field { path: "spec.entrypoint", mapping: To(&["spec.entrypoint"]), note: "" },
        Field {
            path: "spec.runtime.pythonVersion",
            mapping: To(&["spec.runtime.pythonVersion"]),
            note: "refused beside JavaScript",
        },
        Field {
            path: "spec.runtime.nodeVersion",
            mapping: To(&["spec.runtime.nodeVersion"]),
            note: "refused beside Python",
        },
        Field { path: "spec.build.bundler", mapping: To(&["spec.build.bundler"]), note: "refused beside Python" },
        Field { path: "spec.build.configFile", mapping: To(&["spec.build.configFile"]), note: "refused beside Python" },
        Field { path: "spec.target.platform", mapping: To(&["spec.target.platform"]), note: "" },
        Field {
            path: "spec.target.resourceGroup",
            mapping: To(&["spec.target.resourceGroup"]),
            note: "without effect unless `platform` is `azure-function`, which needs it",
        },
        Field {
            path: "spec.target.appName",
            mapping: To(&["spec.target.appName"]),
            note: "without effect unless `platform` is `azure-function`, which needs it",
        },
        Field {
            path: "spec.target.programmingModel",
            mapping: To(&["spec.target.programmingModel"]),
            note: "refused beside JavaScript",
        },
        Field {
            path: "spec.target.authLevel",
            mapping: To(&["spec.target.authLevel"]),
            note: "`function` is refused unless `platform` is `azure-function`",
        },
        Field {
            path: "spec.target.replicas",
            mapping: To(&["spec.target.replicas"]),
            note: "without effect unless `platform` is `replica`",
        },
        Field { path: "spec.env", mapping: To(&["spec.env"]), note: "refused where `platform` is `replica`" },
        Field {
            path: "spec.network.hosts",
            mapping: To(&["spec.network.hosts"]),
            note: "without effect where `platform` is `azure-function`",
        },
        Field { path: "spec.limits.timeoutSeconds", mapping: To(&["spec.limits.timeoutSeconds"]), note: "" },
        Field { path: "spec.limits.concurrency", mapping: To(&["spec.limits.concurrency"]), note: "" },
        Field { path: "spec.limits.idleSeconds", mapping: To(&["spec.limits.idleSeconds"]), note: "" },
        Field { path: "spec.limits.memoryMiB", mapping: To(&["spec.limits.memoryMiB"]), note: "" },
        Field {
            path: "spec.limits.memoryMib",
            mapping: To(&["spec.limits.memoryMib"]),
            note: "another name for `memoryMiB`, which counts where both are there",
        },
        Field { path: "spec.probe", mapping: To(&["spec.probe"]), note: "" },
    ],
    inputs: &[],
};
