//! Input from a registry: settings of workers, and model cards.

use std::{collections::BTreeMap, sync::Arc};

use berth_spec::{
    PinnedCard, UnknownWorkers, WorkerTerms,
    worker::{Eviction, EvictionStrategy},
};
use proptest::prelude::*;

/// The registry's settings of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    memory: Option<u8>,
    cores: Option<u8>,
    max_models: Option<u8>,
    max_gpus: Option<u8>,
    newer_cards: bool,
    labelled: Option<bool>,
    eviction: Eviction,
}

pub(crate) fn terms() -> impl Strategy<Value = Terms> {
    let some = || prop::option::of(1_u8..20);
    let strategy = prop_oneof![Just(EvictionStrategy::Lru), Just(EvictionStrategy::Priority)];
    let eviction = (strategy, any::<bool>()).prop_map(|(strategy, automatic)| Eviction { strategy, automatic });
    let most = (some(), prop::option::of(1_u8..5), prop::option::of(0_u8..5), prop::option::of(0_u8..3));
    (most, any::<bool>(), prop::option::of(any::<bool>()), eviction).prop_map(
        |((memory, cores, max_models, max_gpus), newer_cards, labelled, eviction)| Terms {
            memory,
            cores,
            max_models,
            max_gpus,
            newer_cards,
            labelled,
            eviction,
        },
    )
}

impl Terms {
    pub(crate) fn of_worker(&self) -> WorkerTerms {
        let pool = |blue: bool| ("pool".to_owned(), if blue { "blue" } else { "red" }.to_owned());
        WorkerTerms {
            labels: self.labelled.map(pool).into_iter().collect::<BTreeMap<_, _>>(),
            memory: self.memory.map(super::size),
            cpus: self.cores.map(f32::from),
            max_models: self.max_models.map(u32::from),
            max_gpus: self.max_gpus.map(u32::from),
            schema_versions: ["3.0.0", "3.1.0"][..1 + usize::from(self.newer_cards)]
                .iter()
                .map(|v| (*v).to_owned())
                .collect(),
            eviction: self.eviction,
        }
    }
}

pub(crate) fn unknown() -> impl Strategy<Value = UnknownWorkers> {
    prop_oneof![
        3 => Just(UnknownWorkers::Allow),
        1 => Just(UnknownWorkers::Ignore),
        1 => Just(UnknownWorkers::Refuse),
    ]
}

/// A model card of the newer or the older version.
pub(crate) fn card(newer: bool) -> Arc<PinnedCard> {
    let card = serde_json::json!({
        "card": {
            "schemaVersion": if newer { "3.1.0" } else { "3.0.0" },
            "metadata": {"name": "m", "version": "1.0.0", "description": "a model", "owner": "ml@example.com"},
            "runtime": {
                "framework": "custom", "framework_version": "1", "python_version": "3.11", "dependencies": [],
            },
            "artifacts": {"storage_type": "s3", "model_path": "s3://models/m"},
            "code": {"repository": "https://example.com/m.git", "path": "src", "ref": "v1.0.0"},
            "preprocessing": {"module": "src.pre", "function": "run"},
            "postprocessing": {"module": "src.post", "function": "run"},
            "interface": {"input_schema": {}, "output_schema": {}},
        },
        "repository": "https://example.com/m.git", "ref": "v1.0.0",
        "commit": "0".repeat(40), "codeCommit": "1".repeat(40),
    });
    Arc::new(serde_json::from_value(card).expect("a card"))
}
