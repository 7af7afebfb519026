//! Schemas of fields whose form is the cluster's, not ours: they are passed on as written.

use schemars::{Schema, SchemaGenerator, json_schema};

/// An object of Kubernetes' own: the API server checks it when the Deployment is applied.
pub(super) fn object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of such objects.
pub(super) fn objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } })
}
