//! The stored form of what the registry says of workers. The only writer is the Git source.

use std::{collections::BTreeMap, sync::Arc};

use berth_spec::{
    ByteSize, UnknownWorkers, WorkerId, WorkerTerms,
    worker::{Eviction, EvictionStrategy},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Entry, StoreError,
    layout::{self, FORM},
};

/// Stored form of the registry's terms for a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredTerms {
    v: u32,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    /// Memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpus: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_models: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_gpus: Option<u32>,
    schema_versions: Vec<String>,
    eviction: StoredEviction,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredEviction {
    strategy: StoredStrategy,
    automatic: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredStrategy {
    Lru,
    Priority,
}

/// Stored form of the treatment of unlisted workers.
#[derive(Debug, Serialize, Deserialize)]
struct StoredUnknown {
    v: u32,
    unknown: UnknownWorkers,
}

/// The key of a worker's terms.
#[must_use]
pub fn terms_key(worker: &WorkerId) -> String {
    format!("{}{worker}", layout::TERMS)
}

/// The worker at the end of a key of terms.
pub fn named_in(key: &str) -> Option<WorkerId> {
    WorkerId::new(key.strip_prefix(layout::TERMS)?).ok()
}

/// The value of a worker's terms.
#[must_use]
pub fn terms_bytes(terms: &WorkerTerms) -> Bytes {
    let WorkerTerms { labels, memory, cpus, max_models, max_gpus, schema_versions, eviction } = terms;
    layout::bytes(&StoredTerms {
        v: FORM,
        labels: labels.clone(),
        memory: memory.map(|memory| memory.0),
        cpus: *cpus,
        max_models: *max_models,
        max_gpus: *max_gpus,
        schema_versions: schema_versions.clone(),
        eviction: StoredEviction {
            strategy: match eviction.strategy {
                EvictionStrategy::Lru => StoredStrategy::Lru,
                EvictionStrategy::Priority => StoredStrategy::Priority,
            },
            automatic: eviction.automatic,
        },
    })
}

/// Reads a worker's terms.
pub fn read_terms(entry: &Entry) -> Result<Arc<WorkerTerms>, StoreError> {
    let stored: StoredTerms = layout::read(entry)?;
    let StoredEviction { strategy, automatic } = stored.eviction;
    let strategy = match strategy {
        StoredStrategy::Lru => EvictionStrategy::Lru,
        StoredStrategy::Priority => EvictionStrategy::Priority,
    };
    Ok(Arc::new(WorkerTerms {
        labels: stored.labels,
        memory: stored.memory.map(ByteSize),
        cpus: stored.cpus,
        max_models: stored.max_models,
        max_gpus: stored.max_gpus,
        schema_versions: stored.schema_versions,
        eviction: Eviction { strategy, automatic },
    }))
}

/// The value of what becomes of workers that the registry does not name.
#[must_use]
pub fn unknown_bytes(unknown: UnknownWorkers) -> Bytes {
    layout::bytes(&StoredUnknown { v: FORM, unknown })
}

/// Reads what becomes of workers that the registry does not name.
pub fn read_unknown(entry: &Entry) -> Result<UnknownWorkers, StoreError> {
    layout::read::<StoredUnknown>(entry).map(|stored| stored.unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Rev;

    #[test]
    fn terms_come_back_as_they_were() {
        let worker = WorkerId::new("worker-us-east-1a").expect("a name");
        let whole = WorkerTerms {
            labels: [("pool".to_owned(), "production".to_owned())].into(),
            memory: Some(ByteSize::gib(16)),
            cpus: Some(8.0),
            max_models: Some(5),
            max_gpus: Some(0),
            schema_versions: vec!["3.0.0".to_owned(), "3.1.0".to_owned()],
            eviction: Eviction { strategy: EvictionStrategy::Priority, automatic: false },
        };
        let bare = WorkerTerms {
            labels: BTreeMap::new(),
            memory: None,
            cpus: None,
            max_models: None,
            max_gpus: None,
            schema_versions: Vec::new(),
            eviction: Eviction::default(),
        };
        let entry = |value| Entry { key: terms_key(&worker), value, created: Rev(1), modified: Rev(1), version: 1 };
        for terms in [whole, bare] {
            let entry = entry(terms_bytes(&terms));
            assert_eq!(*read_terms(&entry).expect("it reads"), terms);
            assert_eq!(named_in(&entry.key), Some(worker.clone()));
        }
        for unknown in [UnknownWorkers::Allow, UnknownWorkers::Ignore, UnknownWorkers::Refuse] {
            assert_eq!(read_unknown(&entry(unknown_bytes(unknown))).expect("it reads"), unknown);
        }
    }
}
