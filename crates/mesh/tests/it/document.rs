//! Models that answer in JSON of their own, at paths of their own.

use std::{io::Write as _, sync::Arc, time::Duration};

use berth_spec::{Route, RouteChange, routes::OnMiss};
use http::Method;

use crate::{
    cluster::nodes::{TestCluster, metric},
    fixture::{Echo, REQUEST, TestGateway, cold, delta, name, on, revision, warm},
};

const PATH: &str = "/v1/sentiment";
const DOCUMENT: &str = r#"{"text":"good"}"#;

fn at(path: &str, route: Route) -> Route {
    Route { endpoint: Some(path.into()), ..route }
}

#[tokio::test]
async fn a_document_is_answered_at_the_path_that_is_declared() {
    let mut gateway = TestGateway::new();
    gateway.replicas.insert(revision("sentiment", "1.2.3"), Echo::open());
    gateway.set(vec![at(PATH, warm("sentiment", "1.2.3")), warm("plain", "1")]).await;
    let answer = gateway.post(PATH, DOCUMENT).await;
    assert_eq!((answer.status.as_u16(), answer.body.as_ref()), (200, DOCUMENT.as_bytes()));
    assert_eq!((answer.header("berth-deployment"), answer.header("content-type")), ("sentiment", "application/json"));
    assert_eq!(gateway.post("/v1/sentiment/", DOCUMENT).await.status, 200, "a slash at the end is as good as none");

    let described = gateway.get(PATH).await;
    let expected = serde_json::json!({
        "deployment": "sentiment", "version": "1.2.3", "ready": true,
        "input_schema": {"type": "object"}, "output_schema": {"type": "object"},
    });
    assert_eq!((described.status.as_u16(), described.json()), (200, expected));

    let wrong = gateway.post(PATH, r#"{"text":7}"#).await;
    assert_eq!((wrong.status.as_u16(), wrong.reason().as_str()), (422, "unprocessable"));
    let violations = serde_json::json!([{"path": "/text", "message": "7 is no string"}]);
    assert_eq!(wrong.json()["violations"], violations);
    let failed = gateway.post(PATH, "fail").await;
    assert_eq!((failed.status.as_u16(), failed.header("berth-deployment")), (500, "sentiment"));

    let verb = gateway.request(Method::DELETE, PATH, &[], "").await;
    assert_eq!((verb.status.as_u16(), verb.header("allow")), (405, "GET, HEAD, POST"));
    let nowhere = gateway.post("/v1/nothing", DOCUMENT).await;
    assert_eq!(nowhere.status, 404);
    assert!(nowhere.json()["error"].as_str().expect("text").ends_with("models answer at /v1/sentiment"));
    assert_eq!(gateway.post("/v2/models/sentiment/call", DOCUMENT).await.status, 404, "nodes alone say that");

    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(DOCUMENT.as_bytes()).expect("room");
    let gzip = gzip.finish().expect("room");
    let plain = gateway.request(Method::POST, PATH, &[("content-encoding", "gzip")], gzip).await;
    assert_eq!((plain.status.as_u16(), plain.body.as_ref()), (200, DOCUMENT.as_bytes()));
}

#[tokio::test]
async fn paths_follow_their_deployments() {
    let mut gateway = TestGateway::new();
    gateway.replicas.insert(revision("a", "1"), Echo::open());
    gateway.set(vec![at("/v1/a", warm("a", "1"))]).await;
    assert_eq!(gateway.post("/v1/a", DOCUMENT).await.status, 200);
    gateway.set(vec![at("/v1/b", warm("a", "1"))]).await;
    assert_eq!(gateway.post("/v1/a", DOCUMENT).await.status, 404);
    assert_eq!(gateway.post("/v1/b", DOCUMENT).await.status, 200);
    gateway.set(vec![warm("a", "1")]).await;
    assert_eq!(gateway.post("/v1/b", DOCUMENT).await.status, 404);
    gateway.set(vec![at("/v1/b", warm("a", "1"))]).await;
    gateway.change(RouteChange { unset: vec![name("a")], ..delta() }).await;
    assert_eq!(gateway.post("/v1/b", DOCUMENT).await.status, 404, "it was deleted");
}

#[tokio::test]
async fn a_miss_waits_and_who_is_disabled_is_refused_at_once() {
    let mut gateway = TestGateway::new();
    let off = Route { on_miss: OnMiss::ScaledDown, ..cold("fraud") };
    gateway.set(vec![at(PATH, cold("sentiment")), at("/v1/fraud", off)]).await;
    let refused = gateway.post("/v1/fraud", DOCUMENT).await;
    assert_eq!((refused.status.as_u16(), refused.reason().as_str()), (503, "scaled_down"));
    assert_eq!(refused.header("retry-after"), "", "trying again does not help");
    assert!(refused.json()["error"].as_str().expect("text").contains("is disabled"), "{refused:?}");
    assert_eq!(gateway.get(PATH).await.json()["ready"], false, "asking what it is loads nothing");

    let parked = tokio::spawn(gateway.request(Method::POST, PATH, &[], DOCUMENT));
    assert_eq!(gateway.miss("sentiment").await.waiting, 1);
    gateway.replicas.insert(revision("sentiment", "1"), Echo::open());
    gateway.set(vec![at(PATH, warm("sentiment", "1"))]).await;
    assert_eq!(parked.await.expect("no panic").status, 200);

    let full =
        Route { concurrency: berth_spec::deployment::Concurrency { max: Some(1), queue: 1 }, ..warm("sentiment", "1") };
    let shut = Echo::shut();
    gateway.replicas.insert(revision("sentiment", "1"), Arc::clone(&shut) as Arc<Echo>);
    gateway.set(vec![at(PATH, full)]).await;
    let inside = tokio::spawn(gateway.request(Method::POST, PATH, &[], DOCUMENT));
    shut.starts().await;
    assert_eq!(gateway.post(PATH, DOCUMENT).await.reason(), "queue_full");
    let late = gateway.request(Method::POST, PATH, &[("berth-timeout-ms", "1")], DOCUMENT).await;
    assert_eq!(late.reason(), "queue_full", "limits come before deadlines");
    shut.gate.close();
    assert_eq!(inside.await.expect("no panic").status, 200);
}

#[tokio::test]
async fn it_is_forwarded_once_with_its_body_untouched() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let echo = Echo::open();
    cluster.put("b", "sentiment", &echo);
    for node in &mut cluster.nodes {
        node.gateway.set(vec![at(PATH, on("sentiment", "1", &["b"]))]).await;
    }
    let body = format!(r#"{{"text":"{}"}}"#, "x".repeat(300_000));
    for (sent, status) in [(DOCUMENT, 200), (body.as_str(), 200), (r#"{"text":7}"#, 422), ("fail", 500)] {
        let answer = cluster.gateway("a").post(PATH, sent.to_owned()).await;
        assert_eq!((answer.status.as_u16(), answer.header("berth-deployment")), (status, "sentiment"));
        if status == 200 {
            assert_eq!(answer.body.as_ref(), sent.as_bytes());
        }
    }
    assert_eq!(cluster.gateway("a").post(PATH, r#"{"text":7}"#).await.json()["violations"][0]["path"], "/text");
    assert_eq!(metric(cluster.gateway("a"), "berth_gateway_requests_total", &["rest"]), 5, "counted as any request");
    let described = cluster.gateway("a").get(PATH).await.json();
    assert_eq!((&described["ready"], &described["input_schema"]), (&true.into(), &serde_json::Value::Null));
}

#[tokio::test]
async fn of_several_at_one_path_the_one_in_the_own_region_answers() {
    let places = [("a", Some("eu")), ("b", Some("eu")), ("c", Some("us"))];
    let mut cluster = TestCluster::in_regions(&places, |_, _| {}).await;
    let echo = Echo::open();
    cluster.put("c", "us", &echo);
    cluster.put("b", "eu", &echo);
    let routes = |eu: Route, us: Route| vec![at(PATH, eu), at(PATH, us), at(PATH, cold("zz"))];
    let asked = |(eu, us): (Route, Route)| (routes(eu, us), ());
    let cases = [
        ("eu", asked((on("eu", "1", &["b"]), on("us", "1", &["c"])))),
        ("us", asked((cold("eu"), on("us", "1", &["c"])))),
    ];
    for (wanted, (routes, ())) in cases {
        cluster.gateway("a").set(routes).await;
        let answer = cluster.gateway("a").post(PATH, DOCUMENT).await;
        assert_eq!((answer.status.as_u16(), answer.header("berth-deployment")), (200, wanted));
    }
    let off = Route { on_miss: OnMiss::ScaledDown, ..cold("eu") };
    cluster.gateway("a").set(routes(off, cold("us"))).await;
    let described = cluster.gateway("a").get(PATH).await;
    assert_eq!(described.header("berth-deployment"), "us", "what a request loads goes before what is disabled");
    assert_eq!(described.json()["deployments"], serde_json::json!(["eu", "us", "zz"]));
    let waits = cluster.gateway("a").request(Method::POST, PATH, &[("berth-timeout-ms", "1")], REQUEST);
    let waited = tokio::time::timeout(Duration::from_secs(20), waits).await.expect("within its deadline");
    assert_eq!(waited.header("berth-deployment"), "us");
}
