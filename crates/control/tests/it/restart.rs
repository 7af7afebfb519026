//! A restart: what was declared and decided is back, and nothing moves that need not.

use std::{path::Path, sync::Arc};

use berth_control::{
    handle::{ApplyOutcome, DeleteRequest, Ownership},
    store::{Op, Store, Txn, embedded::EmbeddedStore, memory::MemoryStore},
};
use berth_spec::{Generation, Origin, status::Phase};
use bytes::Bytes;

use crate::fixture::{Running, apply, name, worker};

fn open(folder: &Path) -> Arc<dyn Store> {
    Arc::new(EmbeddedStore::open(folder).expect("it opens"))
}

#[tokio::test]
async fn what_was_declared_is_back_and_placed_where_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut running = Running::start(open(folder.path()));
    running.obedient_worker(worker("w-1", 1)).await;
    running.handle.apply(apply("iris", "  replicas: 1\n")).await.expect("applied");
    let before = running.until(&name("iris"), Phase::Available).await;
    running.stop().await;
    drop(before.clone());

    let mut running = Running::start(open(folder.path()));
    running.obedient_worker(worker("w-0", 1)).await;
    running.obedient_worker(worker("w-1", 2)).await;
    let after = running.until(&name("iris"), Phase::Available).await;
    assert_eq!(after.manifest, before.manifest);
    assert_eq!((after.rev, after.deployment.generation), (before.rev, Generation(1)));
    let replicas = running.handle.replicas().await.expect("replicas");
    assert_eq!(replicas.iter().map(|replica| replica.worker.as_str()).collect::<Vec<_>>(), ["w-1"]);
    running.stop().await;
}

/// Starts with what another version of Berth left under the key of `iris`.
async fn started_with(left: &'static str) -> (Arc<MemoryStore>, Running) {
    let store = Arc::new(MemoryStore::default());
    let op = Op::Put { key: "/deployments/iris".to_owned(), value: Bytes::from_static(left.as_bytes()) };
    store.commit(Txn { compare: vec![], ops: vec![op] }).await.expect("it commits");
    let running = Running::start(Arc::clone(&store) as Arc<dyn Store>);
    (store, running)
}

#[tokio::test]
async fn what_cannot_be_read_any_more_can_be_replaced_and_deleted() {
    let newer = r#"{"v":1,"manifest":{"apiVersion":"berth.dev/v9"},"generation":4,"created":0}"#;
    for (left, generation) in [(newer, 5), (r#"{"v":2}"#, 2), ("not JSON", 2)] {
        let (_, running) = started_with(left).await;
        let applied = running.handle.apply(apply("iris", "")).await.expect("applied");
        assert_eq!((applied.outcome, applied.generation), (ApplyOutcome::Configured, Generation(generation)), "{left}");
        assert!(applied.warnings.iter().any(|warning| warning.contains("replaced")), "{:?}", applied.warnings);
        running.handle.get(&name("iris")).await.expect("it is there");
        running.stop().await;

        let (store, running) = started_with(left).await;
        let request = DeleteRequest { origin: Origin::API, expect: None, ownership: Ownership::Respect };
        running.handle.delete(&name("iris"), request).await.expect("deleted");
        assert_eq!(store.get("/deployments/iris").await.expect("it reads"), None, "{left}");
        running.stop().await;
    }
}
