//! The custom resources of the group `berth.dev`, in the version that is stored. One file each; [`status`] is what all of them
//! tell, [`spokes`] are the older versions.

pub mod async_api;
pub mod clops_deployment;
pub mod inference_pool;
pub mod model_deployment;
mod open;
pub(crate) mod rules;
pub mod spokes;
pub mod status;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps,
    JSONSchemaPropsOrArray, ServiceReference, WebhookClientConfig, WebhookConversion,
};
use kube::CustomResourceExt;

use self::spokes::{SPOKES, Spoke};
pub use self::{
    async_api::{AsyncAPI, AsyncAPISpec, AsyncAPIStatus},
    clops_deployment::{CLOpsDeployment, CLOpsDeploymentSpec},
    inference_pool::InferencePool,
    model_deployment::{ModelDeployment, ModelDeploymentSpec},
    status::{Condition, Status},
};

/// The API group of all custom resources, and the prefix of annotations and labels.
pub const GROUP: &str = "berth.dev";

/// The version that is stored, and that the operator reads and writes.
pub const VERSION: &str = "v1";

/// The definitions, as a cluster is given them whose operator is in `namespace`: there the API server asks for conversions.
#[must_use]
pub fn definitions(namespace: &str) -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![CLOpsDeployment::crd(), ModelDeployment::crd(), AsyncAPI::crd()];
    for definition in &mut definitions {
        let spec = &mut definition.spec;
        for version in &mut spec.versions {
            if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
                without_defaults(schema);
                schema.description =
                    schema.properties.as_ref().and_then(|parts| parts.get("spec")?.description.clone());
            }
        }
        let older: Vec<_> = spec.versions.iter().flat_map(|stored| older_versions(stored, &spec.names.kind)).collect();
        if !older.is_empty() {
            spec.versions.extend(older);
            spec.conversion = Some(conversion(namespace));
        }
    }
    definitions
}

fn older_versions(stored: &CustomResourceDefinitionVersion, kind: &str) -> Vec<CustomResourceDefinitionVersion> {
    let Some(place) = spokes::model_place(kind) else { return Vec::new() };
    SPOKES.iter().filter_map(|spoke| older_version(stored, spoke, place)).collect()
}

fn older_version(
    stored: &CustomResourceDefinitionVersion,
    spoke: &Spoke,
    place: &[&str],
) -> Option<CustomResourceDefinitionVersion> {
    let schema = serde_json::to_value(stored.schema.as_ref()?.open_api_v3_schema.as_ref()?).ok()?;
    let mut version = stored.clone();
    version.name = spoke.version.to_owned();
    version.storage = false;
    version.deprecated = spoke.deprecation.map(|_| true);
    version.deprecation_warning = spoke.deprecation.map(str::to_owned);
    version.schema.as_mut()?.open_api_v3_schema = serde_json::from_value(spoke.schema(&schema, place)).ok();
    Some(version)
}

/// Conversions by the operator's webhook. Operators put their certificates into it.
fn conversion(namespace: &str) -> CustomResourceConversion {
    let service = ServiceReference {
        name: "berth-operator".to_owned(),
        namespace: namespace.to_owned(),
        path: Some("/convert".to_owned()),
        port: Some(443),
    };
    let client = WebhookClientConfig { service: Some(service), ..WebhookClientConfig::default() };
    CustomResourceConversion {
        strategy: "Webhook".to_owned(),
        webhook: Some(WebhookConversion {
            client_config: Some(client),
            conversion_review_versions: vec!["v1".to_owned()],
        }),
    }
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
        for definition in definitions("berth") {
            let text = serde_json::to_value(&definition).expect("JSON");
            for version in text["spec"]["versions"].as_array().expect("versions") {
                let schema = &version["schema"]["openAPIV3Schema"];
                let mut found = Vec::new();
                untyped(schema, "", &mut found);
                assert!(found.is_empty(), "{found:?}");
                assert!(!schema.to_string().contains("\"default\""), "what people write is never changed: {schema}");
                assert!(version["subresources"]["status"].is_object());
            }
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
        for definition in definitions("berth") {
            let text = serde_json::to_value(&definition).expect("JSON");
            silent(&text["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec", &mut found);
        }
        assert!(found.is_empty(), "kubectl explain has nothing to say about {found:?}");
    }
}
