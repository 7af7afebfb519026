//! The fields in which two manifests differ, each with its value before and after.

use std::fmt;

use serde_json::Value;

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldChange {
    /// Path of the field: `spec.replicas.min`, `spec.model.inputs[0].name`.
    pub path: String,
    /// Value before; `None`: the field is new.
    pub from: Option<Value>,
    /// Value after; `None`: the field is gone.
    pub to: Option<Value>,
}

impl fmt::Display for FieldChange {
    /// `spec.priority: 50 → 80`, `spec.pinned: + true`, `spec.pinned: - true`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => write!(f, "{}: {} → {}", self.path, shown(from), shown(to)),
            (None, Some(to)) => write!(f, "{}: + {}", self.path, shown(to)),
            (Some(from), None) => write!(f, "{}: - {}", self.path, shown(from)),
            (None, None) => f.write_str(&self.path),
        }
    }
}

/// A value in one line: texts without quotes, the rest as JSON.
fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The fields in which `after` differs from `before`, in the order of their paths. Mappings are compared field by field,
/// lists of one length item by item.
#[must_use]
pub fn changes(before: &Value, after: &Value) -> Vec<FieldChange> {
    let mut found = Vec::new();
    compare("", Some(before), Some(after), &mut found);
    found
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<FieldChange>) {
    match (before, after) {
        (before, after) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for name in names {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                compare(&path, before.get(name), after.get(name), found);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) if before.len() == after.len() => {
            for (at, (before, after)) in before.iter().zip(after).enumerate() {
                compare(&format!("{path}[{at}]"), Some(before), Some(after), found);
            }
        }
        (before, after) => {
            found.push(FieldChange { path: path.to_owned(), from: before.cloned(), to: after.cloned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_field_that_differs_is_told_once() {
        let before = json!({"spec": {"model": {"uri": "a", "inputs": [{"name": "x"}]}, "priority": 50, "pinned": true, "tags": [1]}});
        let after = json!({"spec": {"model": {"uri": "b", "inputs": [{"name": "y"}]}, "priority": 50, "replicas": {"min": 0}, "tags": [1, 2]}});
        let told: Vec<String> = changes(&before, &after).iter().map(ToString::to_string).collect();
        let expected = [
            "spec.model.inputs[0].name: x → y",
            "spec.model.uri: a → b",
            "spec.pinned: - true",
            "spec.replicas: + {\"min\":0}",
            "spec.tags: [1] → [1,2]",
        ];
        assert_eq!(told, expected);
        assert!(changes(&before, &before).is_empty());
    }
}
