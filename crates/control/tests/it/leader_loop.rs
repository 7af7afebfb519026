//! One controller per term: it begins with the term and ends with it, and what it was told goes on in the next one.

use std::{sync::Arc, time::Duration};

use berth_control::{
    Config, Handle, Metrics,
    handle::Error,
    leadership::{Fence, Leadership},
    leadership::{LeaderLoop, LeadershipView},
    store::{Op, Outcome, Store, StoreError, Txn, layout, memory::MemoryStore},
};
use berth_spec::{Epoch, FromController, WorkerId};
use bytes::Bytes;
use prometheus_client::registry::Registry;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::fixture::{apply, empty_inventory, name, worker};

const PATIENCE: Duration = Duration::from_secs(120);

/// Somebody is elected: the key is made anew.
async fn elect(store: &dyn Store) -> Epoch {
    let delete = Txn { compare: vec![], ops: vec![Op::Delete { key: layout::LEADER.to_owned() }] };
    store.commit(delete).await.expect("deleted");
    let put = Op::Put { key: layout::LEADER.to_owned(), value: Bytes::from_static(b"{}") };
    match store.commit(Txn { compare: vec![], ops: vec![put] }).await.expect("stored") {
        Outcome::Committed(rev) => Epoch(rev.0),
        Outcome::Conflict => panic!("nothing was compared"),
    }
}

async fn leads(views: &mut watch::Receiver<LeadershipView>, epoch: Epoch) -> Handle {
    let view = timeout(PATIENCE, views.wait_for(|view| view.leads() == Some(epoch))).await.expect("in time");
    match view.expect("it runs").clone() {
        LeadershipView::Leading { handle, .. } => handle,
        LeadershipView::Following { .. } => panic!("it leads"),
    }
}

#[tokio::test]
async fn a_term_ends_when_the_store_says_so_and_the_next_goes_on_from_there() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let (leadership, leadership_rx) = watch::channel(Leadership::Following { leader: None });
    let metrics = Metrics::register(&mut Registry::default());
    let (terms, mut views) = LeaderLoop::new(Config::default(), Arc::clone(&store), metrics, leadership_rx);
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    tasks.spawn(terms.run(stop.clone()));

    let first = elect(&*store).await;
    leadership.send_replace(Leadership::Leading { epoch: first, fence: Fence::unlimited(first) });
    let handle = leads(&mut views, first).await;
    let info = worker("w", 1);
    let (reports, mut orders) = handle.attach_worker(info.clone()).await.expect("attached");
    assert_eq!(orders.recv().await, Some(FromController::Attached));
    reports.send(empty_inventory(&info)).await.expect("it is read");
    handle.apply(apply("iris", "  replicas: {min: 0, max: 1}\n")).await.expect("applied");

    // Another was elected, and this one has not noticed.
    let second = elect(&*store).await;
    let refused = handle.apply(apply("rose", "")).await.expect_err("it writes nothing any more");
    assert!(matches!(refused, Error::Store(StoreError::Deposed)), "{refused}");
    let declared = store.get(&layout::deployment_key(&name("rose"))).await.expect("read");
    assert!(declared.is_none());
    let another =
        berth_control::build_with(Config::default(), Arc::clone(&store), Metrics::register(&mut Registry::default()));
    let end = stop.child_token();
    tasks.spawn(async move { another.0.run(end).await.map(|_| ()).expect("it runs") });
    another.1.apply(apply("lily", "  replicas: 1\n")).await.expect("the new one declares");
    // What the new one declared the old one sees, plans for, and cannot store.
    let over = timeout(PATIENCE, views.wait_for(|view| view.leads().is_none())).await.expect("in time");
    assert!(matches!(&*over.expect("it runs"), LeadershipView::Following { leader: None }));
    while timeout(PATIENCE, orders.recv()).await.expect("the stream ends").is_some() {}

    let leader = Some((WorkerId::new("other").expect("a name"), second));
    leadership.send_replace(Leadership::Following { leader: leader.clone() });
    let known = timeout(PATIENCE, views.wait_for(|view| view.leader(&info.id) == leader)).await.expect("in time");
    drop(known.expect("it runs"));
    let third = elect(&*store).await;
    leadership.send_replace(Leadership::Leading { epoch: third, fence: Fence::unlimited(third) });
    let handle = leads(&mut views, third).await;
    assert!(handle.get(&name("iris")).await.is_ok() && handle.get(&name("lily")).await.is_ok());
    leadership.send_replace(Leadership::Following { leader: None });
    timeout(PATIENCE, views.wait_for(|view| view.leads().is_none())).await.expect("in time").expect("it runs");
    stop.cancel();
    while tasks.join_next().await.is_some() {}
}
