//! Conformance suite of stores. Each case runs on each implementation.

use std::sync::Arc;

use berth_control::store::{
    Change, Compare, MAX_OPS, Op, Outcome, Page, Rev, Store, StoreError, Txn, embedded::EmbeddedStore,
    memory::MemoryStore,
};
use bytes::Bytes;
use futures::StreamExt;

use crate::{
    etcd::Etcd,
    fixture::{delete, put, put_all},
};

/// Runs a case on a new store of each kind. Revs count from that of the new store: in etcd it is not 0.
pub(crate) async fn each<F: Future<Output = ()>>(case: impl Fn(Arc<dyn Store>, Rev) -> F) {
    case(Arc::new(MemoryStore::default()), Rev::NONE).await;
    let folder = tempfile::tempdir().expect("a folder");
    case(Arc::new(EmbeddedStore::open(folder.path()).expect("it opens")), Rev::NONE).await;
    let Some(etcd) = Etcd::start() else { return };
    let store = etcd.store().await;
    let base = store.rev().await.expect("a rev");
    case(Arc::new(store), base).await;
}

fn keys(changes: &[Change]) -> Vec<&str> {
    changes.iter().map(Change::key).collect()
}

#[tokio::test]
async fn an_entry_remembers_when_it_was_made_and_changed() {
    each(|store, base| async move {
        let rev = |count: u64| Rev(base.0 + count);
        assert_eq!(store.rev().await.expect("a rev"), base);
        assert_eq!(store.get("/a").await.expect("a read"), None);
        put_all(&*store, &["/a", "/b", "/a"]).await;
        let entry = store.get("/a").await.expect("a read").expect("it is there");
        assert_eq!((entry.created, entry.modified, entry.version), (rev(1), rev(3), 2));
        delete(&*store, "/a").await;
        put_all(&*store, &["/a"]).await;
        let entry = store.get("/a").await.expect("a read").expect("it is there");
        assert_eq!((entry.created, entry.modified, entry.version), (rev(5), rev(5), 1), "made anew");
        assert_eq!(store.rev().await.expect("a rev"), rev(5));
    })
    .await;
}

#[tokio::test]
async fn a_transaction_is_all_or_nothing() {
    each(|store, base| async move {
        let rev = |count: u64| Rev(base.0 + count);
        put_all(&*store, &["/a", "/b"]).await;
        let txn = |compare: &[(&str, u64)]| Txn {
            compare: compare
                .iter()
                .map(|(key, count)| Compare::Modified {
                    key: (*key).to_owned(),
                    rev: if *count == 0 { Rev::NONE } else { rev(*count) },
                })
                .collect(),
            ops: vec![put("/c"), Op::Delete { key: "/a".to_owned() }],
        };
        for wrong in [&[("/a", 2)][..], &[("/a", 1), ("/b", 1)], &[("/c", 1)], &[("/a", 0)]] {
            assert_eq!(store.commit(txn(wrong)).await.expect("an answer"), Outcome::Conflict, "{wrong:?}");
        }
        assert!(store.get("/c").await.expect("a read").is_none());
        let right = txn(&[("/a", 1), ("/b", 2), ("/c", 0)]);
        assert_eq!(store.commit(right).await.expect("an answer"), Outcome::Committed(rev(3)));
        assert!(store.get("/a").await.expect("a read").is_none());
        assert_eq!(store.get("/c").await.expect("a read").map(|entry| entry.modified), Some(rev(3)));
    })
    .await;
}

#[tokio::test]
async fn a_key_is_the_same_one_until_it_is_created_again() {
    each(|store, base| async move {
        let rev = |count: u64| Rev(base.0 + count);
        put_all(&*store, &["/a", "/a"]).await;
        let created = |rev| Compare::Created { key: "/a".to_owned(), rev };
        let txn = |rev| Txn { compare: vec![created(rev)], ops: vec![put("/b")] };
        for wrong in [Rev::NONE, rev(2)] {
            assert_eq!(store.commit(txn(wrong)).await.expect("an answer"), Outcome::Conflict, "{wrong}");
        }
        assert_eq!(store.commit(txn(rev(1))).await.expect("an answer"), Outcome::Committed(rev(3)));
        delete(&*store, "/a").await;
        assert_eq!(store.commit(txn(rev(1))).await.expect("an answer"), Outcome::Conflict);
        assert_eq!(store.commit(txn(Rev::NONE)).await.expect("an answer"), Outcome::Committed(rev(5)));
        put_all(&*store, &["/a"]).await;
        assert_eq!(store.commit(txn(rev(1))).await.expect("an answer"), Outcome::Conflict, "another one");
        assert_eq!(store.commit(txn(rev(6))).await.expect("an answer"), Outcome::Committed(rev(7)));
    })
    .await;
}

#[tokio::test]
async fn what_changes_nothing_makes_no_rev() {
    each(|store, base| async move {
        let rev = |count: u64| Rev(base.0 + count);
        put_all(&*store, &["/a"]).await;
        for ops in [vec![], vec![Op::Delete { key: "/none".to_owned() }]] {
            let txn = Txn { compare: vec![], ops };
            assert_eq!(store.commit(txn).await.expect("an answer"), Outcome::Committed(rev(1)));
        }
    })
    .await;
}

