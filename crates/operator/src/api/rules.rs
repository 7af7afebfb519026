//! Rules that API servers check by themselves, in their expression language (Kubernetes 1.25): those of `brain::valid` and `admission` that
//! need no more than the object. They hold while no operator can be asked.
//!
//! A list without a greatest length has none: an API server refuses rules whose costs it cannot bound.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, ValidationRule};

/// Handling of the rules in the definitions that a cluster is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaRules {
    /// Written into the schemas.
    Written,
    /// Left out: for clusters before 1.25, where kubectl refuses definitions with them.
    LeftOut,
}

/// The rule of whole objects: their names are those of Services, and values of labels.
const NAME: (&str, &str) = (
    "self.metadata.name.size() <= 63 && !self.metadata.name.contains('.') && self.metadata.name.matches('^[a-z]')",
    "metadata.name: it names a Service: use at most 63 lower-case letters, digits and dashes, a letter first",
);

/// A place in the spec of a model, a rule, and what to say of an object that breaks it.
// A field that is taken out of an applied object may leave an empty one behind; it counts as none.
const RULES: [(&str, &str, &str); 8] = [
    ("", "has(self.container) || has(self.fleet)", "write container, or fleet for a model without pods of its own"),
    (
        "",
        "!has(self.fleet) || !(has(self.container) || has(self.replicas))",
        "a model of a fleet has no pods of its own: leave out container and all other fields",
    ),
    (
        "",
        "has(self.fleet) == has(oldSelf.fleet)",
        "a model cannot change between pods and a fleet: delete it, and write it anew",
    ),
    (
        "",
        "!has(self.replicas) || !has(self.autoscaling) || !has(self.autoscaling.maxReplicas)",
        "autoscaling sets the number of pods: leave out replicas, or autoscaling",
    ),
    (
        "autoscaling",
        "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
        "minReplicas is more than maxReplicas",
    ),
    ("container.ports", "self.all(one, self.exists_one(other, other.name == one.name))", "a name comes twice"),
    ("container.ports", "self.all(one, self.exists_one(other, other.port == one.port))", "a port comes twice"),
    (
        "container.ports",
        "self.all(one, self.exists_one(other, (has(other.servicePort) ? other.servicePort : other.port) == \
         (has(one.servicePort) ? one.servicePort : one.port)))",
        "a servicePort comes twice",
    ),
];

/// Writes the rules into the schema of a kind whose model is at `place` of its spec.
pub(super) fn write(schema: &mut JSONSchemaProps, place: &[&str]) {
    add(schema, NAME);
    for (path, rule, message) in RULES {
        let mut way = ["spec"].iter().chain(place).copied().chain(path.split('.').filter(|name| !name.is_empty()));
        let at = way.try_fold(&mut *schema, |at, name| at.properties.as_mut()?.get_mut(name));
        if let Some(at) = at {
            add(at, (rule, message));
        }
    }
}

fn add(schema: &mut JSONSchemaProps, (rule, message): (&str, &str)) {
    schema.x_kubernetes_validations.get_or_insert_default().push(ValidationRule {
        rule: rule.to_owned(),
        message: Some(message.to_owned()),
        ..ValidationRule::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::definitions, install::custom_resources};

    #[test]
    fn each_rule_has_its_place_in_the_stored_version_alone() {
        for definition in definitions("berth", SchemaRules::Written) {
            for version in &definition.spec.versions {
                let text = serde_json::to_string(version).expect("JSON");
                let rules = if version.storage { RULES.len() + 1 } else { 0 };
                assert_eq!(text.matches("\"rule\":").count(), rules, "{} {}", definition.spec.names.kind, version.name);
            }
        }
        let without = custom_resources("berth", SchemaRules::LeftOut);
        assert!(!serde_json::to_string(&without).expect("JSON").contains("x-kubernetes-validations"));
    }
}
