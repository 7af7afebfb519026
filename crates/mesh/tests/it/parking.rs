//! Requests for cold deployments.

use berth_spec::{
    GatewayEvent, Route, RouteChange, Time,
    deployment::Concurrency,
    routes::{OnMiss, Readiness},
};
use futures::future::join_all;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::fixture::{Echo, REQUEST, TestGateway, cold, delta, name, on, revision, until, warm};

#[tokio::test]
async fn one_miss_is_one_demand_and_ready_wakes_all() {
    let mut gateway = TestGateway::new();
    gateway.set(vec![cold("iris")]).await;
    let waiting: Vec<_> = (0..50).map(|_| tokio::task::spawn(gateway.infer("iris", &[]))).collect();
    assert!(gateway.miss("iris").await.waiting >= 1);
    // Refreshed while they wait, with all of them in it.
    while gateway.miss("iris").await.waiting < 50 {}
    gateway.serve("iris", "1", Echo::open()).await;
    let answers = join_all(waiting).await;
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.status == 200)));
}

#[tokio::test]
async fn who_waits_goes_to_the_replica_that_is_here_before_the_controller_says_so() {
    let mut gateway = TestGateway::new();
    gateway.set(vec![on("iris", "1", &[]), cold("named")]).await;
    let waiting = tokio::task::spawn(gateway.infer("iris", &[]));
    gateway.miss("iris").await;
    gateway.replicas.insert(revision("iris", "1"), Echo::open());
    assert_eq!(waiting.await.expect("it ran").status, 200);
    assert_eq!(gateway.get("/v2/models/iris/ready").await.status, 200);
    // One that a route has named and no longer names is being unloaded.
    gateway.set(vec![warm("iris", "1")]).await;
    gateway.set(vec![on("iris", "1", &[])]).await;
    assert_eq!(gateway.get("/v2/models/iris/ready").await.status, 503);
    // One of a revision that no route names answers nobody.
    gateway.replicas.insert(revision("named", "1"), Echo::open());
    let other = gateway.infer("named", &[("berth-timeout-ms", "50")]).await;
    assert_eq!((other.status.as_u16(), other.reason().as_str()), (503, "loading"));
    // Nor one that is here while the plan says why there is none.
    gateway.replicas.insert(revision("off", "1"), Echo::open());
    gateway.set(vec![Route { on_miss: OnMiss::ScaledDown, ..on("off", "1", &[]) }]).await;
    assert_eq!(gateway.infer("off", &[]).await.reason(), "scaled_down");
}

#[tokio::test]
async fn every_waiter_keeps_its_own_deadline() {
    let mut gateway = TestGateway::new();
    gateway.set(vec![cold("iris")]).await;
    let patient = tokio::task::spawn(gateway.infer("iris", &[]));
    let answer = gateway.infer("iris", &[("berth-timeout-ms", "50")]).await;
    assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (503, "loading"), "{answer:?}");
    assert!(!answer.header("retry-after").is_empty());
    gateway.serve("iris", "1", Echo::open()).await;
    assert_eq!(patient.await.expect("it ran").status, 200);
    let bad = gateway.infer("iris", &[("berth-timeout-ms", "soon")]).await;
    assert_eq!(bad.status, 400);
}

#[tokio::test]
async fn a_full_lot_sheds() {
    let mut gateway = TestGateway::new();
    let concurrency = Concurrency { max: None, queue: 2 };
    gateway.set(vec![Route { concurrency, ..cold("iris") }]).await;
    let waiting: Vec<_> = (0..2).map(|_| tokio::task::spawn(gateway.infer("iris", &[]))).collect();
    while gateway.miss("iris").await.waiting < 2 {}
    let answer = gateway.infer("iris", &[]).await;
    assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (503, "queue_full"));
    gateway.serve("iris", "1", Echo::open()).await;
    assert!(join_all(waiting).await.into_iter().all(|answer| answer.is_ok_and(|answer| answer.status == 200)));
}

#[tokio::test]
async fn all_lots_together_are_bounded() {
    let mut gateway = TestGateway::with(|limits| limits.parked = 1);
    gateway.set(vec![cold("a"), cold("b")]).await;
    let waiting = tokio::task::spawn(gateway.infer("a", &[]));
    gateway.miss("a").await;
    assert_eq!(gateway.infer("b", &[]).await.reason(), "queue_full");
    gateway.serve("a", "1", Echo::open()).await;
    assert_eq!(waiting.await.expect("it ran").status, 200);
}

#[tokio::test]
async fn the_verdict_of_the_plan_reaches_who_waits() {
    // Whether it says when to come again: only where the plan tries again by itself.
    let message = "needs 9GiB, the best worker has 2GiB".to_owned();
    let long_ago = Some(Time::ZERO);
    for (verdict, reason, retry_after) in [
        (OnMiss::NoCapacity { message: message.clone(), retry_at: None }, "no_capacity", ""),
        (OnMiss::NoCapacity { message, retry_at: long_ago }, "no_capacity", "1"),
        (OnMiss::Failed { message: "not an ONNX file".to_owned(), retry_at: long_ago }, "load_failed", "1"),
        (OnMiss::ScaledDown, "scaled_down", ""),
        (OnMiss::Restarting { message: "its process died".to_owned(), again_at: Time::ZERO }, "unavailable", "1"),
    ] {
        let mut gateway = TestGateway::new();
        gateway.set(vec![cold("iris")]).await;
        let waiting = tokio::task::spawn(gateway.infer("iris", &[]));
        gateway.miss("iris").await;
        gateway.set(vec![Route { on_miss: verdict, ..cold("iris") }]).await;
        let answer = waiting.await.expect("it ran");
        assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (503, reason), "{answer:?}");
        assert_eq!(answer.header("retry-after"), retry_after, "{answer:?}");
    }
}

