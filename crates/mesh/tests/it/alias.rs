//! Aliases over the wire: who answers, under which name, and what is told of it.

use std::{collections::BTreeMap, sync::Arc};

use berth_spec::{
    RouteChange,
    routes::{AliasRoute, Stickiness},
};
use berth_wire::oip::{self as wire, InferParameter, infer_parameter::ParameterChoice};
use http::Method;
use prometheus_client::encoding::text::encode;
use serde_json::json;
use tokio_stream::StreamExt as _;

use crate::{
    cluster::nodes::TestCluster,
    fixture::{Echo, TestGateway, cold, delta, name, revision, warm},
    grpc,
};

fn alias(called: &str, targets: &[(&str, u32)], sticky: Stickiness) -> AliasRoute {
    let targets = targets.iter().map(|(target, weight)| (name(target), *weight)).collect();
    AliasRoute { name: name(called), targets, sticky }
}

async fn set(gateway: &mut TestGateway, aliases: Vec<AliasRoute>) {
    gateway.change(RouteChange { aliases, ..delta() }).await;
}

/// Two deployments that are ready, with an alias over them and one that is not declared.
async fn gateway(sticky: Stickiness) -> (TestGateway, Arc<Echo>, Arc<Echo>) {
    let mut gateway = TestGateway::new();
    let (one, two) = (Echo::open(), Echo::open());
    gateway.serve("v1", "1", Arc::clone(&one)).await;
    gateway.serve("v2", "1", Arc::clone(&two)).await;
    set(&mut gateway, vec![alias("live", &[("v1", 3), ("v2", 1), ("v3", 4)], sticky)]).await;
    (gateway, one, two)
}

