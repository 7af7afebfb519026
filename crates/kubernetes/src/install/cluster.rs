//! A fleet of several nodes: what these have beside what a node alone has.
//!
//! ```text
//! Secret with the CA ──▶ init container: berth pki issue ──▶ certificate of this pod, in its memory
//!                                                                   │ read-only
//! etcd ◀── store ── node (all roles) ◀── gossip, peer port ──▶ the other pods, found by the Service NAME-nodes
//! ```
//! A node's name is that of its pod. Models run where the node does, so the CA's key is in the init container alone: a running node
//! cannot be given another certificate, and the one that it has is good for [`CERTIFICATE_DAYS`]. A new pod has a new one.

use serde_json::{Value, json};

use super::{
    FleetSettings,
    pod::{Volume, restricted},
};

/// The ports between nodes.
const GOSSIP: u16 = 7946;
const PEER: u16 = 7947;

/// The folder for the certificate; each pod's is below it.
const PKI: &str = "/var/run/berth/pki";

/// The folder where the Secret of the store is mounted.
const STORE: &str = "/var/run/secrets/berth/store";

/// Days for which a pod's certificate is valid: nobody renews it while the pod runs, and pods seldom get as old.
const CERTIFICATE_DAYS: u32 = 3 * 365;

/// The files of a CA, as `berth pki init` makes them.
const AUTHORITY_FILES: [&str; 3] = ["ca.pem", "ca.key", "gossip.key"];

/// Rights of files with keys: of the pod's group alone.
const SECRET: u32 = 0o440;

/// Choices for a fleet of several nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Nodes, a pod each.
    pub nodes: u16,
    /// The store of the cluster: `etcds://HOST:PORT,…`.
    pub store: String,
    /// A Secret with `ca.crt`, `tls.crt` and `tls.key` for the store.
    pub store_secret: Option<String>,
    /// The Secret with the files of `berth pki init`.
    pub authority: String,
}

impl ClusterSettings {
    pub(super) fn environment(&self, settings: &FleetSettings) -> Vec<Value> {
        let FleetSettings { namespace, .. } = settings;
        let of_pod =
            |name: &str, field: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": field } } });
        let fixed = [
            ("BERTH_PKI", format!("{PKI}/$(BERTH_NAME)")),
            ("BERTH_STORE", self.store.clone()),
            ("BERTH_JOIN", format!("{}.{namespace}.svc:{GOSSIP}", service_name(settings))),
            ("BERTH_GOSSIP", format!("0.0.0.0:{GOSSIP}")),
            ("BERTH_PEER", format!("0.0.0.0:{PEER}")),
        ];
        let of_store = self.store_secret.iter().flat_map(|_| {
            let file = |name: &str| format!("{STORE}/{name}");
            [
                ("BERTH_STORE_CA", file("ca.crt")),
                ("BERTH_STORE_CERT", file("tls.crt")),
                ("BERTH_STORE_KEY", file("tls.key")),
            ]
        });
        // The name comes first: what refers to it must come after it.
        let mut all = vec![of_pod("BERTH_NAME", "metadata.name"), of_pod("BERTH_ADVERTISE", "status.podIP")];
        all.extend(fixed.into_iter().chain(of_store).map(|(name, value)| json!({ "name": name, "value": value })));
        all
    }

    /// The volumes of the node's container.
    pub(super) fn volumes(&self) -> Vec<Volume> {
        let pki = Volume {
            // Its key is written to no disk.
            content: json!({ "name": "pki", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }),
            mount: json!({ "name": "pki", "mountPath": PKI, "readOnly": true }),
        };
        let store = self.store_secret.iter().map(|name| Volume {
            content: secret("store", name),
            mount: json!({ "name": "store", "mountPath": STORE, "readOnly": true }),
        });
        [pki].into_iter().chain(store).collect()
    }

    /// The volume with the CA's key, which the init container alone mounts.
    pub(super) fn authority(&self) -> Value {
        secret("authority", &self.authority)
    }

    pub(super) fn ports() -> [Value; 2] {
        [
            json!({ "name": "gossip", "containerPort": GOSSIP, "protocol": "UDP" }),
            json!({ "name": "peer", "containerPort": PEER, "protocol": "TCP" }),
        ]
    }

