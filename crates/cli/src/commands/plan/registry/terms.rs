//! Changes that the files of `workers/` bring for existing workers.

use std::collections::BTreeMap;

use berth_registry::WorkerConfig;
use berth_spec::worker::{EvictionStrategy, WorkerTerms};
use berth_wire::api::{NodeView, TermsView};

use crate::terminal::size;

/// The changes in words, by worker; workers that nothing changes for are left out.
pub(super) fn changed(files: &[WorkerConfig], nodes: &[NodeView]) -> BTreeMap<String, Vec<String>> {
    let changes = nodes.iter().filter_map(|node| {
        let file = files.iter().find(|file| file.worker_id == node.metadata.name);
        let changes = match (&node.status.terms, file) {
            (None, None) => Vec::new(),
            (Some(_), None) => vec!["its file is gone: it will be as it says of itself".to_owned()],
            (None, Some(_)) => vec!["its file is new".to_owned()],
            (Some(now), Some(file)) => differences(node, now, &file.terms()),
        };
        (!changes.is_empty()).then(|| (node.metadata.name.clone(), changes))
    });
    changes.collect()
}

fn differences(node: &NodeView, now: &TermsView, then: &WorkerTerms) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |name: &str, before: String, after: String| {
        if before != after {
            found.push(format!("{name} {before} -> {after}"));
        }
    };
    let all = || "all".to_owned();
    let count = |count: Option<u32>| count.map_or_else(all, |count| count.to_string());
    let cores = |cores: Option<f32>| cores.map_or_else(all, |cores| cores.to_string());
    let strategy = match then.eviction.strategy {
        EvictionStrategy::Lru => "lru",
        EvictionStrategy::Priority => "priority",
    };
    differ("memory", now.memory.map_or_else(all, size), then.memory.map_or_else(all, |memory| size(memory.0)));
    differ("models", count(now.max_models), count(then.max_models));
    differ("cores", cores(now.cpus), cores(then.cpus));
    differ("GPUs", count(now.max_gpus), count(then.max_gpus));
    differ("model cards", now.schema_versions.join(", "), then.schema_versions.join(", "));
    differ("eviction", now.eviction_strategy.clone(), strategy.to_owned());
    differ("automatic eviction", now.evicts.to_string(), then.eviction.automatic.to_string());
    for (name, value) in &then.labels {
        let before = node.metadata.labels.get(name).map_or("none", String::as_str);
        differ(&format!("label {name}"), before.to_owned(), value.clone());
    }
    found
}

#[cfg(test)]
mod tests {
    use berth_registry::WorkerConfig;
    use berth_wire::api::{Metadata, NodeSpec, NodeStatus};
    use serde_json::json;

    use super::*;

    fn file(name: &str, memory: &str) -> WorkerConfig {
        let file = json!({
            "worker_id": name, "supported_schema_versions": ["3.1.0"],
            "capacity": {"max_models": 3, "max_memory": memory, "max_cpu": 2.0},
            "labels": {"pool": "production", "region": "eu-west-1"},
        });
        serde_json::from_value(file).expect("a worker's file")
    }

    fn node(name: &str, terms: Option<TermsView>) -> NodeView {
        let labels = [("pool", "staging"), ("region", "eu-west-1")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        NodeView {
            api_version: String::new(),
            kind: String::new(),
            metadata: Metadata { name: name.to_owned(), labels },
            spec: NodeSpec::default(),
            status: NodeStatus { terms, ..NodeStatus::default() },
        }
    }

    #[test]
    fn what_changes_for_workers_is_told() {
        let terms = TermsView {
            memory: Some(2 << 30),
            cpus: Some(2.0),
            max_models: Some(3),
            max_gpus: None,
            schema_versions: vec!["3.1.0".to_owned()],
            eviction_strategy: "lru".to_owned(),
            evicts: true,
        };
        let files = [file("worker-a", "1Gi"), file("worker-new", "1Gi"), file("worker-away", "1Gi")];
        let nodes = [
            node("worker-a", Some(terms.clone())),
            node("worker-new", None),
            node("worker-gone", Some(terms)),
            node("a-stranger", None),
        ];
        let found: Vec<String> =
            changed(&files, &nodes).iter().map(|(worker, words)| format!("{worker}: {}", words.join(", "))).collect();
        assert_eq!(
            found,
            [
                "worker-a: memory 2GiB -> 1GiB, label pool staging -> production",
                "worker-gone: its file is gone: it will be as it says of itself",
                "worker-new: its file is new",
            ]
        );
    }
}