#[tokio::test]
async fn a_deployment_that_goes_tells_who_waits() {
    let mut gateway = TestGateway::new();
    gateway.set(vec![cold("iris"), cold("other")]).await;
    let waiting = tokio::task::spawn(gateway.infer("iris", &[]));
    gateway.miss("iris").await;
    let readiness = Readiness { planned: true, ..Readiness::default() };
    gateway.change(RouteChange { unset: vec![name("iris")], readiness, ..delta() }).await;
    assert_eq!(waiting.await.expect("it ran").status, 404);
    assert_eq!(gateway.infer("iris", &[]).await.status, 404);
    // The whole: what it does not name is gone.
    let whole = RouteChange { set: vec![cold("new")], ..RouteChange::default() };
    gateway.change(whole).await;
    assert_eq!(gateway.get("/v2/models/other/ready").await.status, 404);
    assert_eq!(gateway.get("/v2/models/new/ready").await.status, 503);
}

#[tokio::test]
async fn a_replica_that_comes_back_under_an_unchanged_route_is_found() {
    let mut gateway = TestGateway::new();
    let replica = gateway.serve("iris", "1", Echo::open()).await;
    replica.begin_drain();
    gateway.replicas.remove(replica.revision());
    let waiting = tokio::task::spawn(gateway.infer("iris", &[]));
    gateway.miss("iris").await;
    gateway.replicas.insert(revision("iris", "1"), Echo::open());
    assert_eq!(waiting.await.expect("it ran").status, 200);
    assert_eq!(gateway.infer("iris", &[]).await.status, 200);
}

#[tokio::test]
async fn a_client_that_leaves_is_not_waited_for() {
    let mut gateway = TestGateway::new();
    gateway.set(vec![cold("iris")]).await;
    let leaving = tokio::task::spawn(gateway.infer("iris", &[]));
    gateway.miss("iris").await;
    leaving.abort();
    until("it is out", || gateway.handle.inside() == 0).await;
    assert_eq!(gateway.handle.top()[0].parked, 0);
}

#[tokio::test]
async fn metadata_of_a_cold_model_is_a_miss() {
    let mut gateway = TestGateway::new();
    gateway.set(vec![cold("iris")]).await;
    let asked = gateway.request(http::Method::GET, "/v2/models/iris", &[], "");
    let waiting = tokio::task::spawn(asked);
    gateway.miss("iris").await;
    gateway.serve("iris", "1", Echo::open()).await;
    assert_eq!(waiting.await.expect("it ran").json()["platform"], "echo_echo");
}

#[tokio::test]
async fn use_is_told_in_coalesced_words() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::open()).await;
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos();
    for _ in 0..20 {
        assert_eq!(gateway.infer("iris", &[]).await.status, 200);
    }
    let (mut requests, mut words) = (0, 0);
    while requests < 20 {
        if let GatewayEvent::Demand(demands) = gateway.event().await {
            for demand in demands {
                requests += demand.requests;
                words += 1;
                assert!(demand.waiting == 0 && u128::from(demand.last_used.0) >= before, "{demand:?}");
            }
        }
    }
    assert_eq!(requests, 20);
    // On a busy machine they are no matter of a moment; each word takes a second.
    assert!(words < 20, "{words} words for 20 requests");
}

/// The planner must not page out what answers: a request whose coming was told before its body came is told again.
#[tokio::test]
async fn a_request_in_flight_is_known_however_slow_its_body_was() {
    let mut gateway = TestGateway::new();
    let echo = Echo::shut();
    gateway.serve("iris", "1", echo.clone()).await;
    gateway.set(vec![cold("a"), cold("b")]).await;
    let mut stream = TcpStream::connect(gateway.address()).await.expect("it listens");
    let head = format!("POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", REQUEST.len());
    stream.write_all(head.as_bytes()).await.expect("written");
    until("it is used", || gateway.handle.top().iter().any(|row| row.deployment.as_str() == "iris")).await;
    // A miss has everything told that is known.
    let first = tokio::task::spawn(gateway.infer("a", &[("berth-timeout-ms", "50")]));
    gateway.miss("a").await;
    assert_eq!(first.await.expect("it ran").status, 503);
    stream.write_all(REQUEST.as_bytes()).await.expect("written");
    echo.starts().await;
    let second = tokio::task::spawn(gateway.infer("b", &[("berth-timeout-ms", "50")]));
    let (mut told, mut missed) = (false, false);
    while !missed {
        let GatewayEvent::Demand(demands) = gateway.event().await else { continue };
        told |= demands.iter().any(|demand| demand.deployment.as_str() == "iris" && demand.in_flight == 1);
        missed = demands.iter().any(|demand| demand.deployment.as_str() == "b");
    }
    assert!(told);
    assert_eq!(second.await.expect("it ran").status, 503);
}