fn body(user: &str) -> String {
    let inputs = json!([{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]);
    json!({"inputs": inputs, "parameters": {"user": user}}).to_string()
}

#[tokio::test]
async fn shares_are_smooth_and_answers_bear_the_name_that_was_asked_for() {
    let (gateway, _, _) = gateway(Stickiness::None).await;
    let mut chosen = Vec::new();
    for _ in 0..8 {
        let answer = gateway.infer("live", &[]).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["model_name"]), (200, &json!("live")));
        chosen.push(answer.header("berth-deployment").to_owned());
    }
    for part in chosen.chunks(4) {
        assert_eq!(part.iter().filter(|deployment| *deployment == "v1").count(), 3, "{chosen:?}");
    }
    let mut client = grpc::client(&gateway).await;
    for _ in 0..4 {
        let answer = client.model_infer(grpc::infer("live", "7")).await.expect("an answer");
        assert!(answer.metadata().contains_key("berth-deployment"));
        assert_eq!(answer.into_inner().model_name, "live");
    }
    let requests = tokio_stream::iter((0..4).map(|_| grpc::infer("live", "7")));
    let mut answers = client.model_stream_infer(requests).await.expect("a stream").into_inner();
    while let Some(answer) = answers.next().await {
        assert_eq!(answer.expect("an answer").infer_response.expect("no error").model_name, "live");
    }
    let mut text = String::new();
    encode(&mut text, &gateway.registry).expect("a String takes everything");
    for (deployment, count) in [("v1", 12), ("v2", 4)] {
        let line = format!(
            r#"berth_gateway_alias_requests_total{{namespace="default",alias="live",deployment="{deployment}",result="ok"}} {count}"#
        );
        assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_name_is_told_as_any_other() {
    let (mut gateway, _, _) = gateway(Stickiness::None).await;
    assert_eq!(gateway.get("/v2/models/live/ready").await.status, 200);
    let metadata = gateway.get("/v2/models/live").await.json();
    assert_eq!((&metadata["name"], &metadata["platform"]), (&json!("live"), &json!("echo_echo")));
    assert_eq!(gateway.get("/v2/models/live/config").await.json()["name"], "live");
    assert_eq!(gateway.get("/v2/models").await.json()["models"], json!(["live", "v1", "v2"]));
    let index = gateway.post("/v2/repository/index", "").await.json();
    let rows: Vec<_> = index.as_array().expect("rows").iter().map(|row| (&row["name"], &row["state"])).collect();
    let (live, ready) = (json!("live"), json!("READY"));
    assert_eq!(rows[0], (&live, &ready));
    gateway.infer("live", &[]).await;
    let statistics = gateway.get("/v2/models/live/stats").await.json();
    assert_eq!(statistics["model_stats"].as_array().map(Vec::len), Some(2), "of both targets");
    let mut client = grpc::client(&gateway).await;
    let asked = wire::ModelMetadataRequest { name: "live".to_owned(), version: String::new() };
    assert_eq!(client.model_metadata(asked).await.expect("metadata").into_inner().name, "live");

    set(&mut gateway, vec![alias("nowhere", &[("a", 1), ("b", 1)], Stickiness::None)]).await;
    let nowhere = gateway.infer("nowhere", &[]).await;
    assert_eq!(nowhere.status, 404);
    assert!(nowhere.json()["error"].as_str().is_some_and(|text| text.contains("alias") && text.contains("a, b")));
    assert_eq!(gateway.get("/v2/models/nowhere/ready").await.status, 404);
    gateway.change(RouteChange { unset: vec![name("live")], ..delta() }).await;
    assert_eq!(gateway.infer("live", &[]).await.status, 404);
}

#[tokio::test]
async fn callers_keep_to_their_target() {
    for sticky in [Stickiness::Header("x-user".to_owned()), Stickiness::Field("parameters.user".to_owned())] {
        let (mut gateway, _, _) = gateway(sticky.clone()).await;
        let mut client = grpc::client(&gateway).await;
        let mut first: BTreeMap<String, String> = BTreeMap::new();
        for round in 0..2 {
            for user in (0..24).map(|user| format!("user-{user}")) {
                let path = "/v2/models/live/infer";
                let headers = [("x-user", user.as_str())];
                let answer = gateway.request(Method::POST, path, &headers, body(&user)).await;
                assert_eq!(answer.status, 200);
                let chosen = answer.header("berth-deployment").to_owned();
                assert_eq!(first.entry(user.clone()).or_insert_with(|| chosen.clone()), &chosen, "{sticky:?} {round}");
                let mut request = tonic::Request::new(grpc::infer("live", "7"));
                let parameter = InferParameter { parameter_choice: Some(ParameterChoice::StringParam(user.clone())) };
                request.get_mut().parameters.insert("user".to_owned(), parameter);
                request.metadata_mut().insert("x-user", user.parse().expect("text"));
                let answer = client.model_infer(request).await.expect("an answer");
                assert_eq!(
                    answer.metadata().get("berth-deployment").expect("told"),
                    chosen.as_str(),
                    "REST and gRPC choose the same"
                );
            }
        }
        let share = |first: &BTreeMap<String, String>, of: &str| first.values().filter(|chosen| *chosen == of).count();
        assert!(share(&first, "v1") > share(&first, "v2") && share(&first, "v2") > 0, "{first:?}");
        // More weight for v2 takes callers from v1, and none from v2.
        set(&mut gateway, vec![alias("live", &[("v1", 3), ("v2", 3)], sticky.clone())]).await;
        for (user, before) in &first {
            let headers = [("x-user", user.as_str())];
            let answer = gateway.request(Method::POST, "/v2/models/live/infer", &headers, body(user)).await;
            assert!(answer.header("berth-deployment") == before || before == "v1", "{user}");
        }
    }
}

#[tokio::test]
async fn one_client_keeps_to_one_target() {
    let (gateway, one, two) = gateway(Stickiness::Client).await;
    for _ in 0..12 {
        assert_eq!(gateway.infer("live", &[]).await.status, 200);
    }
    let runs = [&one, &two].map(|echo| echo.runs.load(std::sync::atomic::Ordering::SeqCst));
    assert!(runs == [12, 0] || runs == [0, 12], "{runs:?}");
}

#[tokio::test]
async fn a_request_wakes_the_target_that_is_chosen() {
    let mut gateway = TestGateway::new();
    gateway.set(vec![cold("v1")]).await;
    set(&mut gateway, vec![alias("live", &[("v1", 1)], Stickiness::None)]).await;
    let waiting = tokio::task::spawn(gateway.infer("live", &[]));
    assert_eq!(gateway.miss("v1").await.waiting, 1);
    gateway.replicas.insert(revision("v1", "1"), Echo::open());
    gateway.set(vec![warm("v1", "1")]).await;
    let answer = waiting.await.expect("it ran");
    assert_eq!((answer.status.as_u16(), &answer.json()["model_name"]), (200, &json!("live")));
}

#[tokio::test]
async fn the_name_goes_along_to_other_nodes() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let (one, two) = (Echo::open(), Echo::open());
    cluster.serve("v1", &[("b", &one)]).await;
    cluster.serve("v2", &[("b", &two)]).await;
    let gateway = cluster.gateway("a");
    set(gateway, vec![alias("default/x/live \u{fc}", &[("v1", 1), ("v2", 1)], Stickiness::None)]).await;
    let path = "x%2Flive%20%C3%BC";
    for _ in 0..2 {
        let answer = gateway.infer(path, &[]).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["model_name"]),
            (200, &json!("x/live \u{fc}")),
            "{answer:?}"
        );
    }
    assert_eq!([&one, &two].map(|echo| echo.runs.load(std::sync::atomic::Ordering::SeqCst)), [1, 1]);
}
