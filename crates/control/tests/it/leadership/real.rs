//! Candidates on a real etcd: who takes over when, and what a leader that is not one any more can still write.

use std::{sync::Arc, time::Duration};

use berth_control::{
    leadership::{CandidateInfo, Election, Fence, Leadership, Policy},
    store::{
        Compare, Outcome, Rev, Store, StoreError, Txn, etcd::EtcdConfig, fenced::Fenced, layout::LEADER,
        memory::MemoryStore,
    },
};
use berth_spec::{Epoch, WorkerId};
use futures::FutureExt;
use tokio::sync::watch;

use crate::{
    etcd::{Etcd, Proxy},
    fixture::{delete, put, put_all},
};

/// Limit for events on a machine that compiles beside the tests.
const PATIENCE: Duration = Duration::from_secs(120);

fn me(name: &str) -> CandidateInfo {
    CandidateInfo {
        name: WorkerId::new(name).expect("a name"),
        peer: "127.0.0.1:7947".to_owned(),
        rules: String::new(),
    }
}

async fn stand(etcd: &Etcd, name: &str) -> (watch::Receiver<Leadership>, Election) {
    Election::start(&etcd.store().await, me(name), Policy::default())
}

/// Waits until it leads.
async fn leads(leadership_rx: &mut watch::Receiver<Leadership>) -> (Epoch, Fence) {
    let led = tokio::time::timeout(
        PATIENCE,
        leadership_rx.wait_for(|leadership| matches!(leadership, Leadership::Leading { .. })),
    );
    match &*led.await.expect("in time").expect("it runs") {
        Leadership::Leading { epoch, fence } => (*epoch, fence.clone()),
        Leadership::Following { .. } => unreachable!("it was waited for"),
    }
}

/// Waits until it follows the named one.
async fn follows(leadership_rx: &mut watch::Receiver<Leadership>, name: &str) -> Epoch {
    let named = |leadership: &Leadership| matches!(leadership, Leadership::Following { leader: Some((leader, _)) } if leader.as_str() == name);
    let leadership = tokio::time::timeout(PATIENCE, leadership_rx.wait_for(named)).await;
    match &*leadership.expect("in time").expect("it runs") {
        Leadership::Following { leader: Some((_, epoch)) } => *epoch,
        other => unreachable!("it was waited for: {other:?}"),
    }
}

/// Waits until it does not lead.
async fn steps_down(leadership_rx: &mut watch::Receiver<Leadership>) {
    let follows = tokio::time::timeout(
        PATIENCE,
        leadership_rx.wait_for(|leadership| matches!(leadership, Leadership::Following { .. })),
    );
    drop(follows.await.expect("in time").expect("it runs"));
}

#[tokio::test]
async fn a_standby_takes_over_from_a_leader_that_is_gone() {
    let Some(etcd) = Etcd::start() else { return };
    let (mut a, first) = stand(&etcd, "a").await;
    let (epoch, fence) = leads(&mut a).await;
    let (mut b, _second) = stand(&etcd, "b").await;
    assert_eq!(follows(&mut b, "a").await, epoch);
    // Like a crash: nothing is given back, and nothing is renewed.
    drop(first);
    let (later, _) = leads(&mut b).await;
    assert!(later > epoch && !fence.holds());
}

#[tokio::test]
async fn who_resigns_hands_over_at_once() {
    let Some(etcd) = Etcd::start() else { return };
    // Who waited for the end of the term would wait too long.
    let long = Policy { ttl: PATIENCE * 10, ..Policy::default() };
    let (mut a, first) = Election::start(&etcd.store().await, me("a"), long);
    leads(&mut a).await;
    let (mut b, second) = Election::start(&etcd.store().await, me("b"), long);
    follows(&mut b, "a").await;
    let (_, (later, _)) = futures::join!(first.resign(), leads(&mut b));
    // A standby that resigns changes nothing.
    let (mut c, third) = stand(&etcd, "c").await;
    assert_eq!(follows(&mut c, "b").await, later);
    third.resign().await;
    assert!(matches!(&*b.borrow(), Leadership::Leading { epoch, .. } if *epoch == later));
    second.resign().await;
    assert_eq!(etcd.store().await.get(LEADER).await.expect("a read"), None);
}

#[tokio::test]
async fn a_leader_that_is_cut_off_steps_down_before_another_leads() {
    let Some(etcd) = Etcd::start() else { return };
    let proxy = Proxy::before(&etcd.endpoints()[0]).await;
    let store = etcd.open(EtcdConfig { endpoints: vec![proxy.address()], ..etcd.config() }).await;
    let (mut a, _first) = Election::start(&store, me("a"), Policy::default());
    let (epoch, fence) = leads(&mut a).await;
    let (mut b, _second) = stand(&etcd, "b").await;
    follows(&mut b, "a").await;
    proxy.mute();
    let stepped_down = async {
        steps_down(&mut a).await;
        assert!(!fence.holds());
    };
    let took_over = async {
        let (later, _) = leads(&mut b).await;
        // Whoever hears of it first: what the earlier one writes from now on it does not even send.
        assert!(later > epoch && !fence.holds());
    };
    futures::join!(stepped_down, took_over);
    proxy.cut();
    follows(&mut a, "b").await;
}

