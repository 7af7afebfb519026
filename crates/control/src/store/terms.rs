//! The stored form of the settings that sources give workers.

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
use crate::source::SourceName;

/// The settings that a source gives a worker, as they are stored.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredTerms {
    v: u32,
    /// The source that gives them; absent: written by an earlier version, which had one source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
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

/// The treatment of workers that no source names, as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct StoredUnknown {
    v: u32,
    /// The strictest of all sources.
    unknown: UnknownWorkers,
    /// By source; empty: written by an earlier version, which had one source.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    sources: BTreeMap<String, UnknownWorkers>,
}

/// The key of a worker's terms.
#[must_use]
pub fn terms_key(worker: &WorkerId) -> String {
    format!("{}{worker}", layout::TERMS)
}

/// The worker that a key of terms is about; `None` if the key is none.
pub fn named_in(key: &str) -> Option<WorkerId> {
    WorkerId::new(key.strip_prefix(layout::TERMS)?).ok()
}

/// The value of a worker's terms, which a source gives.
#[must_use]
pub fn terms_bytes(source: &SourceName, terms: &WorkerTerms) -> Bytes {
    let WorkerTerms { labels, memory, cpus, max_models, max_gpus, schema_versions, eviction } = terms;
    layout::bytes(&StoredTerms {
        v: FORM,
        source: Some(source.to_string()),
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

/// Decodes a worker's terms. [`StoreError::Corrupt`] if the entry has another form.
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

/// The source that gives an entry's terms; `None`: an earlier version wrote them.
pub fn terms_source(entry: &Entry) -> Result<Option<SourceName>, StoreError> {
    let stored: StoredTerms = layout::read(entry)?;
    Ok(stored.source.and_then(|name| SourceName::new(&name).ok()))
}

/// The value of the treatment of workers that no source names.
#[must_use]
pub fn unknown_bytes(sources: &BTreeMap<SourceName, UnknownWorkers>) -> Bytes {
    let unknown = sources.values().copied().max_by_key(|unknown| strictness(*unknown)).unwrap_or_default();
    let sources = sources.iter().map(|(name, unknown)| (name.to_string(), *unknown)).collect();
    layout::bytes(&StoredUnknown { v: FORM, unknown, sources })
}

const fn strictness(unknown: UnknownWorkers) -> u8 {
    match unknown {
        UnknownWorkers::Allow => 0,
        UnknownWorkers::Ignore => 1,
        UnknownWorkers::Refuse => 2,
    }
}

/// Reads the treatment of workers that no source names.
pub fn read_unknown(entry: &Entry) -> Result<UnknownWorkers, StoreError> {
    layout::read::<StoredUnknown>(entry).map(|stored| stored.unknown)
}

/// The same by source. What an earlier version wrote belongs to `otherwise`.
pub fn unknown_by_source(
    entry: &Entry,
    otherwise: &SourceName,
) -> Result<BTreeMap<SourceName, UnknownWorkers>, StoreError> {
    let StoredUnknown { unknown, sources, .. } = layout::read(entry)?;
    if sources.is_empty() {
        return Ok([(otherwise.clone(), unknown)].into());
    }
    let named = |(name, unknown): (String, UnknownWorkers)| Some((SourceName::new(&name).ok()?, unknown));
    Ok(sources.into_iter().filter_map(named).collect())
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
        let source = SourceName::new("git").expect("a name");
        for terms in [whole, bare] {
            let entry = entry(terms_bytes(&source, &terms));
            assert_eq!(*read_terms(&entry).expect("it reads"), terms);
            assert_eq!(named_in(&entry.key), Some(worker.clone()));
            assert_eq!(terms_source(&entry).expect("it reads"), Some(source.clone()));
        }
        let other = SourceName::new("other").expect("a name");
        for unknown in [UnknownWorkers::Allow, UnknownWorkers::Ignore, UnknownWorkers::Refuse] {
            let sources = BTreeMap::from([(source.clone(), unknown), (other.clone(), UnknownWorkers::Ignore)]);
            let stored = entry(unknown_bytes(&sources));
            let strictest = if unknown == UnknownWorkers::Refuse { unknown } else { UnknownWorkers::Ignore };
            assert_eq!(read_unknown(&stored).expect("it reads"), strictest);
            assert_eq!(unknown_by_source(&stored, &source).expect("it reads"), sources);
        }
        let old = entry(Bytes::from_static(br#"{"v":1,"unknown":"refuse"}"#));
        let of_old = unknown_by_source(&old, &source).expect("it reads");
        assert_eq!(of_old, BTreeMap::from([(source.clone(), UnknownWorkers::Refuse)]));
    }
}
