//! A typed manifest as text: with every default for people to read, or without for the store.

use serde_json::Value;

use super::{RawDeployment, RawSpec};

impl RawDeployment {
    /// The manifest as somebody would write it: without what is at its default, but for the number of replicas and the
    /// priority, which readers look for.
    #[must_use]
    pub fn written(&self) -> Value {
        let mut document = json(self);
        let mut plain = json(&RawSpec::of(self.spec.model.clone()));
        if let Some(plain) = plain.as_object_mut() {
            // The model has no defaults: what it leaves out is left out already.
            plain.retain(|name, _| !matches!(name.as_str(), "model" | "replicas" | "priority"));
        }
        if let Some(spec) = document.get_mut("spec") {
            remove_equal(spec, &plain);
        }
        document
    }

    /// The manifest with every default in its place.
    #[must_use]
    pub fn with_defaults(&self) -> Value {
        let mut document = json(self);
        drop_empty(&mut document);
        document
    }

    /// Reads a manifest that passed the checks before: what the store holds.
    ///
    /// # Errors
    /// The reason why this version of Berth does not take it any more.
    pub fn read(written: &Value) -> Result<Self, String> {
        serde::Deserialize::deserialize(written).map_err(|error: serde_json::Error| error.to_string())
    }

    /// The fields in which two manifests differ: `spec.rollout`, `metadata.labels`.
    #[must_use]
    pub fn differing(&self, other: &Self) -> Vec<String> {
        let (one, other) = (self.written(), other.written());
        let mut found = Vec::new();
        for part in ["metadata", "spec"] {
            let fields = |document: &Value| document[part].as_object().cloned().unwrap_or_default();
            let (one, other) = (fields(&one), fields(&other));
            let names: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            let differing = names.into_iter().filter(|name| one.get(*name) != other.get(*name));
            found.extend(differing.map(|name| format!("{part}.{name}")));
        }
        found
    }
}

/// Through text, so that 0.1 stays 0.1.
fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_string(value).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Removes fields that are equal to those of `plain`, and mappings that are empty afterwards.
fn remove_equal(value: &mut Value, plain: &Value) {
    let (Some(fields), Some(plain)) = (value.as_object_mut(), plain.as_object()) else { return };
    for (name, plain) in plain {
        let Some(field) = fields.get_mut(name) else { continue };
        if field == plain {
            fields.remove(name);
        } else {
            remove_equal(field, plain);
        }
    }
}

/// Removes nulls, empty lists and empty mappings, but not inside of a card, which is shown as it is.
fn drop_empty(value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.iter_mut().filter(|(name, _)| *name != "card").for_each(|(_, value)| drop_empty(value));
        fields.retain(|_, value| match value {
            Value::Null => false,
            Value::Array(items) => !items.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            _ => true,
        });
    }
}