    /// Makes the certificate of the pod. The program writes beside the CA, so its files are laid into the folder of the certificate.
    pub(super) fn init(settings: &FleetSettings) -> Value {
        let file = |name: &&str| json!({ "name": "authority", "mountPath": format!("{PKI}/{name}"), "subPath": name, "readOnly": true });
        let mut mounts = vec![json!({ "name": "pki", "mountPath": PKI })];
        mounts.extend(AUTHORITY_FILES.iter().map(file));
        json!({
            "name": "certificate",
            "image": settings.image,
            "command": ["berth"],
            "args": ["pki", "issue", PKI, "$(BERTH_NAME)", "--days", CERTIFICATE_DAYS.to_string()],
            "env": [{ "name": "BERTH_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
            "resources": { "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": "128Mi" } },
            "volumeMounts": mounts,
            "securityContext": restricted(),
        })
    }
}

/// A volume of a Secret with keys.
fn secret(volume: &str, name: &str) -> Value {
    json!({ "name": volume, "secret": { "secretName": name, "defaultMode": SECRET } })
}

/// The name of the Service by which nodes find each other.
pub(super) fn service_name(settings: &FleetSettings) -> String {
    format!("{}-nodes", settings.name)
}

/// Has the address of every pod, also of those that are not ready: they become ready with the help of the others.
pub(super) fn service(settings: &FleetSettings) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": service_name(settings), "namespace": settings.namespace, "labels": settings.labels() },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": settings.labels(),
            "ports": [
                { "name": "gossip", "port": GOSSIP, "targetPort": "gossip", "protocol": "UDP" },
                { "name": "peer", "port": PEER, "targetPort": "peer", "protocol": "TCP" },
            ],
        },
    })
}

