//! The model repository extension.

use berth_spec::{GatewayEvent, Route, routes::OnMiss};
use http::Method;

use crate::fixture::{Echo, TestGateway, cold, warm};

#[tokio::test]
async fn load_returns_when_the_model_answers() {
    let mut gateway = TestGateway::new();
    gateway.set(vec![cold("iris")]).await;
    let load = tokio::task::spawn(gateway.request(Method::POST, "/v2/repository/models/iris/load", &[], ""));
    assert_eq!(gateway.miss("iris").await.waiting, 1);
    gateway.serve("iris", "1", Echo::open()).await;
    let answer = load.await.expect("it ran");
    assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 0));
    assert_eq!(gateway.post("/v2/repository/models/iris/load", "{}").await.status, 200);
    assert_eq!(gateway.post("/v2/repository/models/none/load", "").await.status, 404);
    let overrides = gateway.post("/v2/repository/models/iris/load", r#"{"parameters":{"config":"{}"}}"#).await;
    assert_eq!((overrides.status.as_u16(), overrides.reason().as_str()), (400, "overrides"));
    gateway
        .set(vec![Route {
            on_miss: OnMiss::Failed { message: "not a model".to_owned(), retry_at: None },
            ..cold("iris")
        }])
        .await;
    assert_eq!(gateway.post("/v2/repository/models/iris/load", "").await.reason(), "load_failed");
}

#[tokio::test]
async fn unload_pages_out_what_is_on_demand() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::open()).await;
    let unload = tokio::task::spawn(gateway.request(Method::POST, "/v2/repository/models/iris/unload", &[], ""));
    while !matches!(gateway.event().await, GatewayEvent::PageOut(name) if name.as_str() == "iris") {}
    assert!(!unload.is_finished());
    gateway.set(vec![cold("iris")]).await;
    assert_eq!(unload.await.expect("it ran").status, 200);
    assert_eq!(gateway.post("/v2/repository/models/iris/unload", "").await.status, 200);
    gateway.set(vec![Route { on_demand: false, ..warm("resident", "1") }]).await;
    let answer = gateway.post("/v2/repository/models/resident/unload", "").await;
    assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (409, "resident"));
}

/// A page that somebody looks at must not load and unload models; it may ask for inferences like any program.
#[tokio::test]
async fn pages_of_other_sites_change_nothing() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::open()).await;
    let page = [("origin", "https://evil.example")];
    let rebound = [("host", "evil.example")];
    for headers in [page, rebound, [("sec-fetch-site", "cross-site")]] {
        for path in ["/v2/repository/models/iris/unload", "/v2/repository/models/iris/load/"] {
            let answer = gateway.request(Method::POST, path, &headers, "").await;
            assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (403, "forbidden"), "{headers:?}");
        }
        assert_eq!(gateway.infer("iris", &headers).await.status, 200, "{headers:?}");
    }
    let unload = "/inference.GRPCInferenceService/RepositoryModelUnload";
    let grpc = [("content-type", "application/grpc"), page[0]];
    let answer = gateway.request(Method::POST, unload, &grpc, &b"\0\0\0\0\x06\x12\x04iris"[..]).await;
    assert_eq!(answer.header("grpc-status"), "7", "{answer:?}");
}

#[tokio::test]
async fn the_index_lists_any_number() {
    let mut gateway = TestGateway::new();
    gateway.replicas.insert(crate::fixture::revision("m-00001", "1"), Echo::open());
    let mut routes: Vec<_> = (0..5_000).map(|i| cold(&format!("m-{i:05}"))).collect();
    routes[1] = warm("m-00001", "1");
    routes[2].on_miss = OnMiss::NoCapacity { message: "full".to_owned(), retry_at: None };
    routes[3].on_demand = false;
    gateway.set(routes).await;
    let answer = gateway.post("/v2/repository/index", "").await.json();
    let rows = answer.as_array().expect("an array");
    assert_eq!(rows.len(), 5_000);
    for (row, state, reason) in
        [(0, "UNAVAILABLE", "unloaded"), (1, "READY", ""), (2, "UNAVAILABLE", "full"), (3, "LOADING", "")]
    {
        assert_eq!((rows[row]["state"].as_str(), rows[row]["reason"].as_str()), (Some(state), Some(reason)), "{row}");
    }
    let ready = gateway.post("/v2/repository/index", "{\"ready\":true}").await.json();
    assert_eq!(ready.as_array().map(Vec::len), Some(1));
    gateway.change(berth_spec::RouteChange::default()).await;
    assert_eq!(gateway.post("/v2/repository/index", "").await.body, "[]");
}
