//! The table of the operator's custom resources that a fleet serves: `ModelDeployment`, and `CLOpsDeployment`, of which the operator makes
//! one. The types are the operator's (`operator/src/api`), because they describe pods; `operator/src/fleet.rs` reads `spec.fleet`,
//! which is the hub's own `spec`.

use super::{
    Dialect, Field, Hub,
    Mapping::{Refused, To},
};

/// Custom resources of the group `berth.dev`.
pub const DIALECT: Dialect = Dialect {
    title: "Custom resources",
    introduction: "`CLOpsDeployment` and `ModelDeployment` of a cluster (`berth.dev/v1`; [kubernetes.md](kubernetes.md#a-fleet-that-follows-the-cluster)). Without `fleet` \
                   they are pods, and no deployment of a fleet: [kubernetes-api.md](kubernetes-api.md) lists their fields, and those in which older versions differ. With `fleet` they become \
                   the deployment below, and pods have no part in it. Of a `CLOpsDeployment` the operator makes a `ModelDeployment` of the same name, whose `spec` is `spec.model`; \
                   its own labels and annotations stay where they are. A mistake is refused when the object is written, and told in its status.",
    hub: Hub::Deployment,
    one_way: true,
    fields: &[
        Field { path: "metadata.name", mapping: To(&["metadata.name"]), note: "" },
        Field { path: "metadata.namespace", mapping: To(&["metadata.namespace"]), note: "" },
        Field { path: "metadata.labels", mapping: To(&["metadata.labels"]), note: "of the `ModelDeployment`" },
        Field {
            path: "metadata.annotations",
            mapping: To(&["metadata.annotations"]),
            note: "of the `ModelDeployment`, without those of `kubectl` and of the operator",
        },
        Field { path: "spec.fleet", mapping: To(&["spec"]), note: "all fields as they are; others are refused" },
        Field { path: "spec.container", mapping: Refused, note: "beside `fleet`" },
        Field { path: "spec.parameters", mapping: Refused, note: "beside `fleet`" },
        Field { path: "spec.replicas", mapping: Refused, note: "beside `fleet`: write `fleet.replicas`" },
        Field {
            path: "spec.autoscaling",
            mapping: Refused,
            note: "beside `fleet`: write `fleet.replicas` and `fleet.scaling`",
        },
        Field { path: "spec.pod", mapping: Refused, note: "beside `fleet`" },
        Field { path: "spec.executor", mapping: Refused, note: "beside `fleet`" },
        Field {
            path: "spec.inferencePool",
            mapping: Refused,
            note: "beside `fleet`: a fleet has one pool for all its models ([kubernetes.md](kubernetes.md#inference-pools))",
        },
    ],
    inputs: &[],
};