/// A drain of machines takes one node at a time: its models move first.
pub(super) fn disruption_budget(settings: &FleetSettings) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": settings.metadata(),
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": settings.labels() } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::{cluster_objects, fleet_objects};

    fn settings() -> FleetSettings {
        FleetSettings {
            name: "fleet".to_owned(),
            namespace: "serving".to_owned(),
            image: "berth:1".to_owned(),
            follow: None,
            selector: None,
            memory: "4Gi".to_owned(),
            storage: "20Gi".to_owned(),
            credentials: None,
            storage_config: None,
            volumes: Vec::new(),
            service_monitor: false,
            url: None,
            gateway: None,
        }
    }

    fn cluster(store_secret: Option<&str>) -> ClusterSettings {
        ClusterSettings {
            nodes: 3,
            store: "etcds://etcd:2379".to_owned(),
            store_secret: store_secret.map(str::to_owned),
            authority: "fleet-ca".to_owned(),
        }
    }

    fn of_kind<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
        let is_it = |one: &&Value| one["kind"] == kind && one["metadata"]["name"] == name;
        objects.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name}"))
    }

    /// The values of a container's environment; of a field of the pod, its path.
    fn environment(container: &Value) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let all = container["env"].as_array().expect("variables").iter();
        let read = |one: &Value| {
            let value = text(&one["value"]).or_else(|| text(&one["valueFrom"]["fieldRef"]["fieldPath"]));
            Some((text(&one["name"])?, value?))
        };
        all.map(|one| read(one).expect("a variable")).collect()
    }

    #[test]
    fn nodes_find_each_other_and_have_certificates_of_one_authority() {
        let objects = cluster_objects(&settings(), &cluster(Some("etcd-client")));
        let nodes = of_kind(&objects, "Service", "fleet-nodes");
        assert_eq!(
            (&nodes["spec"]["clusterIP"], &nodes["spec"]["publishNotReadyAddresses"]),
            (&json!("None"), &json!(true))
        );
        let set = &of_kind(&objects, "StatefulSet", "fleet")["spec"];
        assert_eq!(
            (&set["replicas"], &set["serviceName"], &set["podManagementPolicy"]),
            (&json!(3), &json!("fleet-nodes"), &json!("Parallel"))
        );
        let pod = &set["template"]["spec"];
        let container = &pod["containers"][0];
        assert_eq!(container["args"], json!(["node"]));
        let told = environment(container);
        let of = |name: &str| told.iter().find(|(one, _)| one == name).map(|(_, value)| value.as_str());
        for (name, value) in [
            ("BERTH_NAME", "metadata.name"),
            ("BERTH_ADVERTISE", "status.podIP"),
            ("BERTH_PKI", "/var/run/berth/pki/$(BERTH_NAME)"),
            ("BERTH_STORE", "etcds://etcd:2379"),
            ("BERTH_STORE_CERT", "/var/run/secrets/berth/store/tls.crt"),
            ("BERTH_JOIN", "fleet-nodes.serving.svc:7946"),
            ("BERTH_SOURCE", "kubernetes"),
        ] {
            assert_eq!(of(name), Some(value), "{name}");
        }
        let place = |name: &str| told.iter().position(|(one, _)| one == name);
        assert!(place("BERTH_NAME") < place("BERTH_PKI"), "Kubernetes puts in only what came before");

        // What the init container writes is where the node looks, and the key of the CA is in no image and on no disk.
        let init = &pod["initContainers"][0];
        assert_eq!(init["args"], json!(["pki", "issue", "/var/run/berth/pki", "$(BERTH_NAME)", "--days", "1095"]));
        for mounted in init["volumeMounts"]
            .as_array()
            .expect("mounts")
            .iter()
            .chain(container["volumeMounts"].as_array().expect("mounts"))
        {
            let claimed = mounted["name"] == "data";
            let is_it = |volume: &Value| volume["name"] == mounted["name"];
            assert!(claimed || pod["volumes"].as_array().expect("volumes").iter().any(is_it), "{mounted}");
        }
        let pki = pod["volumes"].as_array().expect("volumes").iter().find(|one| one["name"] == "pki").expect("it");
        assert_eq!(pki["emptyDir"]["medium"], "Memory");
        assert_eq!(of_kind(&objects, "PodDisruptionBudget", "fleet")["spec"]["maxUnavailable"], 1);
        let names: Vec<_> = objects.iter().map(|one| (one["kind"].clone(), one["metadata"]["name"].clone())).collect();
        let mut once = names.clone();
        once.dedup();
        assert_eq!(once, names);
    }

    #[test]
    fn what_runs_models_has_no_key_of_the_authority() {
        let objects = cluster_objects(&settings(), &cluster(Some("etcd-client")));
        let pod = &of_kind(&objects, "StatefulSet", "fleet")["spec"]["template"]["spec"];
        let volumes = pod["volumes"].as_array().expect("volumes");
        let holding: Vec<&str> = volumes
            .iter()
            .filter(|volume| volume["secret"]["secretName"] == "fleet-ca")
            .filter_map(|volume| volume["name"].as_str())
            .collect();
        assert_eq!(holding, ["authority"]);
        let mounts = |container: &Value, name: &str| {
            let all = container["volumeMounts"].as_array().expect("mounts");
            all.iter().filter(|mount| mount["name"] == name).cloned().collect::<Vec<_>>()
        };
        assert_eq!(pod["containers"].as_array().map(Vec::len), Some(1));
        let container = &pod["containers"][0];
        assert_eq!(mounts(container, "authority"), Vec::<Value>::new());
        assert!(environment(container).iter().all(|(name, _)| name != "BERTH_AUTHORITY" && name != "BERTH_CA_KEY"));
        assert_eq!(mounts(container, "pki")[0]["readOnly"], true);
        // And what has it talks to no store.
        let init = &pod["initContainers"][0];
        assert_eq!((mounts(init, "authority").len(), mounts(init, "store").len()), (AUTHORITY_FILES.len(), 0));
    }

    #[test]
    fn a_store_without_a_secret_is_asked_without_certificates() {
        let text = json!(cluster_objects(&settings(), &cluster(None))).to_string();
        assert!(!text.contains("BERTH_STORE_C") && !text.contains("berth/store"), "{text}");
    }

    #[test]
    fn a_node_alone_has_none_of_it() {
        let objects = fleet_objects(&settings());
        let pod = &of_kind(&objects, "StatefulSet", "fleet")["spec"]["template"]["spec"];
        assert_eq!((&pod["containers"][0]["args"], &pod["initContainers"]), (&json!(["up"]), &Value::Null));
        let text = json!(objects).to_string();
        for word in ["BERTH_STORE", "BERTH_PKI", "fleet-nodes", "PodDisruptionBudget", "podManagementPolicy", "gossip"]
        {
            assert!(!text.contains(word), "{word}");
        }
    }
}
