//! Writing a status never undoes a person's change.

use std::collections::BTreeMap;

use berth_control::store::{Entry, Op, Outcome, Store, Txn, memory::MemoryStore};
use berth_functions::{
    deployment::{Identity, identity_of},
    status::{Phase, Status},
    writer::{self, attempt},
};
use proptest::prelude::*;
use serde_json::{Value, json};

const KEY: &str = "/f";

/// A step of a person or of one of three controllers, each of which reads, thinks, and writes what it thought.
#[derive(Debug, Clone)]
enum Step {
    Put(u8),
    Delete,
    Read(usize),
    Write(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0..4u8).prop_map(Step::Put),
        1 => Just(Step::Delete),
        4 => (0..3usize).prop_map(Step::Read),
        4 => (0..3usize).prop_map(Step::Write),
    ];
    prop::collection::vec(step, 1..16)
}

fn object(spec: u8) -> Vec<u8> {
    let object = json!({"metadata": {"name": "f"}, "spec": {"n": spec}, "status": {"phase": "Pending"}});
    object.to_string().into_bytes()
}

fn without_status(value: &[u8]) -> Value {
    let mut value: Value = serde_json::from_slice(value).expect("JSON");
    value.as_object_mut().expect("an object").remove("status");
    value
}

async fn put(store: &MemoryStore, value: Vec<u8>) {
    let ops = vec![Op::Put { key: KEY.to_owned(), value: value.into() }];
    store.commit(Txn { compare: vec![], ops }).await.expect("put");
}

async fn play(steps: Vec<Step>) {
    let store = MemoryStore::default();
    let mut wanted: Option<Value> = None;
    let mut read: BTreeMap<usize, (Option<Entry>, Identity)> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Put(spec) => {
                put(&store, object(spec)).await;
                wanted = Some(without_status(&object(spec)));
            }
            Step::Delete => {
                let ops = vec![Op::Delete { key: KEY.to_owned() }];
                store.commit(Txn { compare: vec![], ops }).await.expect("deleted");
                wanted = None;
            }
            Step::Read(who) => {
                let found = store.get(KEY).await.expect("read");
                if let Some(identity) = found.as_ref().and_then(|entry| identity_of(&entry.value)) {
                    read.insert(who, (found, identity));
                }
            }
            Step::Write(who) => {
                let Some((found, identity)) = read.get(&who) else { continue };
                let mut status = Status::default();
                status.say(Phase::Succeeded, &format!("{who} about {}", identity.digest));
                if let Ok(txn) = attempt(KEY, found.as_ref(), identity, &status) {
                    store.commit(txn).await.expect("an answer");
                }
            }
        }
        let now = store.get(KEY).await.expect("read");
        assert_eq!(now.as_ref().map(|entry| without_status(&entry.value)), wanted, "the person's word stands");
        if let Some(entry) = now {
            let value: Value = serde_json::from_slice(&entry.value).expect("JSON");
            let message = value["status"]["message"].as_str().unwrap_or_default();
            let identity = identity_of(&entry.value).expect("an object");
            assert!(message.is_empty() || message.ends_with(&*identity.digest), "{message}: a status of another spec");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    /// However a person and three controllers interleave: the desired state is the person's last word, what was deleted
    /// stays deleted, and a status stands only beside the desired state that it is about.
    #[test]
    fn a_status_never_undoes_a_change(steps in steps()) {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(play(steps));
    }
}

#[tokio::test]
async fn a_conflict_is_tried_again_and_another_spec_is_left_alone() {
    let store = MemoryStore::default();
    put(&store, object(1)).await;
    let identity = identity_of(&object(1)).expect("an object");
    let mut status = Status::default();
    status.say(Phase::Building, "now");
    let first = writer::write(&store, KEY, &identity, &status).await.expect("written");
    assert!(matches!(first, writer::Written::Done(_)), "{first:?}");
    let again = writer::write(&store, KEY, &identity, &status).await.expect("written");
    assert_eq!(again, first, "the same status is not written twice");
    put(&store, object(2)).await;
    assert_eq!(writer::write(&store, KEY, &identity, &status).await.expect("an answer"), writer::Written::Superseded);
    let ops = vec![Op::Delete { key: KEY.to_owned() }];
    assert!(matches!(store.commit(Txn { compare: vec![], ops }).await, Ok(Outcome::Committed(_))));
    assert_eq!(writer::write(&store, KEY, &identity, &status).await.expect("an answer"), writer::Written::Gone);
}
