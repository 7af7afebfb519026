//! Answers that are lost, clusters that are not the same any more, etcd that is not there.

use std::time::Duration;

use berth_control::store::{
    Compare, Op, Outcome, Rev, Store, StoreError, Txn,
    etcd::{EtcdConfig, EtcdStore, Timeouts},
};
use berth_spec::Class;
use bytes::Bytes;

use super::{Etcd, Proxy};
use crate::fixture::put_all;

fn hasty() -> Timeouts {
    Timeouts {
        connect: Duration::from_millis(500),
        answer: Duration::from_millis(500),
        whole: Duration::from_secs(60),
        ..Timeouts::default()
    }
}

fn write(compare: Vec<Compare>, value: &str) -> Txn {
    Txn { compare, ops: vec![Op::Put { key: "/a".to_owned(), value: Bytes::from(value.to_owned()) }] }
}

fn unmodified(rev: Rev) -> Vec<Compare> {
    vec![Compare::Modified { key: "/a".to_owned(), rev }]
}

/// A store behind a proxy, and one that is not.
async fn both(etcd: &Etcd) -> (EtcdStore, Proxy, EtcdStore) {
    let proxy = Proxy::before(&etcd.endpoints()[0]).await;
    let behind = etcd.open(EtcdConfig { endpoints: vec![proxy.address()], ..etcd.config() }).await;
    (behind.with_patience(hasty()), proxy, etcd.store().await)
}

/// Waits until the key holds the value.
async fn until(store: &EtcdStore, value: &str) -> Rev {
    use futures::StreamExt;
    let mut watch = store.watch("/a", Rev(1)).await.expect("a watch");
    loop {
        let commit = tokio::time::timeout(Duration::from_secs(120), watch.next()).await.expect("it comes");
        let commit = commit.expect("open").expect("a commit");
        let entry = store.get("/a").await.expect("a read");
        if let Some(entry) = entry.filter(|entry| entry.value == value) {
            return entry.modified.max(commit.rev);
        }
    }
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_found_done() {
    let Some(etcd) = Etcd::start() else { return };
    let (store, proxy, direct) = both(&etcd).await;
    for compare in [unmodified(Rev::NONE), vec![]] {
        let value = format!("with {} comparisons", compare.len());
        proxy.mute();
        let (outcome, at) = futures::join!(store.commit(write(compare, &value)), async {
            let at = until(&direct, &value).await;
            // It is there; what comes next gets through.
            proxy.cut();
            at
        });
        assert_eq!(outcome.expect("it is known"), Outcome::Committed(at), "{value}");
    }
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_and_that_was_overwritten_is_found_in_the_past() {
    let Some(etcd) = Etcd::start() else { return };
    let (store, proxy, direct) = both(&etcd).await;
    put_all(&direct, &["/a"]).await;
    let rev = direct.rev().await.expect("a rev");
    proxy.mute();
    let (outcome, at) = futures::join!(store.commit(write(unmodified(rev), "ours")), async {
        let at = until(&direct, "ours").await;
        for other in ["theirs", "theirs again"] {
            direct.commit(write(vec![], other)).await.expect("it commits");
        }
        proxy.cut();
        at
    });
    assert_eq!(outcome.expect("it is known"), Outcome::Committed(at));
}

#[tokio::test]
async fn a_write_that_never_arrived_and_lost_the_race_is_a_conflict() {
    let Some(etcd) = Etcd::start() else { return };
    let direct = etcd.store().await;
    put_all(&direct, &["/a"]).await;
    let rev = direct.rev().await.expect("a rev");
    // The proxy takes the connection and never passes anything on: the server is not there yet.
    let proxy = Proxy::before(&etcd.endpoints()[0]).await;
    let store = etcd.open(EtcdConfig { endpoints: vec![proxy.address()], ..etcd.config() }).await;
    let store = store.with_patience(hasty());
    etcd.pause(0);
    let (outcome, ()) = futures::join!(store.commit(write(unmodified(rev), "ours")), async {
        // The first attempt is given up; its request dies with the connection, which etcd has not read.
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.cut();
        etcd.resume(0);
        direct.commit(write(vec![], "theirs")).await.expect("it commits");
    });
    // Whichever came first, the outcome is known and right.
    let held = direct.get("/a").await.expect("a read").expect("it is there");
    match outcome.expect("it is known") {
        Outcome::Conflict => assert_eq!(held.version, 2, "ours is not there"),
        Outcome::Committed(at) => assert!(at > rev && held.version == 3, "{at} {held:?}"),
    }
}

#[tokio::test]
async fn an_etcd_that_is_gone_is_named() {
    let Some(mut etcd) = Etcd::start() else { return };
    let store = etcd.store().await.with_patience(Timeouts { whole: Duration::from_secs(1), ..hasty() });
    etcd.kill(0);
    let error = store.get("/a").await.expect_err("nobody is there");
    assert!(error.to_string().contains(&etcd.endpoints()[0]), "{error}");
    assert!(matches!(error.class(), Class::Waiting { .. }), "{error}");
    etcd.revive(0);
    let patient = Timeouts { whole: Duration::from_secs(60), ..hasty() };
    assert_eq!(store.with_patience(patient).get("/a").await.expect("it is back"), None);
}

#[tokio::test]
async fn another_cluster_is_not_taken_for_the_same() {
    let (Some(one), Some(two)) = (Etcd::start(), Etcd::start()) else { return };
    // A store belongs to whoever answers it first: the other one comes only when the first is up and was asked.
    put_all(&one.store().await, &["/a"]).await;
    let endpoints = vec![one.endpoints()[0].clone(), two.endpoints()[0].clone()];
    let store = one.open(EtcdConfig { endpoints, ..one.config() }).await;
    assert!(store.get("/a").await.expect("a read").is_some(), "it is the first one's");
    two.store().await;
    let store = store.with_patience(hasty());
    one.pause(0);
    let error = store.get("/a").await.expect_err("it is another");
    one.resume(0);
    assert!(matches!(error, StoreError::Replaced { .. }), "{error}");
    assert!(error.to_string().contains(&two.endpoints()[0]), "{error}");
    assert_eq!(error.class(), Class::Stalled);
}

#[tokio::test]
async fn an_etcd_that_lost_its_past_is_not_taken_for_the_same() {
    let Some(mut etcd) = Etcd::start() else { return };
    let store = etcd.store().await.with_patience(hasty());
    put_all(&store, &["/a", "/b", "/c"]).await;
    etcd.kill(0);
    fs_err::remove_dir_all(etcd.folder().join("m0")).expect("it is there");
    etcd.revive(0);
    // The same names give the same cluster id, so only the revision tells.
    etcd.open(etcd.config()).await;
    let store = store.with_patience(Timeouts { whole: Duration::from_secs(2), ..hasty() });
    let until = std::time::Instant::now() + Duration::from_secs(120);
    loop {
        let error = store.get("/a").await.expect_err("its revision is lower");
        if matches!(error, StoreError::Replaced { .. }) {
            break;
        }
        // On a busy machine the last of several answers may be late, and then that is what is told.
        let late = matches!(error, StoreError::Unreachable { .. });
        assert!(late && std::time::Instant::now() < until, "{error}");
    }
}
