//! Rules that API servers check by themselves, in their expression language (CEL, Kubernetes 1.25): those of `brain::valid` and
//! `admission` that need no more than the object. They hold while no operator can be asked.
//!
//! They are in the stored version alone: older ones lack fields that rules name, and the webhook checks objects in all of them. A rule
//! about a list needs the greatest length of it: an API server refuses rules whose cost it cannot bound.

use serde_json::{Value, json};

use super::{async_api, spokes};

/// The rule of whole objects: their names are those of Services, and values of labels.
const NAME: (&str, &str) = (
    "self.metadata.name.matches('^[a-z][-a-z0-9]{0,62}$')",
    "metadata.name: it names a Service: use at most 63 lower-case letters, digits and dashes, a letter first",
);

/// The rule of an `AsyncAPI`: its name. By whom it is written, no rule can see.
const ASYNC_API: (&str, &str) = (
    "self.metadata.name == self.spec.model + '.' + self.spec.port",
    "metadata.name: it is MODEL.PORT, by the operator, which derives this object: write async in \
     spec.model.executor.ports[].settings of a CLOpsDeployment",
);

/// A place in the spec of a model, a rule, and what to say of an object that breaks it.
// A field that is taken out of an applied object may leave an empty one behind, or null: both count as none.
const RULES: [(&str, &str, &str); 8] = [
    ("", "has(self.container) || has(self.fleet)", "write container, or fleet for a model without pods of its own"),
    (
        "",
        "!has(self.fleet) || !(has(self.container) || has(self.replicas) || has(self.executor) || \
         (has(self.parameters) && size(self.parameters) > 0) || \
         (has(self.autoscaling) && has(self.autoscaling.maxReplicas)) || \
         (has(self.inferencePool) && has(self.inferencePool.port)))",
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

/// Writes the rules into the definition of a custom resource. Other objects stay as they are.
pub(crate) fn write(definition: &mut Value) {
    let kind = definition["spec"]["names"]["kind"].as_str();
    let place = kind.and_then(spokes::model_place);
    let (rule, message) = match place {
        Some(_) => NAME,
        None if kind == Some(async_api::KIND) => ASYNC_API,
        None => return,
    };
    let versions = definition["spec"]["versions"].as_array_mut().into_iter().flatten();
    for version in versions.filter(|version| version["storage"] == true) {
        let schema = &mut version["schema"]["openAPIV3Schema"];
        add(schema, rule, message);
        let Some(place) = place else { continue };
        for (path, rule, message) in RULES {
            let mut way = ["spec"].iter().chain(place).copied().chain(path.split('.').filter(|name| !name.is_empty()));
            let at = way.try_fold(&mut *schema, |at, name| at.get_mut("properties")?.get_mut(name));
            if let Some(at) = at {
                add(at, rule, message);
            }
        }
    }
}

fn add(schema: &mut Value, rule: &str, message: &str) {
    let rule = json!({ "rule": rule, "message": message });
    let rules = &mut schema["x-kubernetes-validations"];
    match rules.as_array_mut() {
        Some(rules) => rules.push(rule),
        None => *rules = json!([rule]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::{custom_resources, with_schema_rules};

    /// Every rule below a part of a document.
    fn rules(value: &Value, found: &mut Vec<String>) {
        let here = value["x-kubernetes-validations"].as_array();
        found.extend(here.into_iter().flatten().filter_map(|rule| Some(rule["rule"].as_str()?.to_owned())));
        value.as_object().into_iter().flatten().for_each(|(_, inner)| rules(inner, found));
        value.as_array().into_iter().flatten().for_each(|inner| rules(inner, found));
    }

    #[test]
    fn each_rule_has_its_place_in_the_stored_version_alone() {
        let mut of_models: Vec<String> = RULES.iter().map(|(_, rule, _)| (*rule).to_owned()).collect();
        of_models.push(NAME.0.to_owned());
        of_models.sort_unstable();
        for definition in with_schema_rules(custom_resources("berth")) {
            let expected = match definition["spec"]["names"]["kind"] == async_api::KIND {
                true => vec![ASYNC_API.0.to_owned()],
                false => of_models.clone(),
            };
            for version in definition["spec"]["versions"].as_array().expect("versions") {
                let mut found = Vec::new();
                rules(version, &mut found);
                found.sort_unstable();
                let wanted = if version["storage"] == true { expected.clone() } else { Vec::new() };
                assert_eq!(found, wanted, "{} {}", definition["spec"]["names"]["kind"], version["name"]);
            }
        }
    }

    #[test]
    fn lists_that_rules_go_through_have_a_greatest_length() {
        for definition in custom_resources("berth") {
            let kind = definition["spec"]["names"]["kind"].as_str().expect("a kind");
            let Some(place) = spokes::model_place(kind) else {
                assert_eq!(kind, async_api::KIND);
                continue;
            };
            let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            let mut way = ["spec"].iter().chain(place).chain(["container", "ports"].iter());
            let ports = way.try_fold(schema, |at, name| at["properties"].get(name)).expect("the ports");
            assert!(ports["maxItems"].is_u64(), "{ports}");
        }
    }

    #[test]
    fn other_objects_stay_as_they_are() {
        let service = json!({ "kind": "Service", "spec": { "ports": [] } });
        assert_eq!(with_schema_rules(vec![service.clone()]), [service]);
    }
}
