//! etcd's limits: sizes, counts, space; and how many entries it takes to list.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, time::Duration};

use berth_control::store::{MAX_OPS, Op, Outcome, Page, Store, StoreError, Txn, etcd::Timeouts};
use berth_spec::Class;
use bytes::Bytes;

use super::Etcd;
use crate::fixture::put;

/// Number of deployments that a store must hold.
const MANY: usize = 100_000;

#[tokio::test]
async fn a_hundred_thousand_keys_are_listed_in_pages() {
    let Some(etcd) = Etcd::with(1, &["--quota-backend-bytes=4294967296"]) else { return };
    let store = etcd.store().await;
    let keys: Vec<String> = (0..MANY).map(|n| format!("/deployments/model-{n:06}")).collect();
    let txns = keys.chunks(MAX_OPS).map(|keys| {
        let ops = keys.iter().map(|key| Op::Put { key: key.clone(), value: Bytes::from(vec![b'x'; 300]) }).collect();
        store.commit(Txn { compare: vec![], ops })
    });
    use futures::{StreamExt, TryStreamExt};
    let committed = futures::stream::iter(txns).buffer_unordered(16).try_collect::<Vec<Outcome>>().await;
    assert_eq!(committed.expect("it commits").len(), MANY.div_ceil(MAX_OPS));
    let began = std::time::Instant::now();
    let mut page = Page::default();
    let (mut pages, mut found) = (0, 0);
    loop {
        let listing = store.list("/deployments/", page).await.expect("a page");
        let expected = &keys[found..found + listing.entries.len()];
        assert!(listing.entries.iter().map(|entry| &entry.key).eq(expected), "page {pages}");
        pages += 1;
        found += listing.entries.len();
        let Some(last) = listing.entries.last().filter(|_| listing.more) else { break };
        page = Page { after: Some(last.key.clone()), limit: 0, at: listing.at };
    }
    assert_eq!((found, pages), (MANY, MANY / 1_000));
    println!("{found} entries in {pages} pages: {:?}", began.elapsed());
}

#[tokio::test]
async fn large_entries_come_in_smaller_pages() {
    let Some(etcd) = Etcd::start() else { return };
    let store = etcd.store().await;
    // 40 MiB: more than one answer may be.
    for n in 0..40 {
        let op = Op::Put { key: format!("/large/{n:02}"), value: Bytes::from(vec![1; 1 << 20]) };
        store.commit(Txn { compare: vec![], ops: vec![op] }).await.expect("it commits");
    }
    let entries = super::listed(&store, "/large/").await;
    assert_eq!(entries.len(), 40);
    assert!(entries.iter().is_sorted_by_key(|entry| &entry.key));
}

#[tokio::test]
async fn pages_of_keys_that_are_no_text_do_not_end_a_listing() {
    let Some(etcd) = Etcd::start() else { return };
    let store = etcd.store_at("").await;
    for key in [b"/odd/\x801".as_slice(), b"/odd/\x802", b"/odd/\x803", "/odd/é".as_bytes()] {
        etcd.etcdctl(&[OsStr::new("put"), OsStr::from_bytes(key), OsStr::new("x")]);
    }
    let page = store.list("/odd/", Page { limit: 1, ..Page::default() }).await.expect("a page");
    let found: Vec<&str> = page.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!((found, page.more), (vec!["/odd/é"], false));
}

#[tokio::test]
async fn what_is_within_our_limits_is_within_etcds() {
    let Some(etcd) = Etcd::start() else { return };
    let store = etcd.store().await;
    let most = Txn { compare: vec![], ops: (0..MAX_OPS).map(|n| put(&format!("/{n}"))).collect() };
    assert!(matches!(store.commit(most).await, Ok(Outcome::Committed(_))));
    let value = Bytes::from(vec![0; (3 << 19) - 4_096]);
    let large = Txn { compare: vec![], ops: vec![Op::Put { key: "/large".to_owned(), value }] };
    assert!(matches!(store.commit(large).await, Ok(Outcome::Committed(_))));
    let value = Bytes::from(vec![0; (3 << 19) - 10]);
    let larger = Txn { compare: vec![], ops: vec![Op::Put { key: "/larger".to_owned(), value }] };
    assert!(matches!(store.commit(larger).await, Err(StoreError::TooLarge { .. })));
}

#[tokio::test]
async fn a_full_etcd_says_what_to_do_and_still_answers() {
    let Some(etcd) = Etcd::with(1, &["--quota-backend-bytes=1048576"]) else { return };
    let patience = Timeouts { whole: Duration::from_secs(3), ..Timeouts::default() };
    let store = etcd.store().await.with_patience(patience);
    let mut written = 0;
    let error = loop {
        let op = Op::Put { key: format!("/{written}"), value: Bytes::from(vec![1; 200 << 10]) };
        match store.commit(Txn { compare: vec![], ops: vec![op] }).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100, "it has a quota");
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert!(error.to_string().contains("etcdctl defrag"), "{error}");
    assert_eq!(error.class(), Class::Stalled);
    assert!(store.get("/0").await.expect("it reads").is_some());
}
