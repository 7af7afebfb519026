//! Stores against a model: a map and a list of what was done.

use std::collections::BTreeMap;

use berth_control::store::{Compare, Op, Outcome, Page, Rev, Store, Txn, embedded::EmbeddedStore, memory::MemoryStore};
use bytes::Bytes;
use futures::StreamExt;
use proptest::{prelude::*, test_runner::TestRunner};

use crate::etcd::Etcd;

/// One step: comparisons by key with a guess (of when it was created, else of when it was modified), then puts and deletes.
#[derive(Debug, Clone)]
struct Step {
    compare: Vec<(u8, u64, bool)>,
    ops: BTreeMap<u8, Option<u8>>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let compare = prop::collection::vec((0..5u8, 0..6u64, any::<bool>()), 0..2);
    let ops = prop::collection::btree_map(0..5u8, prop::option::of(any::<u8>()), 0..4);
    prop::collection::vec((compare, ops).prop_map(|(compare, ops)| Step { compare, ops }), 1..30)
}

fn key(key: u8) -> String {
    format!("/k/{key}")
}

impl Step {
    fn txn(&self, base: u64) -> Txn {
        let compare = self.compare.iter().map(|(k, guess, created)| {
            let (key, rev) = (key(*k), Rev(guessed(*guess, base)));
            if *created { Compare::Created { key, rev } } else { Compare::Modified { key, rev } }
        });
        let ops = self.ops.iter().map(|(k, value)| match value {
            Some(value) => Op::Put { key: key(*k), value: Bytes::from(vec![*value]) },
            None => Op::Delete { key: key(*k) },
        });
        Txn { compare: compare.collect(), ops: ops.collect() }
    }
}

/// Guesses count from where the store began; 0: the key does not exist.
fn guessed(guess: u64, base: u64) -> u64 {
    if guess == 0 { 0 } else { base + guess }
}

/// Expected entry of a store: value, created, modified, version.
#[derive(Debug, Default)]
struct Model {
    base: u64,
    rev: u64,
    entries: BTreeMap<String, (u8, u64, u64, u64)>,
    commits: usize,
}

impl Model {
    fn step(&mut self, step: &Step) -> Outcome {
        let found = |k: &u8, created: bool| {
            self.entries.get(&key(*k)).map_or(0, |entry| if created { entry.1 } else { entry.2 })
        };
        if step.compare.iter().any(|(k, guess, created)| found(k, *created) != guessed(*guess, self.base)) {
            return Outcome::Conflict;
        }
        let rev = self.rev + 1;
        let mut changed = false;
        for (k, value) in &step.ops {
            match value {
                Some(value) => {
                    let (created, version) = self.entries.get(&key(*k)).map_or((rev, 1), |old| (old.1, old.3 + 1));
                    self.entries.insert(key(*k), (*value, created, rev, version));
                    changed = true;
                }
                None => changed |= self.entries.remove(&key(*k)).is_some(),
            }
        }
        if changed {
            self.rev = rev;
            self.commits += 1;
        }
        Outcome::Committed(Rev(self.rev))
    }
}

async fn agrees(store: &dyn Store, steps: &[Step]) {
    let base = store.rev().await.expect("a rev").0;
    let mut model = Model { base, rev: base, ..Model::default() };
    for step in steps {
        assert_eq!(store.commit(step.txn(base)).await.expect("an answer"), model.step(step), "{step:?}");
    }
    assert_eq!(store.rev().await.expect("a rev"), Rev(model.rev));
    let listing = store.list("/k/", Page::default()).await.expect("a listing");
    let held: BTreeMap<String, (u8, u64, u64, u64)> = listing
        .entries
        .iter()
        .map(|entry| (entry.key.clone(), (entry.value[0], entry.created.0, entry.modified.0, entry.version)))
        .collect();
    assert_eq!(held, model.entries);
    let watch = store.watch("/", Rev(base + 1)).await.expect("a watch");
    let revs: Vec<u64> = watch.take(model.commits).map(|commit| commit.expect("a commit").rev.0).collect().await;
    assert_eq!(revs, (base + 1..=model.rev).collect::<Vec<_>>(), "the history has every rev once");
}

fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_memory_store_agrees(steps in steps()) {
        block_on(agrees(&MemoryStore::default(), &steps));
    }
}

proptest! {
    // Each case makes a file and syncs it for each step.
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_embedded_store_agrees(steps in steps()) {
        let folder = tempfile::tempdir().expect("a folder");
        block_on(agrees(&EmbeddedStore::open(folder.path()).expect("it opens"), &steps));
    }
}

#[test]
fn etcd_agrees() {
    let Some(etcd) = Etcd::start() else { return };
    let cases = std::cell::Cell::new(0);
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() });
    let result = runner.run(&steps(), |steps| {
        cases.set(cases.get() + 1);
        // Each in a place of its own, and on from where the last one ended.
        block_on(async { agrees(&etcd.store_at(&format!("/model/{}", cases.get())).await, &steps).await });
        Ok(())
    });
    result.expect("it agrees");
}
