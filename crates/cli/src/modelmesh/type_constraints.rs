//! `MM_TYPE_CONSTRAINTS`: the labels that instances must have, or had better have, for models of a type.

use std::collections::BTreeMap;

use berth_spec::deployment::Selector;
use serde::Deserialize;

/// The type that stands for all that are not named.
const OTHERS: &str = "_default";

/// Labels for types of models.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TypeConstraints {
    /// By the type as manifests have it.
    pub(super) types: BTreeMap<String, Selector>,
    /// Of all other types.
    pub(super) others: Option<Selector>,
}

#[derive(Debug, Deserialize)]
struct Constraint {
    #[serde(default)]
    required: Vec<String>,
    #[serde(default)]
    preferred: Vec<String>,
}

impl TypeConstraints {
    /// Reads ModelMesh's JSON.
    pub(super) fn parse(json: &str) -> Result<Self, String> {
        let read: BTreeMap<String, Constraint> = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let mut constraints = Self::default();
        for (kind, Constraint { required, preferred }) in read {
            let labels = |list: Vec<String>| list.iter().map(|text| label(text)).collect();
            let selector = Selector { required: labels(required), preferred: labels(preferred) };
            if kind == OTHERS {
                constraints.others = Some(selector);
            } else {
                constraints.types.insert(berth_modelmesh::type_name(&kind), selector);
            }
        }
        Ok(constraints)
    }
}

/// A label of ModelMesh's, which is there or not, as a label of a worker.
pub(super) fn label(text: &str) -> (String, String) {
    let text = text.trim();
    let (key, value) = text.split_once('=').unwrap_or((text, "true"));
    (key.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_ask_for_labels() {
        let json = r#"{"my-type-1": {"required": ["my-label-1"], "preferred": ["gpu=a100"]}, "_default": {"required": ["cpu"]}}"#;
        let read = TypeConstraints::parse(json).expect("it is right");
        let one = &read.types["my-type-1"];
        assert_eq!(one.required, [("my-label-1".to_owned(), "true".to_owned())].into());
        assert_eq!(one.preferred, [("gpu".to_owned(), "a100".to_owned())].into());
        assert!(read.others.is_some_and(|others| others.required.contains_key("cpu")));
        assert!(TypeConstraints::parse("[]").is_err());
    }
}
