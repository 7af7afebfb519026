//! A pool of a fleet's pods, for Gateways that ask an endpoint picker (Gateway API Inference Extension), and that picker. Any node of a fleet sends a
//! request to a replica itself, so that the picker spreads requests, and nothing more.

use berth_operator::{
    install::picker_rules,
    render::{PICKER, PICKER_PORT, PickerWorkload},
};
use serde_json::{Value, json};

use super::{FleetSettings, PORT, network};

/// The group of pools.
pub(crate) const GROUP: &str = "inference.networking.k8s.io";

/// The same objects, with a pool of the pods that the fleet's Service leads to, and its picker. Routes of the fleet lead to the pool.
#[must_use]
pub fn with_pool(mut objects: Vec<Value>, settings: &FleetSettings) -> Vec<Value> {
    for object in &mut objects {
        match object["kind"].as_str() {
            Some("StatefulSet") => route_to_pool(object, settings),
            Some("ReferenceGrant") => {
                let to = json!({ "group": GROUP, "kind": "InferencePool", "name": settings.name });
                if let Some(places) = object["spec"]["to"].as_array_mut() {
                    places.push(to);
                }
            }
            _ => {}
        }
    }
    let is_service = |one: &&Value| one["kind"] == "Service" && one["metadata"]["name"] == settings.name.as_str();
    let pods = objects.iter().find(is_service).map(|service| service["spec"]["selector"].clone()).unwrap_or_default();
    objects.push(pool(settings, &pods));
    objects.extend(settings.network.iter().map(|callers| network::of_picker(settings, &name(settings), callers)));
    objects.extend(picker(settings, &pods));
    objects
}

/// Tells the nodes that write routes of the pool.
fn route_to_pool(set: &mut Value, settings: &FleetSettings) {
    let pool = format!("{}/{}", settings.namespace, settings.name);
    let containers = set["spec"]["template"]["spec"]["containers"].as_array_mut().into_iter().flatten();
    for variables in containers.filter_map(|container| container.get_mut("env")?.as_array_mut()) {
        if variables.iter().any(|variable| variable["name"] == "BERTH_KUBERNETES_GATEWAY") {
            variables.push(json!({ "name": "BERTH_KUBERNETES_POOL", "value": pool }));
        }
    }
}

fn pool(settings: &FleetSettings, pods: &Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "InferencePool",
        "metadata": settings.metadata(),
        "spec": {
            "selector": { "matchLabels": pods },
            "targetPorts": [{ "number": PORT }],
            "endpointPickerRef": {
                "kind": "Service",
                "name": name(settings),
                "port": { "number": PICKER_PORT },
                // Without a picker, any node will do.
                "failureMode": "FailOpen",
            },
        },
    })
}

fn name(settings: &FleetSettings) -> String {
    format!("{}{PICKER}", settings.name)
}

fn picker(settings: &FleetSettings, pods: &Value) -> Vec<Value> {
    const API: &str = "rbac.authorization.k8s.io";
    let (name, mut metadata) = (name(settings), settings.metadata());
    metadata["name"] = json!(name);
    let version = format!("{API}/v1");
    let labels = pods.as_object().into_iter().flatten();
    let labels: Vec<String> =
        labels.map(|(label, value)| format!("{label}={}", value.as_str().unwrap_or_default())).collect();
    let mut objects = vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": false }),
        json!({ "apiVersion": version, "kind": "Role", "metadata": metadata, "rules": picker_rules() }),
        json!({
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": { "apiGroup": API, "kind": "Role", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": settings.namespace }],
        }),
    ];
    let workload = PickerWorkload {
        metadata,
        pool: settings.name.clone(),
        namespace: settings.namespace.clone(),
        image: settings.image.clone(),
        selector: labels.join(","),
        port: PORT,
        most: None,
    };
    objects.extend(workload.objects());
    objects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::{
        fixture::{fleet, of_kind},
        fleet_objects,
    };

    fn settings() -> FleetSettings {
        FleetSettings {
            follow: Some("team".to_owned()),
            url: Some("http://{name}.example.com".to_owned()),
            gateway: Some("infra/public".to_owned()),
            ..fleet()
        }
    }

    #[test]
    fn the_pool_has_the_pods_of_the_service_and_routes_lead_to_it() {
        let plain = fleet_objects(&settings());
        let objects = with_pool(plain.clone(), &settings());
        let service = of_kind(&objects, "Service", "fleet");
        let pool = &of_kind(&objects, "InferencePool", "fleet")["spec"];
        assert_eq!(pool["selector"]["matchLabels"], service["spec"]["selector"]);
        let asked = of_kind(&objects, "Service", pool["endpointPickerRef"]["name"].as_str().expect("a name"));
        assert_eq!(asked["spec"]["ports"][0]["port"], pool["endpointPickerRef"]["port"]["number"]);
        let picker = &of_kind(&objects, "Deployment", "fleet-picker")["spec"]["template"];
        assert_eq!(picker["metadata"]["labels"], asked["spec"]["selector"]);
        let args = picker["spec"]["containers"][0]["args"].to_string();
        for expected in
            ["\"serving\"", "app.kubernetes.io/instance=fleet", "app.kubernetes.io/name=berth-fleet", "\"8080\""]
        {
            assert!(args.contains(expected), "{args}");
        }
        for label in service["spec"]["selector"].as_object().expect("labels").keys() {
            assert!(picker["metadata"]["labels"][label].is_null(), "the pool selects no picker");
        }
        let grant = of_kind(&objects, "ReferenceGrant", "fleet")["spec"]["to"].as_array().expect("places");
        assert!(grant.iter().any(|to| to["kind"] == "InferencePool") && grant.iter().any(|to| to["kind"] == "Service"));
        let told = |objects: &[Value]| json!(objects).to_string().contains("\"BERTH_KUBERNETES_POOL\"");
        assert_eq!((told(&plain), told(&objects)), (false, true));
    }

    #[test]
    fn without_a_gateway_there_are_no_routes_that_could_lead_there() {
        let settings = FleetSettings { gateway: None, ..settings() };
        let objects = with_pool(fleet_objects(&settings), &settings);
        assert!(!json!(objects).to_string().contains("BERTH_KUBERNETES_POOL"));
        of_kind(&objects, "InferencePool", "fleet");
    }
}
