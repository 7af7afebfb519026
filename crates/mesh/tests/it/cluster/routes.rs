//! Destinations of requests: by routes, hints, regions, and what was kept of them.

use std::{
    sync::atomic::Ordering::SeqCst,
    time::{Duration, Instant},
};

use berth_mesh::Config;
use berth_peer::Hint;
use berth_spec::{GatewayEvent, Health, Route, RouteChange, WorkerId, routes::Version};

use http::Method;

use super::nodes::{TestCluster, metric, nothing, worker};
use crate::fixture::{Echo, TestGateway, cold, on, revision, until};

#[tokio::test]
async fn the_own_replica_answers_while_it_is_no_worse() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let (mine, other) = (Echo::open(), Echo::open());
    cluster.serve("iris", &[("a", &mine), ("b", &other)]).await;
    for _ in 0..20 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!((mine.runs.load(SeqCst), other.runs.load(SeqCst)), (20, 0));
    // It drains: the other one takes over without an error.
    cluster.gateway("a").replicas.get(&revision("iris", "1")).expect("there").begin_drain();
    for _ in 0..20 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!(other.runs.load(SeqCst), 20);
}

#[tokio::test]
async fn a_busy_replica_sends_others_elsewhere() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let (mine, other) = (Echo::shut(), Echo::open());
    cluster.serve("iris", &[("a", &mine), ("b", &other)]).await;
    let asked: Vec<_> = (0..12).map(|_| tokio::spawn(cluster.gateway("a").infer("iris", &[]))).collect();
    until("the other is asked", || other.runs.load(SeqCst) > 0).await;
    mine.gate.close();
    for asked in asked {
        assert_eq!(asked.await.expect("it ran").status, 200);
    }
}

/// Use is told by the gateway that the client spoke to, and by nobody else.
#[tokio::test]
async fn use_is_told_once() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let held = Echo::shut();
    cluster.serve("iris", &[("b", &held)]).await;
    let asked = tokio::spawn(cluster.gateway("a").infer("iris", &[]));
    held.starts().await;
    let told = loop {
        if let GatewayEvent::Demand(demands) = cluster.gateway("a").event().await
            && let Some(demand) = demands.into_iter().find(|demand| demand.in_flight > 0)
        {
            break demand;
        }
    };
    assert_eq!((told.in_flight, told.waiting), (1, 0));
    held.gate.close();
    assert_eq!(asked.await.expect("it ran").status, 200);
    while let Ok(event) = cluster.gateway("b").events.try_recv() {
        assert!(!matches!(event, GatewayEvent::Demand(_)), "{event:?}");
    }
    assert_eq!(metric(cluster.gateway("b"), "berth_gateway_requests_total", &["iris"]), 0);
    assert_eq!(metric(cluster.gateway("b"), "berth_gateway_hops_total", &["run"]), 1);
    assert_eq!(metric(cluster.gateway("a"), "berth_gateway_requests_total", &["iris", "200"]), 1);
}

/// A worker's hint takes effect before the controller's route does.
#[tokio::test]
async fn hints_come_before_routes() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (one, two) = (Echo::open(), Echo::open());
    // A line is there: a hint holds for two seconds, which a handshake may take on a busy machine.
    cluster.serve("rose", &[("b", &Echo::open())]).await;
    assert_eq!(cluster.gateway("a").infer("rose", &[]).await.status, 200);
    let version = Version { name: "1".to_owned(), revision: revision("iris", "1"), ready: Vec::new() };
    cluster.gateway("a").set(vec![Route { versions: vec![version], ..cold("iris") }]).await;
    let asked = tokio::spawn(cluster.gateway("a").infer("iris", &[]));
    assert_eq!(cluster.gateway("a").miss("iris").await.waiting, 1);
    cluster.put("b", "iris", &one);
    let hint = |worker: &str, ready| Hint {
        worker: WorkerId::new(worker).expect("a name"),
        revision: revision("iris", "1"),
        ready,
    };
    cluster.node("a").roster.hint(hint("b", true));
    assert_eq!(asked.await.expect("it ran").status, 200);
    assert_eq!(one.runs.load(SeqCst), 1);
    // A route that knows less does not undo a fresh hint.
    let version = Version { name: "1".to_owned(), revision: revision("iris", "1"), ready: Vec::new() };
    cluster.gateway("a").set(vec![Route { versions: vec![version], ..cold("iris") }]).await;
    assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    // One that drains is not asked.
    cluster.put("c", "iris", &two);
    cluster.gateway("a").set(vec![on("iris", "1", &["b", "c"])]).await;
    cluster.node("a").roster.hint(hint("b", false));
    let before = one.runs.load(SeqCst);
    while two.runs.load(SeqCst) < 20 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    assert!(one.runs.load(SeqCst) - before <= 20, "before it was heard");
    let heard = one.runs.load(SeqCst);
    for _ in 0..20 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!(one.runs.load(SeqCst), heard);
    assert_eq!(metric(cluster.gateway("a"), "berth_gateway_retries_total", &[]), 0);
}

