//! A restart: what was declared and decided is back, and nothing moves that need not.

use std::{path::Path, sync::Arc};

use berth_control::store::{Store, embedded::EmbeddedStore};
use berth_spec::{Generation, status::Phase};

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
