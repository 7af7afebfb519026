//! A fleet of several nodes: controllers, which have the CA's key and the store, and nodes, which run models and have neither.
//!
//! ```text
//! Secret with the CA ──▶ controllers ──▶ etcd
//!                          ▲  │  └──TokenReview, get pod──▶ API server
//!  token of the pod's      │  │
//!  service account, 10 min │  ▼ a certificate of 90 days, in the pod's memory; the next one at two thirds of it
//!                         nodes (worker, gateway)
//! ```
//! A node's name is that of its pod. Nodes find controllers by the Service NAME-controllers. Nothing that a node's pod mounts signs
//! certificates, reaches the store or reads the cluster's objects.

use berth_spec::Roles;
use serde_json::{Value, json};

use super::{
    FleetSettings, PORT, account, monitor,
    pod::{PodRole, Volume, pod, restricted},
    role, stateful_set,
};
use crate::pods::{AUDIENCE, JoiningPods, NODES};

/// The ports between nodes.
pub(super) const GOSSIP: u16 = 7946;
pub(super) const PEER: u16 = 7947;

/// The folder for the certificate; each pod's is below it.
const PKI: &str = "/var/run/berth/pki";

/// The folders where Secrets and the token of a pod are mounted.
const STORE: &str = "/var/run/secrets/berth/store";
const AUTHORITY: &str = "/var/run/secrets/berth/authority";
const TOKEN: &str = "/var/run/secrets/berth/join";

/// Days for which a controller's first certificate is valid, as those are that controllers give.
const CERTIFICATE_DAYS: u32 = 90;

/// Seconds for which a pod's token is valid, the least that Kubernetes allows: a pod needs it at its start alone.
const TOKEN_SECONDS: u32 = 600;

/// Size of a controller's volume: it has the audit log.
const CONTROLLER_STORAGE: &str = "1Gi";

/// The files of a CA, as `berth pki init` makes them.
const AUTHORITY_FILES: [&str; 3] = ["ca.pem", "ca.key", "gossip.key"];

/// Rights of files with keys: of the pod's group alone.
const SECRET: u32 = 0o440;

/// Roles of pods that run models.
const NODE: Roles = Roles { controller: false, worker: true, gateway: true };

/// Roles of pods that decide. The gateway answers probes and tells metrics; no Service leads clients there.
const CONTROLLER: Roles = Roles { controller: true, worker: false, gateway: true };

/// Choices for a fleet of several nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Nodes that run models, a pod each.
    pub nodes: u16,
    /// Controllers, a pod each; one of them leads.
    pub controllers: u16,
    /// The store of the cluster: `etcds://HOST:PORT,…`.
    pub store: String,
    /// A Secret with `ca.crt`, `tls.crt` and `tls.key` for the store.
    pub store_secret: Option<String>,
    /// The Secret with the files of `berth pki init`.
    pub authority: String,
    /// Fingerprint of the CA, by which nodes know the controllers.
    pub fingerprint: String,
}

impl ClusterSettings {
    /// All that a fleet of several nodes has beside the Service of inference and the rights of its source.
    pub(super) fn objects(&self, settings: &FleetSettings) -> Vec<Value> {
        let controllers = controllers(settings);
        let mut objects = vec![account(&nodes_metadata(settings))];
        objects.extend(rights(settings));
        objects.extend([service(settings, nodes_name(settings), &[]), disruption_budget(settings)]);
        // Metrics of the source are those of the controllers.
        let metrics = json!({ "name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP" });
        let more = if settings.service_monitor { vec![metrics] } else { Vec::new() };
        let name = controllers.name.clone();
        objects.extend([service(&controllers, name, &more), disruption_budget(&controllers)]);
        let deciding = stateful_set(&controllers, pod(settings, PodRole::Controller(self)));
        objects.push(several(deciding, self.controllers, &controllers.name));
        let running = stateful_set(settings, pod(settings, PodRole::Node(self)));
        objects.push(several(running, self.nodes, &nodes_name(settings)));
        if settings.service_monitor {
            objects.push(monitor(&controllers));
        }
        objects
    }