#[tokio::test]
async fn transactions_beyond_the_limits_are_refused() {
    each(|store, base| async move {
        let many = Txn { compare: vec![], ops: (0..=MAX_OPS).map(|i| put(&format!("/{i}"))).collect() };
        assert!(matches!(store.commit(many).await, Err(StoreError::TooLarge { .. })));
        let value = Bytes::from(vec![0; 2 << 20]);
        let large = Txn { compare: vec![], ops: vec![Op::Put { key: "/a".to_owned(), value }] };
        assert!(matches!(store.commit(large).await, Err(StoreError::TooLarge { .. })));
        let twice = Txn { compare: vec![], ops: vec![put("/a"), put("/a")] };
        assert!(matches!(store.commit(twice).await, Err(StoreError::DuplicateKey(_))));
        assert_eq!(store.rev().await.expect("a rev"), base);
    })
    .await;
}

#[tokio::test]
async fn a_listing_is_ordered_and_paged() {
    each(|store, base| async move {
        let rev = |count: u64| Rev(base.0 + count);
        put_all(&*store, &["/m/3", "/m/1", "/n/1", "/m", "/m/2", "/l/9"]).await;
        let mut found = Vec::new();
        let mut page = Page { limit: 2, ..Page::default() };
        loop {
            let listing = store.list("/m/", page).await.expect("a page");
            assert_eq!(listing.at, rev(6));
            found.push(listing.entries.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>());
            if !listing.more {
                break;
            }
            page = Page { after: listing.entries.last().map(|entry| entry.key.clone()), limit: 2, at: listing.at };
        }
        assert_eq!(found, [vec!["/m/1", "/m/2"], vec!["/m/3"]]);
        assert_eq!(store.list("/x", Page::default()).await.expect("a page").entries, []);
    })
    .await;
}

#[tokio::test]
async fn a_watch_tells_the_past_and_then_the_present() {
    each(|store, base| async move {
        let rev = |count: u64| Rev(base.0 + count);
        put_all(&*store, &["/m/1", "/n/1", "/m/2"]).await;
        let mut watch = store.watch("/m/", rev(2)).await.expect("a watch");
        let past = watch.next().await.expect("open").expect("a commit");
        assert_eq!((past.rev, keys(&past.changes)), (rev(3), vec!["/m/2"]));
        let both = Txn { compare: vec![], ops: vec![put("/n/2"), Op::Delete { key: "/m/1".to_owned() }, put("/m/3")] };
        store.commit(both).await.expect("an answer");
        let present = watch.next().await.expect("open").expect("a commit");
        assert_eq!((present.rev, keys(&present.changes)), (rev(4), vec!["/m/1", "/m/3"]), "one commit, whole");
        assert!(matches!(&present.changes[0], Change::Deleted { key } if key == "/m/1"));
    })
    .await;
}

#[tokio::test]
async fn a_watch_misses_nothing_of_many_commits() {
    each(|store, base| async move {
        let rev = |count: u64| Rev(base.0 + count);
        let mut watch = store.watch("/", rev(1)).await.expect("a watch");
        let writer = async {
            for i in 0..500 {
                put_all(&*store, &[&format!("/{i:03}")]).await;
            }
        };
        let reader = async {
            for i in 1..=500 {
                let commit = watch.next().await.expect("open").expect("a commit");
                assert_eq!(commit.rev, rev(i));
            }
        };
        futures::join!(writer, reader);
    })
    .await;
}

#[tokio::test]
async fn a_watch_from_before_a_compaction_fails() {
    each(|store, base| async move {
        let rev = |count: u64| Rev(base.0 + count);
        put_all(&*store, &["/a", "/b", "/c"]).await;
        let mut behind = store.watch("/", rev(1)).await.expect("a watch");
        store.compact(rev(3)).await.expect("it compacts");
        let compacted =
            |result: Result<_, StoreError>| matches!(result, Err(StoreError::Compacted { oldest }) if oldest == rev(3));
        assert!(compacted(store.watch("/", rev(2)).await.map(drop)));
        assert!(compacted(behind.next().await.expect("an end").map(drop)));
        assert!(behind.next().await.is_none(), "it ends after an error");
        let mut from_there = store.watch("/", rev(3)).await.expect("a watch");
        assert_eq!(from_there.next().await.expect("open").expect("a commit").rev, rev(3));
        assert!(store.get("/a").await.expect("a read").is_some(), "what is kept stays");
    })
    .await;
}

#[tokio::test]
async fn a_second_process_is_told_who_is_in_the_way() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = EmbeddedStore::open(folder.path()).expect("it opens");
    let second = EmbeddedStore::open(folder.path()).err().expect("it is taken");
    assert!(matches!(second, StoreError::InUse(_)), "{second}");
    assert!(second.to_string().contains("another berth uses the data directory"), "{second}");
    drop(first);
    EmbeddedStore::open(folder.path()).expect("it is free again");
}
