//! A fleet and what is found in its objects, for tests.

use serde_json::Value;

use super::{ClusterSettings, FleetSettings};

pub(super) fn fleet() -> FleetSettings {
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
        network: None,
    }
}

pub(super) fn cluster() -> ClusterSettings {
    ClusterSettings {
        nodes: 3,
        controllers: 2,
        store: "etcds://etcd:2379".to_owned(),
        store_secret: None,
        authority: "fleet-ca".to_owned(),
        fingerprint: "c0ffee".to_owned(),
    }
}

pub(super) fn of_kind<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is_it = |one: &&Value| one["kind"] == kind && one["metadata"]["name"] == name;
    objects.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name}"))
}