    pub(super) fn environment(&self, settings: &FleetSettings, role: PodRole<'_>) -> Vec<Value> {
        let of_pod =
            |name: &str, field: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": field } } });
        let FleetSettings { namespace, .. } = settings;
        let (deciding, running) = (controllers(settings).name, nodes_name(settings));
        let decides = matches!(role, PodRole::Controller(_));
        let roles = if decides { CONTROLLER } else { NODE };
        let fixed = [
            ("BERTH_ROLES", roles.to_string()),
            ("BERTH_PKI", format!("{PKI}/$(BERTH_NAME)")),
            ("BERTH_JOIN", format!("{deciding}.{namespace}.svc:{GOSSIP},{running}.{namespace}.svc:{GOSSIP}")),
            ("BERTH_GOSSIP", format!("0.0.0.0:{GOSSIP}")),
            ("BERTH_PEER", format!("0.0.0.0:{PEER}")),
        ];
        let own = if decides {
            let store = [("BERTH_STORE", self.store.clone()), ("BERTH_AUTHORITY", AUTHORITY.to_owned())];
            let pods = [("BERTH_JOIN_PODS", joining_pods(settings).to_string())];
            let file = |name: &str| format!("{STORE}/{name}");
            let secured = self.store_secret.iter().flat_map(|_| {
                [
                    ("BERTH_STORE_CA", file("ca.crt")),
                    ("BERTH_STORE_CERT", file("tls.crt")),
                    ("BERTH_STORE_KEY", file("tls.key")),
                ]
            });
            store.into_iter().chain(pods).chain(secured).collect::<Vec<_>>()
        } else {
            vec![
                ("BERTH_POD_TOKEN_FILE", format!("{TOKEN}/token")),
                ("BERTH_JOIN_CA", self.fingerprint.clone()),
                ("BERTH_JOIN_AT", format!("{deciding}.{namespace}.svc:{PEER}")),
            ]
        };
        // The name comes first: what refers to it must come after it.
        let mut all = vec![of_pod("BERTH_NAME", "metadata.name"), of_pod("BERTH_ADVERTISE", "status.podIP")];
        all.extend(fixed.into_iter().chain(own).map(|(name, value)| json!({ "name": name, "value": value })));
        all
    }

    /// The volumes of the container.
    pub(super) fn volumes(&self, role: PodRole<'_>) -> Vec<Volume> {
        let mounted = |name: &str, at: &str| json!({ "name": name, "mountPath": at, "readOnly": true });
        // Keys are written to no disk. The next certificate is written beside them.
        let pki = Volume {
            content: json!({ "name": "pki", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }),
            mount: json!({ "name": "pki", "mountPath": PKI }),
        };
        let own: Vec<Volume> = if matches!(role, PodRole::Controller(_)) {
            let authority =
                Volume { content: secret("authority", &self.authority), mount: mounted("authority", AUTHORITY) };
            let store = self.store_secret.iter();
            let store = store.map(|name| Volume { content: secret("store", name), mount: mounted("store", STORE) });
            [authority].into_iter().chain(store).collect()
        } else {
            let token = json!({ "audience": AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token" });
            let projected = json!({ "defaultMode": SECRET, "sources": [{ "serviceAccountToken": token }] });
            vec![Volume { content: json!({ "name": "join", "projected": projected }), mount: mounted("join", TOKEN) }]
        };
        [pki].into_iter().chain(own).collect()
    }

    pub(super) fn ports() -> [Value; 2] {
        [
            json!({ "name": "gossip", "containerPort": GOSSIP, "protocol": "UDP" }),
            json!({ "name": "peer", "containerPort": PEER, "protocol": "TCP" }),
        ]
    }
}

/// Puts into the pod of a cluster what the others have not: the way to a first certificate.
pub(super) fn complete(settings: &FleetSettings, role: PodRole<'_>, pod: &mut Value) {
    match role {
        PodRole::Alone => {}
        PodRole::Controller(_) => pod["initContainers"] = json!([init(settings)]),
        PodRole::Node(_) => {
            pod["serviceAccountName"] = json!(nodes_name(settings));
            // It asks the API server for nothing.
            pod["automountServiceAccountToken"] = json!(false);
        }
    }
}

/// Settings of the controllers' own objects, which have another name.
pub(super) fn controllers(settings: &FleetSettings) -> FleetSettings {
    FleetSettings {
        name: format!("{}-controllers", settings.name),
        storage: CONTROLLER_STORAGE.to_owned(),
        ..settings.clone()
    }
}

/// The pods that may join.
fn joining_pods(settings: &FleetSettings) -> JoiningPods {
    JoiningPods { namespace: settings.namespace.clone(), service_account: nodes_name(settings), roles: NODE }
}

/// Makes the first certificate of a controller. The program writes beside the CA, so its files are laid into the folder of the
/// certificate.
fn init(settings: &FleetSettings) -> Value {
    let file = |name: &&str| json!({ "name": "authority", "mountPath": format!("{PKI}/{name}"), "subPath": name, "readOnly": true });
    let mut mounts = vec![json!({ "name": "pki", "mountPath": PKI })];
    mounts.extend(AUTHORITY_FILES.iter().map(file));
    let (roles, days) = (CONTROLLER.to_string(), CERTIFICATE_DAYS.to_string());
    json!({
        "name": "certificate",
        "image": settings.image,
        "command": ["berth"],
        "args": ["pki", "issue", PKI, "$(BERTH_NAME)", "--roles", roles, "--days", days],
        "env": [{ "name": "BERTH_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
        "resources": { "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": "128Mi" } },
        "volumeMounts": mounts,
        "securityContext": restricted(),
    })
}

/// A volume of a Secret with keys.
fn secret(volume: &str, name: &str) -> Value {
    json!({ "name": volume, "secret": { "secretName": name, "defaultMode": SECRET } })
}

/// The name of the nodes' service account, and of the Service that has their addresses.
fn nodes_name(settings: &FleetSettings) -> String {
    format!("{}{NODES}", settings.name)
}

fn nodes_metadata(settings: &FleetSettings) -> Value {
    json!({ "name": nodes_name(settings), "namespace": settings.namespace, "labels": settings.labels() })
}

/// The rights by which controllers know pods that join.
fn rights(settings: &FleetSettings) -> Vec<Value> {
    let name = format!("{}-join", settings.name);
    let everywhere = json!({ "name": name, "labels": settings.labels() });
    let here = json!({ "name": name, "namespace": settings.namespace, "labels": settings.labels() });
    let review =
        json!([{ "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"] }]);
    let pods = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }]);
    let [reviewer, reviews] = role(settings, "ClusterRole", &everywhere, &review);
    let [reader, reads] = role(settings, "Role", &here, &pods);
    vec![reviewer, reviews, reader, reads]
}

