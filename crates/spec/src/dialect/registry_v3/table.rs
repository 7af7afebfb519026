//! The table of the registry dialect.

use super::super::{
    Dialect, Field, Hub,
    Mapping::{Annotation, To},
};

/// The registry dialect.
pub const DIALECT: Dialect = Dialect {
    title: "Registry manifests 3.x",
    introduction: "Operations write them below `models/` of a Git registry ([registry.md](registry.md)). The model is a model card in a \
                   repository of its own, which the registry pins to a commit. A field that the schema (`berth schema deployment`) does not name is ignored, with a \
                   warning in the validation report; in the block `berth` it is an error.",
    hub: Hub::Deployment,
    one_way: false,
    fields: &[
        Field { path: "id", mapping: To(&["metadata.name"]), note: "" },
        Field { path: "model_card_ref.repository", mapping: To(&["spec.model.card"]), note: "`card.repository`" },
        Field {
            path: "model_card_ref.path",
            mapping: Annotation("registry.berth.dev/card"),
            note: "as `REPOSITORY@REF:PATH`; the card itself is in `spec.model.card`",
        },
        Field {
            path: "model_card_ref.ref",
            mapping: To(&["spec.model.card"]),
            note: "`card.ref`, with the commit that it stood for",
        },
        Field {
            path: "enabled",
            mapping: To(&["spec.replicas"]),
            note: "`false` is 0 replicas, and annotation `registry.berth.dev/enabled`",
        },
        Field {
            path: "deployment_config.region",
            mapping: To(&["metadata.labels", "spec.selector.required"]),
            note: "label `region`; a `region` in `worker_selector` overrides what workers must have",
        },
        Field {
            path: "deployment_config.replicas",
            mapping: To(&["spec.replicas"]),
            note: "at most 1000, more is refused; not kept while `enabled` is false",
        },
        Field { path: "deployment_config.priority", mapping: To(&["spec.priority"]), note: "" },
        Field { path: "deployment_config.worker_selector", mapping: To(&["spec.selector.required"]), note: "" },
        Field {
            path: "deployment_config.endpoint",
            mapping: To(&["spec.endpoint"]),
            note: "its path is where the gateway answers",
        },
        Field {
            path: "berth.minReplicas",
            mapping: To(&["spec.replicas"]),
            note: "`min`; `max` is then `deployment_config.replicas`",
        },
        Field {
            path: "berth.regions",
            mapping: To(&["spec.replicas"]),
            note: "`regions`; the label `region` is then not asked for in `spec.selector`",
        },
        Field { path: "berth.idleAfter", mapping: To(&["spec.idleAfter"]), note: "" },
        Field { path: "berth.pinned", mapping: To(&["spec.pinned"]), note: "" },
        Field { path: "berth.scaling", mapping: To(&["spec.scaling"]), note: "" },
        Field { path: "berth.placement", mapping: To(&["spec.placement"]), note: "" },
        Field {
            path: "berth.rollout",
            mapping: To(&["spec.rollout"]),
            note: "`drainTimeout` is 60s where it is left out; the hub's own default is 30s",
        },
        Field { path: "berth.warmup", mapping: To(&["spec.warmup"]), note: "" },
        Field { path: "berth.timeout", mapping: To(&["spec.timeout"]), note: "" },
        Field { path: "berth.idempotent", mapping: To(&["spec.idempotent"]), note: "" },
        Field { path: "berth.concurrency", mapping: To(&["spec.concurrency"]), note: "" },
        Field { path: "berth.limits", mapping: To(&["spec.limits"]), note: "" },
        Field { path: "berth.batching", mapping: To(&["spec.batching"]), note: "" },
        Field { path: "metadata.owner", mapping: Annotation("registry.berth.dev/owner"), note: "" },
        Field { path: "metadata.deployed_at", mapping: Annotation("registry.berth.dev/deployed-at"), note: "" },
        Field { path: "metadata.deployed_by", mapping: Annotation("registry.berth.dev/deployed-by"), note: "" },
    ],
    inputs: &[
        Field {
            path: "model card",
            mapping: To(&["spec.model.format", "spec.model.card"]),
            note: "whole; the format is `python`",
        },
        Field { path: "model card: metadata.name", mapping: To(&["metadata.labels"]), note: "label `model`" },
        Field { path: "model card: metadata.version", mapping: To(&["metadata.labels"]), note: "label `version`" },
        Field { path: "model card: metadata.owner", mapping: Annotation("registry.berth.dev/model-owner"), note: "" },
        Field { path: "model card: resources", mapping: To(&["spec.resources"]), note: "" },
        Field {
            path: "folder",
            mapping: To(&["metadata.labels"]),
            note: "label `environment`: `production` or `staging`",
        },
        Field { path: "file", mapping: Annotation("registry.berth.dev/path"), note: "" },
        Field {
            path: "commit",
            mapping: Annotation("registry.berth.dev/commit"),
            note: "the commit that last changed the deployment",
        },
    ],
};
