//! Destinations of requests: by routes, hints, regions, and what was kept of them.

use std::{
    sync::atomic::Ordering::SeqCst,
    time::{Duration, Instant},
};

use berth_mesh::Config;
use berth_peer::Hint;
use berth_spec::{GatewayEvent, Health, Route, RouteChange, WorkerId, routes::Version};

use http::Method;

use super::town::{Town, metric, nothing, worker};
use crate::fixture::{Echo, House, cold, on, revision, until};

#[tokio::test]
async fn the_own_replica_answers_while_it_is_no_worse() {
    let mut town = Town::new(&["a", "b"]).await;
    let (mine, other) = (Echo::open(), Echo::open());
    town.serve("iris", &[("a", &mine), ("b", &other)]).await;
    for _ in 0..20 {
        assert_eq!(town.house("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!((mine.runs.load(SeqCst), other.runs.load(SeqCst)), (20, 0));
    // It drains: the other one takes over without an error.
    town.house("a").replicas.get(&revision("iris", "1")).expect("there").begin_drain();
    for _ in 0..20 {
        assert_eq!(town.house("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!(other.runs.load(SeqCst), 20);
}

#[tokio::test]
async fn a_busy_replica_sends_others_elsewhere() {
    let mut town = Town::new(&["a", "b"]).await;
    let (mine, other) = (Echo::shut(), Echo::open());
    town.serve("iris", &[("a", &mine), ("b", &other)]).await;
    let asked: Vec<_> = (0..12).map(|_| tokio::spawn(town.house("a").infer("iris", &[]))).collect();
    until("the other is asked", || other.runs.load(SeqCst) > 0).await;
    mine.gate.close();
    for asked in asked {
        assert_eq!(asked.await.expect("it ran").status, 200);
    }
}

/// Use is told by the gateway that the client spoke to, and by nobody else.
#[tokio::test]
async fn use_is_told_once() {
    let mut town = Town::new(&["a", "b"]).await;
    let held = Echo::shut();
    town.serve("iris", &[("b", &held)]).await;
    let asked = tokio::spawn(town.house("a").infer("iris", &[]));
    held.starts().await;
    let told = loop {
        if let GatewayEvent::Demand(demands) = town.house("a").event().await
            && let Some(demand) = demands.into_iter().find(|demand| demand.in_flight > 0)
        {
            break demand;
        }
    };
    assert_eq!((told.in_flight, told.waiting), (1, 0));
    held.gate.close();
    assert_eq!(asked.await.expect("it ran").status, 200);
    while let Ok(event) = town.house("b").events.try_recv() {
        assert!(!matches!(event, GatewayEvent::Demand(_)), "{event:?}");
    }
    assert_eq!(metric(town.house("b"), "berth_gateway_requests_total", &["iris"]), 0);
    assert_eq!(metric(town.house("b"), "berth_gateway_hops_total", &["run"]), 1);
    assert_eq!(metric(town.house("a"), "berth_gateway_requests_total", &["iris", "200"]), 1);
}

/// A worker's hint takes effect before the controller's route does.
#[tokio::test]
async fn hints_come_before_routes() {
    let mut town = Town::new(&["a", "b", "c"]).await;
    let (one, two) = (Echo::open(), Echo::open());
    // A line is there: a hint holds for two seconds, which a handshake may take on a busy machine.
    town.serve("rose", &[("b", &Echo::open())]).await;
    assert_eq!(town.house("a").infer("rose", &[]).await.status, 200);
    let version = Version { name: "1".to_owned(), revision: revision("iris", "1"), ready: Vec::new() };
    town.house("a").set(vec![Route { versions: vec![version], ..cold("iris") }]).await;
    let asked = tokio::spawn(town.house("a").infer("iris", &[]));
    assert_eq!(town.house("a").miss("iris").await.waiting, 1);
    town.put("b", "iris", &one);
    let hint = |worker: &str, ready| Hint {
        worker: WorkerId::new(worker).expect("a name"),
        revision: revision("iris", "1"),
        ready,
    };
    town.node("a").roster.hint(hint("b", true));
    assert_eq!(asked.await.expect("it ran").status, 200);
    assert_eq!(one.runs.load(SeqCst), 1);
    // A route that knows less does not undo a fresh hint.
    let version = Version { name: "1".to_owned(), revision: revision("iris", "1"), ready: Vec::new() };
    town.house("a").set(vec![Route { versions: vec![version], ..cold("iris") }]).await;
    assert_eq!(town.house("a").infer("iris", &[]).await.status, 200);
    // One that drains is not asked.
    town.put("c", "iris", &two);
    town.house("a").set(vec![on("iris", "1", &["b", "c"])]).await;
    town.node("a").roster.hint(hint("b", false));
    let before = one.runs.load(SeqCst);
    while two.runs.load(SeqCst) < 20 {
        assert_eq!(town.house("a").infer("iris", &[]).await.status, 200);
    }
    assert!(one.runs.load(SeqCst) - before <= 20, "before it was heard");
    let heard = one.runs.load(SeqCst);
    for _ in 0..20 {
        assert_eq!(town.house("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!(one.runs.load(SeqCst), heard);
    assert_eq!(metric(town.house("a"), "berth_gateway_retries_total", &[]), 0);
}

#[tokio::test]
async fn the_own_region_first_and_another_when_it_is_gone() {
    let regions = [("a", Some("eu")), ("b", Some("us")), ("c", Some("eu"))];
    let mut town = Town::in_regions(&regions, |_, _| {}).await;
    let (far, near) = (Echo::open(), Echo::open());
    town.serve("iris", &[("b", &far), ("c", &near)]).await;
    for _ in 0..20 {
        assert_eq!(town.house("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!((far.runs.load(SeqCst), near.runs.load(SeqCst)), (0, 20));
    town.node("c").kill();
    town.node("a").roster.set_health(&worker("c"), Health::Failed);
    for _ in 0..20 {
        assert_eq!(town.house("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!(far.runs.load(SeqCst), 20);
    assert_eq!(metric(town.house("a"), "berth_gateway_forwards_total", &["answered", "other"]), 20);
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
    let mut town = Town::with(&["a", "b"], keep).await;
    let echo = Echo::open();
    town.serve("iris", &[("b", &echo)]).await;
    town.house("a").set(vec![cold("rose")]).await;
    town.house("a").shutdown.cancel();
    town.house("a").ended().await;
    assert!(file.exists(), "what changed is written at the end");
    let mut again = Town::with(&["a", "b"], keep).await;
    again.put("b", "iris", &echo);
    // Nobody has said anything yet.
    again.house("a").comes_to(200, |house| house.request(Method::GET, "/v2/models/iris/ready", &[], "")).await;
    assert_eq!(again.house("a").infer("iris", &[]).await.status, 200);
    assert!(again.house("a").handle.ready());
    // The controller's first word must be the whole, and then counts alone.
    again.house("a").send(RouteChange { seq: 8, base: Some(7), ..RouteChange::default() }).await;
    while !matches!(again.house("a").event().await, GatewayEvent::AskWhole) {}
    again.house("a").send(RouteChange { seq: 9, ..nothing() }).await;
    again.house("a").comes_to(404, |house| house.infer("iris", &[])).await;
}

#[tokio::test]
async fn a_damaged_file_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("routes");
    fs_err::write(&file, b"berthrt\x01garbage").expect("written");
    let mut config = Config::new(([127, 0, 0, 1], 0).into());
    config.routes_file = Some(file);
    let mut house = House::of("a", config, None);
    house.set(vec![cold("iris")]).await;
    assert_eq!(house.get("/v2/models/iris/ready").await.status, 503);
}

/// While it says that it is not ready it still takes what comes.
#[tokio::test]
async fn a_lame_duck_serves() {
    // Long enough for whatever is asked of it, and short enough to wait for its end.
    let (long, short) = (Duration::from_secs(3_600), Duration::from_millis(300));
    let lame = |name: &str, config: &mut Config| config.limits.lame_duck = if name == "a" { long } else { short };
    let mut town = Town::with(&["a", "b"], lame).await;
    let echo = Echo::open();
    town.serve("iris", &[("b", &echo)]).await;
    town.house("a").shutdown.cancel();
    town.house("a").leaves().await;
    assert_eq!(town.house("a").get("/v2/health/ready").await.status, 503);
    assert_eq!(town.house("a").infer("iris", &[]).await.status, 200);
    let before = Instant::now();
    town.house("b").shutdown.cancel();
    town.house("b").ended().await;
    assert!(before.elapsed() >= short);
}
