//! Calls while the store is away.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use berth_control::store::{Entry, Listing, Outcome, Page, Rev, Store, StoreError, Txn, Watch, memory::MemoryStore};
use berth_wire::mmesh::{GetStatusRequest, model_status_info::ModelStatus};
use futures::{FutureExt as _, future::BoxFuture};
use tonic::Code;

use crate::test_cluster::TestCluster;

/// A store that can be away: then it answers no reads of a key.
#[derive(Default)]
struct AwayStore {
    store: MemoryStore,
    is_away: AtomicBool,
}

impl Store for AwayStore {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        if self.is_away.load(Relaxed) {
            return async { Err(StoreError::Closed) }.boxed();
        }
        self.store.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: Page) -> BoxFuture<'a, Result<Listing, StoreError>> {
        self.store.list(prefix, page)
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        self.store.commit(txn)
    }

    fn watch<'a>(&'a self, prefix: &'a str, from: Rev) -> BoxFuture<'a, Result<Watch, StoreError>> {
        self.store.watch(prefix, from)
    }

    fn rev(&self) -> BoxFuture<'_, Result<Rev, StoreError>> {
        self.store.rev()
    }

    fn compact(&self, before: Rev) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.compact(before)
    }
}

/// ModelMesh told states out of its own copy of the registry; here they waited for the store.
#[tokio::test]
async fn the_state_of_a_model_needs_no_store() {
    let store = Arc::new(AwayStore::default());
    let mut cluster = TestCluster::over(Arc::clone(&store) as Arc<dyn Store>, 1).await;
    cluster.loaded("here", "p").await;
    cluster.register("cold", "p").await.expect("registered");
    store.is_away.store(true, Relaxed);
    assert_eq!(cluster.status("here").await.status(), ModelStatus::Loaded);
    assert_eq!(cluster.status("cold").await.status(), ModelStatus::NotLoaded);
    let request = GetStatusRequest { model_id: "other".to_owned() };
    let error = cluster.client.get_model_status(request).await.expect_err("somebody may have declared it just now");
    assert_eq!(error.code(), Code::Unavailable, "{error}");
}