/// Makes a StatefulSet one of several pods.
fn several(mut set: Value, pods: u16, service: &str) -> Value {
    let spec = &mut set["spec"];
    (spec["replicas"], spec["serviceName"]) = (json!(pods), json!(service));
    // After all have ended, none waits for another to be ready.
    spec["podManagementPolicy"] = json!("Parallel");
    set
}

/// Has the address of every pod, also of those that are not ready: they become ready with the help of the others.
fn service(settings: &FleetSettings, name: String, more: &[Value]) -> Value {
    let mut ports = vec![
        json!({ "name": "gossip", "port": GOSSIP, "targetPort": "gossip", "protocol": "UDP" }),
        json!({ "name": "peer", "port": PEER, "targetPort": "peer", "protocol": "TCP" }),
    ];
    ports.extend_from_slice(more);
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "namespace": settings.namespace, "labels": settings.labels() },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": settings.labels(),
            "ports": ports,
        },
    })
}

/// A drain of machines takes one pod at a time: the models of a node move first.
fn disruption_budget(settings: &FleetSettings) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": settings.metadata(),
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": settings.labels() } },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::install::{
        cluster_objects,
        fixture::{self, fleet, of_kind},
        fleet_objects,
    };

    fn cluster(store_secret: Option<&str>) -> ClusterSettings {
        ClusterSettings { store_secret: store_secret.map(str::to_owned), ..fixture::cluster() }
    }

    /// The values of a container's environment; of a field of the pod, its path.
    fn environment(container: &Value) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let all = container["env"].as_array().expect("variables").iter();
        let read = |one: &Value| {
            let value = text(&one["value"]).or_else(|| text(&one["valueFrom"]["fieldRef"]["fieldPath"]));
            Some((text(&one["name"])?, value?))
        };
        all.map(|one| read(one).expect("a variable")).collect()
    }

    fn pod_of<'a>(objects: &'a [Value], set: &str) -> &'a Value {
        &of_kind(objects, "StatefulSet", set)["spec"]["template"]["spec"]
    }

    fn volumes(pod: &Value) -> &[Value] {
        pod["volumes"].as_array().expect("volumes")
    }

    fn check(container: &Value, expected: &[(&str, &str)]) {
        let said = environment(container);
        for (name, value) in expected {
            assert_eq!(said.get(*name).map(String::as_str), Some(*value), "{name}");
        }
    }

    #[test]
    fn nodes_ask_the_controllers_for_their_certificates() {
        let objects = cluster_objects(&fleet(), &cluster(Some("etcd-client")));
        for (name, pods, service) in [("fleet", 3, "fleet-nodes"), ("fleet-controllers", 2, "fleet-controllers")] {
            let set = &of_kind(&objects, "StatefulSet", name)["spec"];
            assert_eq!(
                (&set["replicas"], &set["serviceName"], &set["podManagementPolicy"]),
                (&json!(pods), &json!(service), &json!("Parallel"))
            );
            let found = &of_kind(&objects, "Service", service)["spec"];
            assert_eq!((&found["clusterIP"], &found["publishNotReadyAddresses"]), (&json!("None"), &json!(true)));
            let (selector, labels) = (&set["selector"]["matchLabels"], &set["template"]["metadata"]["labels"]);
            assert_eq!((selector, labels), (&found["selector"], &found["selector"]));
            let budget = &of_kind(&objects, "PodDisruptionBudget", name)["spec"];
            assert_eq!((&budget["maxUnavailable"], &budget["selector"]["matchLabels"]), (&json!(1), labels));
            let container = &pod_of(&objects, name)["containers"][0];
            assert_eq!(container["args"], json!(["node"]));
            check(
                container,
                &[
                    ("BERTH_NAME", "metadata.name"),
                    ("BERTH_ADVERTISE", "status.podIP"),
                    ("BERTH_PKI", "/var/run/berth/pki/$(BERTH_NAME)"),
                    ("BERTH_JOIN", "fleet-controllers.serving.svc:7946,fleet-nodes.serving.svc:7946"),
                ],
            );
            let order: Vec<_> =
                container["env"].as_array().expect("variables").iter().map(|one| &one["name"]).collect();
            assert_eq!(order[0], "BERTH_NAME", "Kubernetes puts in only what came before");
        }
        // Clients come to nodes alone.
        let (inference, nodes) = (
            &of_kind(&objects, "Service", "fleet")["spec"]["selector"],
            &of_kind(&objects, "Service", "fleet-nodes")["spec"],
        );
        assert_eq!(inference, &nodes["selector"]);
        check(
            &pod_of(&objects, "fleet")["containers"][0],
            &[
                ("BERTH_ROLES", "worker,gateway"),
                ("BERTH_POD_TOKEN_FILE", "/var/run/secrets/berth/join/token"),
                ("BERTH_JOIN_CA", "c0ffee"),
                ("BERTH_JOIN_AT", "fleet-controllers.serving.svc:7947"),
            ],
        );
        check(
            &pod_of(&objects, "fleet-controllers")["containers"][0],
            &[
                ("BERTH_ROLES", "controller,gateway"),
                ("BERTH_AUTHORITY", "/var/run/secrets/berth/authority"),
                ("BERTH_JOIN_PODS", "serving/fleet-nodes=worker,gateway"),
                ("BERTH_STORE", "etcds://etcd:2379"),
                ("BERTH_STORE_CERT", "/var/run/secrets/berth/store/tls.crt"),
                ("BERTH_SOURCE", "kubernetes"),
            ],
        );
        let names: Vec<_> = objects.iter().map(|one| (one["kind"].clone(), one["metadata"]["name"].clone())).collect();
        let mut once: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), names.len(), "{names:?}");
    }

    #[test]
    fn what_runs_models_has_no_key_of_the_authority_and_no_way_to_the_store() {
        let objects = cluster_objects(&fleet(), &cluster(Some("etcd-client")));
        let pod = pod_of(&objects, "fleet");
        let text = pod.to_string();
        for word in ["fleet-ca", "etcd", "BERTH_STORE", "BERTH_AUTHORITY", "BERTH_CA_KEY", "BERTH_SOURCE", "secretName"]
        {
            assert!(!text.contains(word), "{word}");
        }
        assert_eq!((&pod["initContainers"], &pod["automountServiceAccountToken"]), (&Value::Null, &json!(false)));
        let token = volumes(pod).iter().find(|one| one["name"] == "join").expect("a token");
        let token = &token["projected"]["sources"][0]["serviceAccountToken"];
        assert_eq!((&token["audience"], &token["expirationSeconds"]), (&json!("berth-join"), &json!(600)));
        // Nobody gives rights to its service account, and the pods that may join are those that have it.
        assert_eq!(pod["serviceAccountName"], "fleet-nodes");
        assert_eq!(joining_pods(&fleet()).stateful_set(), fleet().name);
        let mut subjects = objects.iter().filter_map(|one| one["subjects"].as_array()).flatten();
        assert!(subjects.all(|subject| subject["name"] == "fleet"));
        assert_eq!(pod_of(&objects, "fleet-controllers")["serviceAccountName"], "fleet");
    }

    #[test]
    fn controllers_have_the_key_and_run_no_models() {
        let settings = FleetSettings {
            credentials: Some("buckets".to_owned()),
            storage_config: Some("storages".to_owned()),
            volumes: vec!["models".to_owned()],
            ..fleet()
        };
        let objects = cluster_objects(&settings, &cluster(Some("etcd-client")));
        let pod = pod_of(&objects, "fleet-controllers");
        let (init, container) = (&pod["initContainers"][0], &pod["containers"][0]);
        let issue = ["pki", "issue", PKI, "$(BERTH_NAME)", "--roles", "controller,gateway", "--days", "90"];
        assert_eq!(init["args"], json!(issue));
        let mounts = |container: &Value| container["volumeMounts"].as_array().expect("mounts").clone();
        for mount in mounts(init).iter().chain(&mounts(container)) {
            let is_it = |volume: &Value| volume["name"] == mount["name"];
            assert!(mount["name"] == "data" || volumes(pod).iter().any(is_it), "{mount}");
        }
        // The next certificate is written there; the CA's files are only read.
        let writable: Vec<_> = mounts(container).into_iter().filter(|mount| mount["readOnly"] != true).collect();
        let writable: Vec<_> = writable.iter().filter_map(|mount| mount["name"].as_str()).collect();
        assert_eq!(writable, ["data", "tmp", "pki"]);
        let text = pod.to_string();
        for word in ["buckets", "storages", "claim-0", "4Gi"] {
            assert!(!text.contains(word), "{word}");
        }
        let running = pod_of(&objects, "fleet").to_string();
        for word in ["buckets", "storages", "claim-0", "4Gi"] {
            assert!(running.contains(word), "{word}");
        }
    }

    #[test]
    fn controllers_may_ask_about_pods_and_no_more() {
        let objects = cluster_objects(&fleet(), &cluster(None));
        let everywhere = &of_kind(&objects, "ClusterRole", "fleet-join")["rules"];
        let here = of_kind(&objects, "Role", "fleet-join");
        let rule = |group: &str, resource: &str, verb: &str| json!([{ "apiGroups": [group], "resources": [resource], "verbs": [verb] }]);
        assert_eq!(everywhere, &rule("authentication.k8s.io", "tokenreviews", "create"));
        assert_eq!((&here["rules"], &here["metadata"]["namespace"]), (&rule("", "pods", "get"), &json!("serving")));
    }

    #[test]
    fn metrics_of_controllers_are_scraped_too() {
        let settings = FleetSettings { service_monitor: true, ..fleet() };
        let objects = cluster_objects(&settings, &cluster(None));
        for (monitor, service) in [("fleet", "fleet"), ("fleet-controllers", "fleet-controllers")] {
            let selected = &of_kind(&objects, "ServiceMonitor", monitor)["spec"]["selector"]["matchLabels"];
            let service = of_kind(&objects, "Service", service);
            assert_eq!(selected, &service["metadata"]["labels"]);
            let ports = service["spec"]["ports"].as_array().expect("ports");
            assert!(ports.iter().any(|port| port["name"] == "http"), "{ports:?}");
        }
    }

    #[test]
    fn a_store_without_a_secret_is_asked_without_certificates() {
        let text = json!(cluster_objects(&fleet(), &cluster(None))).to_string();
        assert!(!text.contains("BERTH_STORE_C") && !text.contains("berth/store"), "{text}");
    }

    #[test]
    fn a_node_alone_has_none_of_it() {
        let objects = fleet_objects(&fleet());
        let pod = pod_of(&objects, "fleet");
        assert_eq!((&pod["containers"][0]["args"], &pod["initContainers"]), (&json!(["up"]), &Value::Null));
        let text = json!(objects).to_string();
        for word in [
            "BERTH_STORE",
            "BERTH_PKI",
            "BERTH_JOIN",
            "BERTH_ROLES",
            "fleet-nodes",
            "fleet-controllers",
            "PodDisruptionBudget",
            "podManagementPolicy",
            "gossip",
            "tokenreviews",
            "automountServiceAccountToken",
        ] {
            assert!(!text.contains(word), "{word}");
        }
    }
}
