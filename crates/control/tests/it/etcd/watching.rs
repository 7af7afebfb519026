//! Watches: over compaction, over the death of the member they are on, over members that stand still.

use std::time::Duration;

use berth_control::store::{
    Change, Commit, Op, Outcome, Rev, Store, StoreError, Txn, Watch,
    etcd::{EtcdConfig, EtcdStore, Timeouts},
};
use bytes::Bytes;
use futures::StreamExt;

use super::{Etcd, Proxy};
use crate::fixture::{put, put_all};

/// Longer than anything here may take.
const LONG: Duration = Duration::from_secs(120);

async fn next(watch: &mut Watch) -> Result<Commit, StoreError> {
    tokio::time::timeout(LONG, watch.next()).await.expect("in time").expect("open")
}

/// The next commit that says something.
async fn told(watch: &mut Watch) -> Commit {
    loop {
        let commit = next(watch).await.expect("a commit");
        if !commit.changes.is_empty() {
            return commit;
        }
    }
}

/// Writes `/n/0`, `/n/1`, … one after the other, each with the one before it, and says which revs they got.
async fn count(store: &EtcdStore, from: usize, until: usize) -> Vec<Rev> {
    let mut revs = Vec::new();
    for n in from..until {
        let key = format!("/n/{n}");
        let compare = berth_control::store::Compare::Modified { key: key.clone(), rev: Rev::NONE };
        let ops = vec![put(&key), Op::Put { key: "/last".to_owned(), value: Bytes::from(n.to_string()) }];
        match store.commit(Txn { compare: vec![compare], ops }).await.expect("it commits") {
            Outcome::Committed(rev) => revs.push(rev),
            Outcome::Conflict => panic!("{key} was written twice"),
        }
    }
    revs
}

/// Reads what [`count`] wrote, and checks that nothing is missing, doubled or torn.
async fn check(watch: &mut Watch, from: usize, until: usize) -> Vec<Rev> {
    let mut revs = Vec::new();
    for n in from..until {
        let commit = told(watch).await;
        let keys: Vec<&str> = commit.changes.iter().map(Change::key).collect();
        assert_eq!(keys, [format!("/n/{n}").as_str(), "/last"]);
        revs.push(commit.rev);
    }
    revs
}

