//! What the tests share: short ways to write stores and manifests, a worker and a gateway that do as they are told.

use berth_control::store::{Op, Store, Txn};
use bytes::Bytes;

pub(crate) fn put(key: &str) -> Op {
    Op::Put { key: key.to_owned(), value: Bytes::from_static(b"value") }
}

/// One commit for each key.
pub(crate) async fn put_all(store: &dyn Store, keys: &[&str]) {
    for key in keys {
        store.commit(Txn { compare: vec![], ops: vec![put(key)] }).await.expect("it commits");
    }
}

pub(crate) async fn delete(store: &dyn Store, key: &str) {
    let ops = vec![Op::Delete { key: key.to_owned() }];
    store.commit(Txn { compare: vec![], ops }).await.expect("it commits");
}