#[tokio::test]
async fn the_own_region_first_and_another_when_it_is_gone() {
    let regions = [("a", Some("eu")), ("b", Some("us")), ("c", Some("eu"))];
    let mut cluster = TestCluster::in_regions(&regions, |_, _| {}).await;
    let (far, near) = (Echo::open(), Echo::open());
    cluster.serve("iris", &[("b", &far), ("c", &near)]).await;
    for _ in 0..20 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!((far.runs.load(SeqCst), near.runs.load(SeqCst)), (0, 20));
    cluster.node("c").kill();
    cluster.node("a").roster.set_health(&worker("c"), Health::Failed);
    for _ in 0..20 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!(far.runs.load(SeqCst), 20);
    assert_eq!(metric(cluster.gateway("a"), "berth_gateway_forwards_total", &["answered", "other"]), 20);
}

/// A gateway that starts while no controller answers serves by what it knew last.
#[tokio::test]
async fn the_last_routes_outlive_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("routes");
    let keep = |name: &str, config: &mut Config| {
        if name == "a" {
            config.routes_file = Some(file.clone());
        }
    };
    let mut cluster = TestCluster::with(&["a", "b"], keep).await;
    let echo = Echo::open();
    cluster.serve("iris", &[("b", &echo)]).await;
    cluster.gateway("a").set(vec![cold("rose")]).await;
    cluster.gateway("a").shutdown.cancel();
    cluster.gateway("a").ended().await;
    assert!(file.exists(), "what changed is written at the end");
    let mut again = TestCluster::with(&["a", "b"], keep).await;
    again.put("b", "iris", &echo);
    // Nobody has said anything yet.
    again.gateway("a").comes_to(200, |gateway| gateway.request(Method::GET, "/v2/models/iris/ready", &[], "")).await;
    assert_eq!(again.gateway("a").infer("iris", &[]).await.status, 200);
    assert!(again.gateway("a").handle.ready());
    // The controller's first word must be the whole, and then counts alone.
    again.gateway("a").send(RouteChange { seq: 8, base: Some(7), ..RouteChange::default() }).await;
    while !matches!(again.gateway("a").event().await, GatewayEvent::Resync) {}
    again.gateway("a").send(RouteChange { seq: 9, ..nothing() }).await;
    again.gateway("a").comes_to(404, |gateway| gateway.infer("iris", &[])).await;
}

#[tokio::test]
async fn a_damaged_file_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("routes");
    fs_err::write(&file, b"berthrt\x01garbage").expect("written");
    let mut config = Config::new(([127, 0, 0, 1], 0).into());
    config.routes_file = Some(file);
    let mut gateway = TestGateway::of("a", config, None);
    gateway.set(vec![cold("iris")]).await;
    assert_eq!(gateway.get("/v2/models/iris/ready").await.status, 503);
}

/// While it says that it is not ready it still takes what comes.
#[tokio::test]
async fn a_lame_duck_serves() {
    // Long enough for whatever is asked of it, and short enough to wait for its end.
    let (long, short) = (Duration::from_secs(3_600), Duration::from_millis(300));
    let lame = |name: &str, config: &mut Config| config.limits.lame_duck = if name == "a" { long } else { short };
    let mut cluster = TestCluster::with(&["a", "b"], lame).await;
    let echo = Echo::open();
    cluster.serve("iris", &[("b", &echo)]).await;
    cluster.gateway("a").shutdown.cancel();
    cluster.gateway("a").leaves().await;
    assert_eq!(cluster.gateway("a").get("/v2/health/ready").await.status, 503);
    assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    let before = Instant::now();
    cluster.gateway("b").shutdown.cancel();
    cluster.gateway("b").ended().await;
    assert!(before.elapsed() >= short);
}
