//! The custom resources of the group `berth.dev`. One file each; [`status`] is what all of them tell.

pub mod clops_deployment;
pub mod model_deployment;
mod open;
pub mod status;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;

pub use self::{
    clops_deployment::{CLOpsDeployment, CLOpsDeploymentSpec},
    model_deployment::{ModelDeployment, ModelDeploymentSpec},
    status::{Condition, Status},
};

/// The API group.
pub const GROUP: &str = "berth.dev";

/// The version that is served and stored.
pub const VERSION: &str = "v1alpha1";

/// The definitions, as a cluster is given them.
#[must_use]
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![CLOpsDeployment::crd(), ModelDeployment::crd()];
    for version in definitions.iter_mut().flat_map(|definition| &mut definition.spec.versions) {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            without_defaults(schema);
            schema.description = schema.properties.as_ref().and_then(|parts| parts.get("spec")?.description.clone());
        }
    }
    definitions
}

/// Removes defaults: the API server would write them into what people wrote.
fn without_defaults(schema: &mut JSONSchemaProps) {
    schema.default = None;
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        without_defaults(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        without_defaults(items);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Places in a schema that say nothing about their form: a structural schema has none.
    fn untyped(schema: &Value, path: &str, found: &mut Vec<String>) {
        let open = ["x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"];
        if schema.get("type").is_none() && !open.iter().any(|word| schema.get(*word) == Some(&json!(true))) {
            found.push(path.to_owned());
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            untyped(property, &format!("{path}.{name}"), found);
        }
        for part in ["items", "additionalProperties"] {
            schema
                .get(part)
                .filter(|part| part.is_object())
                .inspect(|inner| untyped(inner, &format!("{path}[]"), found));
        }
    }

    #[test]
    fn schemas_are_structural_and_set_no_defaults() {
        for definition in definitions() {
            let text = serde_json::to_value(&definition).expect("JSON");
            let schema = &text["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            let mut found = Vec::new();
            untyped(schema, "", &mut found);
            assert!(found.is_empty(), "{found:?}");
            assert!(!schema.to_string().contains("\"default\""), "what people write is never changed: {schema}");
            assert!(text["spec"]["versions"][0]["subresources"]["status"].is_object());
        }
    }

    #[test]
    fn every_field_is_explained() {
        fn silent(schema: &Value, path: &str, found: &mut Vec<String>) {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                let path = format!("{path}.{name}");
                if property.get("description").is_none() {
                    found.push(path.clone());
                }
                silent(property, &path, found);
                silent(&property["items"], &format!("{path}[]"), found);
            }
        }
        let mut found = Vec::new();
        for definition in definitions() {
            let text = serde_json::to_value(&definition).expect("JSON");
            silent(&text["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec", &mut found);
        }
        assert!(found.is_empty(), "kubectl explain has nothing to say about {found:?}");
    }
}
