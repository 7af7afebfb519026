//! Rules who may connect to the pods of a fleet: clients to inference, the fleet's own pods to each other, Prometheus to metrics. The control API is
//! in none of them: it listens on loopback.

use berth_operator::{
    install::{Callers, policy},
    render::{PICKER_METRICS_PORT, PICKER_OF, PICKER_PORT},
};
use serde_json::{Value, json};

use super::{
    FleetSettings, PORT,
    cluster::{GOSSIP, PEER, controllers},
};

/// The policies of a fleet; `is_cluster`: it has several nodes.
pub(super) fn of_fleet(settings: &FleetSettings, callers: &Callers, is_cluster: bool) -> Vec<Value> {
    let metrics = || callers.scraped(PORT);
    let mut running = vec![callers.served([PORT])];
    // Metrics are at the port of inference. Where everybody may come, these may.
    if settings.service_monitor && callers.clients.is_some() {
        running.push(metrics());
    }
    if !is_cluster {
        return vec![of(settings, &running)];
    }
    let controllers = controllers(settings);
    let between = between(settings, &controllers);
    running.push(between.clone());
    let mut deciding = vec![between];
    if settings.service_monitor {
        deciding.push(metrics());
    }
    vec![of(settings, &running), of(&controllers, &deciding)]
}

fn of(settings: &FleetSettings, rules: &[Value]) -> Value {
    policy(&settings.metadata(), &json!({ "matchLabels": settings.labels() }), rules)
}

/// Lets pods of the fleet reach each other.
fn between(nodes: &FleetSettings, controllers: &FleetSettings) -> Value {
    let both: Vec<Value> = [nodes, controllers]
        .into_iter()
        .map(|pods| json!({ "podSelector": { "matchLabels": pods.labels() } }))
        .collect();
    let ports = json!([{ "port": GOSSIP, "protocol": "UDP" }, { "port": PEER, "protocol": "TCP" }]);
    json!({ "from": both, "ports": ports })
}

/// The policy of a fleet's endpoint picker, of this name: Gateways are clients.
pub(super) fn of_picker(settings: &FleetSettings, name: &str, callers: &Callers) -> Value {
    let mut metadata = settings.metadata();
    metadata["name"] = json!(name);
    let pods = json!({ "matchLabels": { PICKER_OF: settings.name } });
    policy(&metadata, &pods, &[callers.served([PICKER_PORT]), callers.scraped(PICKER_METRICS_PORT)])
}

#[cfg(test)]
mod tests {
    use berth_operator::install::namespace_labels;

    use super::*;
    use crate::install::{
        cluster_objects,
        fixture::{cluster, fleet},
        fleet_objects, with_pool,
    };

    fn settings(clients: Option<&str>, service_monitor: bool) -> FleetSettings {
        let clients = clients.map(|text| namespace_labels(text).expect("labels"));
        let network = Some(Callers { clients, ..Callers::default() });
        FleetSettings { service_monitor, network, ..fleet() }
    }

    /// The rules of a policy: ports, and who may come to them.
    fn rules(objects: &[Value], name: &str) -> Vec<(Vec<u64>, Value)> {
        let is_it = |one: &&Value| one["kind"] == "NetworkPolicy" && one["metadata"]["name"] == name;
        let policy = objects.iter().find(is_it).unwrap_or_else(|| panic!("no policy {name}"));
        let ports = |rule: &Value| {
            rule["ports"].as_array().into_iter().flatten().filter_map(|one| one["port"].as_u64()).collect()
        };
        let all = policy["spec"]["ingress"].as_array().expect("rules").iter();
        all.map(|rule| (ports(rule), rule["from"].clone())).collect()
    }

    fn namespaces(label: &str, value: &str) -> Value {
        json!([{ "namespaceSelector": { "matchLabels": { label: value } } }])
    }

    #[test]
    fn everybody_may_send_requests_unless_clients_are_named() {
        let (port, metrics) = (u64::from(PORT), namespaces("berth.dev/metrics", "true"));
        assert_eq!(rules(&fleet_objects(&settings(None, true)), "fleet"), [(vec![port], Value::Null)]);
        let web = (vec![port], namespaces("team", "web"));
        let named = Some("team=web");
        assert_eq!(rules(&fleet_objects(&settings(named, false)), "fleet"), std::slice::from_ref(&web));
        assert_eq!(rules(&fleet_objects(&settings(named, true)), "fleet"), [web, (vec![port], metrics)]);
        let none = FleetSettings { network: None, ..settings(None, true) };
        assert!(fleet_objects(&none).iter().all(|one| one["kind"] != "NetworkPolicy"));
    }

    #[test]
    fn pods_of_a_cluster_reach_each_other_and_no_client_a_controller() {
        let objects = cluster_objects(&settings(None, true), &cluster());
        let (nodes, deciding) = (rules(&objects, "fleet"), rules(&objects, "fleet-controllers"));
        assert_eq!((nodes.len(), &nodes[0]), (2, &(vec![u64::from(PORT)], Value::Null)));
        assert_eq!(nodes[1], deciding[0]);
        assert_eq!(nodes[1].0, [7_946, 7_947]);
        assert_eq!(deciding[1..], [(vec![u64::from(PORT)], namespaces("berth.dev/metrics", "true"))]);
        // Those who may come are the pods of both StatefulSets.
        let labels: Vec<&Value> = objects
            .iter()
            .filter(|one| one["kind"] == "StatefulSet")
            .map(|set| &set["spec"]["template"]["metadata"]["labels"])
            .collect();
        let from: Vec<&Value> =
            nodes[1].1.as_array().expect("pods").iter().map(|one| &one["podSelector"]["matchLabels"]).collect();
        assert!(from.len() == 2 && from.iter().all(|pods| labels.contains(pods)), "{from:?} of {labels:?}");
        assert_eq!(rules(&cluster_objects(&settings(None, false), &cluster()), "fleet-controllers").len(), 1);
    }

    #[test]
    fn a_picker_is_asked_by_clients() {
        let settings = settings(Some("team=web"), false);
        let objects = with_pool(fleet_objects(&settings), &settings);
        let expected =
            [(vec![9_002], namespaces("team", "web")), (vec![9_090], namespaces("berth.dev/metrics", "true"))];
        assert_eq!(rules(&objects, "fleet-picker"), expected);
    }
}