#[tokio::test]
async fn a_compaction_behind_a_watch_does_not_hurt_and_one_before_it_is_told() {
    let Some(etcd) = Etcd::start() else { return };
    let proxy = Proxy::before(&etcd.endpoints()[0]).await;
    let direct = etcd.store().await;
    let store = etcd.open(EtcdConfig { endpoints: vec![proxy.address()], ..etcd.config() }).await;
    put_all(&direct, &["/a", "/b"]).await;
    let first = direct.rev().await.expect("a rev");
    let mut watch = store.watch("/", first).await.expect("a watch");
    assert_eq!(told(&mut watch).await.rev, first);

    // Everything that was told is forgotten, and the stream breaks: it goes on.
    direct.compact(first).await.expect("it compacts");
    proxy.cut();
    put_all(&direct, &["/c"]).await;
    assert_eq!(told(&mut watch).await.rev, first.next());

    // What was not told is forgotten while nobody is connected: it cannot go on, and says so.
    proxy.mute();
    put_all(&direct, &["/d", "/e", "/f"]).await;
    let last = direct.rev().await.expect("a rev");
    direct.compact(last).await.expect("it compacts");
    proxy.cut();
    let error = loop {
        match next(&mut watch).await {
            Ok(commit) => assert!(commit.rev <= first.next(), "{commit:?} is after what is forgotten"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Compacted { oldest } if oldest == last), "{error}");
    assert!(watch.next().await.is_none(), "it ends after an error");
    let mut again = store.watch("/", last).await.expect("a watch");
    assert_eq!(told(&mut again).await.rev, last);
}

#[tokio::test]
async fn a_listing_is_of_one_moment_or_says_that_it_is_forgotten() {
    let Some(etcd) = Etcd::start() else { return };
    let store = etcd.store().await;
    put_all(&store, &["/m/1", "/m/2", "/m/3"]).await;
    let page = |after: Option<&str>, at| berth_control::store::Page { after: after.map(str::to_owned), limit: 2, at };
    let first = store.list("/m/", page(None, Rev::NONE)).await.expect("a page");
    put_all(&store, &["/m/4"]).await;
    let rest = store.list("/m/", page(Some("/m/2"), first.at)).await.expect("a page");
    let keys: Vec<&str> = rest.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!((keys, rest.more, rest.at), (vec!["/m/3"], false, first.at), "not what came later");
    store.compact(first.at.next()).await.expect("it compacts");
    let forgotten = store.list("/m/", page(Some("/m/2"), first.at)).await;
    assert!(matches!(forgotten, Err(StoreError::Compacted { .. })), "{forgotten:?}");
}

#[tokio::test]
async fn an_idle_watch_stays_and_others_writes_are_not_told() {
    let Some(etcd) = Etcd::start() else { return };
    let patience = Timeouts { progress: Duration::from_millis(200), ..Timeouts::default() };
    let (store, other) = (etcd.store().await.with_patience(patience), etcd.store_at("/other").await);
    put_all(&store, &["/a"]).await;
    let from = store.rev().await.expect("a rev");
    let mut watch = store.watch("/", from.next()).await.expect("a watch");
    put_all(&other, &["/x", "/y"]).await;
    // Several questions and their answers. What they say can be relied on only since 3.5.8, and later ones of 3.4.
    let quiet = tokio::time::timeout(Duration::from_millis(1_500), watch.next()).await;
    let moved = quiet.ok().map(|told| told.expect("open").expect("a commit"));
    assert!(moved.iter().all(|commit| commit.changes.is_empty()), "{moved:?}");
    assert_eq!(moved.is_some(), !etcd.version().starts_with("3.4."), "{moved:?}");
    put_all(&store, &["/b"]).await;
    let commit = told(&mut watch).await;
    assert_eq!(commit.rev, Rev(from.0 + 3));
}

#[tokio::test]
async fn a_watcher_and_a_writer_survive_the_death_of_any_member() {
    let Some(mut etcd) = Etcd::with(3, &[]) else { return };
    let store = etcd.patient_store().await;
    let watcher = etcd.patient_store().await;
    let from = store.rev().await.expect("a rev").next();
    let mut watch = watcher.watch("/", from).await.expect("a watch");
    let mut wrote = count(&store, 0, 20).await;
    let mut saw = check(&mut watch, 0, 20).await;
    let mut at = 20;
    for victim in [etcd.leader().await, 0, 1] {
        let write = async {
            let mut revs = count(&store, at, at + 20).await;
            etcd.kill(victim);
            revs.extend(count(&store, at + 20, at + 60).await);
            etcd.revive(victim);
            revs
        };
        let (revs, seen) = futures::join!(write, check(&mut watch, at, at + 60));
        wrote.extend(revs);
        saw.extend(seen);
        at += 60;
    }
    assert_eq!(saw, wrote, "every commit once, in order, at the rev that was acknowledged");
    let there = super::listed(&store, "/n/").await;
    assert_eq!(there.len(), at);
    assert!(there.iter().all(|entry| entry.version == 1), "none was done twice");
}

#[tokio::test]
async fn a_member_that_stands_still_is_left() {
    let Some(etcd) = Etcd::with(3, &[]) else { return };
    let (answer, progress) = (Duration::from_secs(1), Duration::from_millis(500));
    let patience = Timeouts { answer, progress, whole: LONG, ..Timeouts::default() };
    let (store, writer) = (etcd.store().await.with_patience(patience), etcd.store().await.with_patience(patience));
    let from = store.rev().await.expect("a rev").next();
    let mut watch = store.watch("/", from).await.expect("a watch");
    let mut wrote = count(&writer, 0, 3).await;
    let mut saw = check(&mut watch, 0, 3).await;
    // All stores ask the first member until it fails.
    etcd.pause(0);
    let (revs, seen) = futures::join!(count(&writer, 3, 30), check(&mut watch, 3, 30));
    wrote.extend(revs);
    saw.extend(seen);
    etcd.resume(0);
    assert_eq!(saw, wrote);
}