#[tokio::test]
async fn a_leader_stays_through_a_member_that_dies() {
    let Some(mut etcd) = Etcd::with(3, &[]) else { return };
    // A busy machine may stand still for as long as a term lasts otherwise.
    let policy = Policy { ttl: Policy::default().ttl * 4, ..Policy::default() };
    let (mut a, _first) = Election::start(&etcd.store().await, me("a"), policy);
    let (epoch, _) = leads(&mut a).await;

    let leader = etcd.leader().await;
    etcd.kill((leader + 1) % 3);
    let (mut b, _second) = stand(&etcd, "b").await;
    assert_eq!(follows(&mut b, "a").await, epoch);
    // Two renewals later it still leads.
    let gone =
        tokio::time::timeout(policy.ttl, a.wait_for(|leadership| matches!(leadership, Leadership::Following { .. })))
            .await;
    assert!(gone.is_err(), "it lost its term");
}

#[tokio::test]
async fn the_death_of_etcds_own_leader_costs_one_term_at_most() {
    let Some(mut etcd) = Etcd::with(3, &[]) else { return };
    let (mut a, _first) = stand(&etcd, "a").await;
    let (epoch, _) = leads(&mut a).await;
    let (mut b, _second) = stand(&etcd, "b").await;
    follows(&mut b, "a").await;
    let store = etcd.patient_store().await;
    let leader = etcd.leader().await;
    etcd.kill(leader);
    // A write tells who leads; with nobody, or one that is deposed meanwhile, there is another to wait for.
    let later = loop {
        let (term, fence) = tokio::select! {
            led = leads(&mut a) => led,
            led = leads(&mut b) => led,
        };
        // It compares what it writes, so that it can be sent again where the answer is lost.
        let compare = vec![Compare::Modified { key: "/a".to_owned(), rev: Rev::NONE }];
        let txn = Txn { compare, ops: vec![put("/a")] };
        match Fenced::new(Arc::new(store.clone()), fence).commit(txn).await {
            Ok(outcome) => {
                assert!(matches!(outcome, Outcome::Committed(_)));
                break term;
            }
            Err(StoreError::Deposed) => {
                let both = [a.changed().boxed(), b.changed().boxed()];
                let heard = tokio::time::timeout(PATIENCE, futures::future::select_all(both));
                heard.await.expect("in time").0.expect("it runs");
            }
            // The answer was lost with the member that would have given it: what is there tells.
            Err(StoreError::Uncertain { .. }) => {
                if store.get("/a").await.expect("a read").is_some() {
                    break term;
                }
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(later >= epoch);
}

#[tokio::test]
async fn one_leads_again_after_etcd_was_gone() {
    let Some(mut etcd) = Etcd::start() else { return };
    let (mut a, _first) = stand(&etcd, "a").await;
    let (epoch, fence) = leads(&mut a).await;
    etcd.kill(0);
    steps_down(&mut a).await;
    assert!(!fence.holds());
    etcd.revive(0);
    let (later, fence) = leads(&mut a).await;
    assert!(later > epoch && fence.holds());
}

#[tokio::test]
async fn what_a_deposed_leader_writes_does_not_land() {
    let Some(etcd) = Etcd::start() else { return };
    let store = etcd.store().await;
    let (mut a, first) = stand(&etcd, "a").await;
    let (_, fence) = leads(&mut a).await;
    let term = Fenced::new(Arc::new(store.clone()), fence.clone());
    put_all(&term, &["/a"]).await;
    first.resign().await;
    let late = Txn { compare: vec![], ops: vec![put("/late")] };
    assert!(matches!(term.commit(late.clone()).await, Err(StoreError::Deposed)), "it knows");
    // One that does not know: its clock stood still.
    let unaware = Fenced::new(Arc::new(store.clone()), Fence::unlimited(fence.epoch()));
    assert!(matches!(unaware.commit(late.clone()).await, Err(StoreError::Deposed)), "nobody leads");
    let (mut b, _second) = stand(&etcd, "b").await;
    leads(&mut b).await;
    assert!(matches!(unaware.commit(late).await, Err(StoreError::Deposed)), "another leads");
    assert_eq!(store.get("/late").await.expect("a read"), None);
}

#[tokio::test]
async fn a_conflict_within_the_term_is_only_that() {
    let store = Arc::new(MemoryStore::default());
    put_all(&*store, &[LEADER, "/a"]).await;
    let fenced = Fenced::new(Arc::clone(&store) as Arc<dyn Store>, Fence::unlimited(Epoch(1)));
    let conflicting = Compare::Modified { key: "/a".to_owned(), rev: Rev::NONE };
    let txn = Txn { compare: vec![conflicting], ops: vec![put("/b")] };
    assert_eq!(fenced.commit(txn.clone()).await.expect("an answer"), Outcome::Conflict);
    put_all(&fenced, &["/c"]).await;
    delete(&*store, LEADER).await;
    assert!(matches!(fenced.commit(txn).await, Err(StoreError::Deposed)));
}
