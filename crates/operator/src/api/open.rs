//! Schemas of fields whose form is the cluster's, not ours: they are passed on as written.
//!
//! They may be null: where such a field is taken out of an applied object, API servers of 1.20 put null in its place.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An object of Kubernetes' own: the API server checks it when the Deployment is applied.
pub(super) fn object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of such objects.
pub(super) fn objects(_: &mut SchemaGenerator) -> Schema {
    let item = json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true });
    json_schema!({ "type": "array", "nullable": true, "items": item })
}

/// Reads such a list, without what is null.
pub(super) fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Value>, D::Error> {
    let list = Option::<Vec<Value>>::deserialize(from)?.unwrap_or_default();
    Ok(list.into_iter().filter(|item| !item.is_null()).collect())
}
