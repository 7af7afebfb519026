//! Every REST path and its status codes.

use berth_spec::{
    RouteChange, Time,
    deployment::Concurrency,
    routes::{OnMiss, Readiness},
};
use http::Method;

use crate::fixture::{Echo, REQUEST, TestGateway, cold, delta, name, revision, warm};

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn every_path_has_its_status() {
    let mut gateway = TestGateway::new();
    gateway.replicas.insert(revision("iris", "1"), Echo::open());
    let refused = |deployment, on_miss| berth_spec::Route { on_miss, ..cold(deployment) };
    gateway
        .set(vec![
            warm("iris", "1"),
            refused("full", OnMiss::NoCapacity { message: "needs 9GiB".to_owned(), retry_at: Some(Time::ZERO) }),
            refused("broken", OnMiss::Failed { message: "not a model".to_owned(), retry_at: Some(Time::ZERO) }),
            refused("off", OnMiss::ScaledDown),
            cold("cold"),
        ])
        .await;
    let (get, post, infer) = (Method::GET, Method::POST, REQUEST);
    let (rows, values) = (r#"{"instances": [[1, 2, 3.5, 4]]}"#, r#"{"x": [1, 2, 3.5, 4]}"#);
    let table: &[(&Method, &str, &str, u16, &str)] = &[
        (&get, "/v2", "", 200, "binary_tensor_data"),
        (&get, "/v2/", "", 200, "\"name\":\"berth\""),
        (&get, "/openapi.json", "", 200, "\"openapi\":\"3.1.0\""),
        (&get, "/docs", "", 200, "/v2/models/{model}/infer"),
        (&post, "/docs", "{}", 404, "error"),
        (&get, "/v2/health/live", "", 200, "true"),
        (&get, "/v2/health/ready", "", 200, "true"),
        (&get, "/v2/models", "", 200, "\"iris\""),
        (&get, "/v2/models/iris", "", 200, "\"shape\":[-1,4]"),
        (&get, "/v2/models/iris/versions/1", "", 200, "\"versions\":[\"1\"]"),
        (&get, "/v2/models/iris/versions/9", "", 404, "no version"),
        (&get, "/v2/models/iris/ready", "", 200, "\"ready\":true"),
        (&get, "/v2/models/iris/versions/1/ready", "", 200, "\"ready\":true"),
        (&get, "/v2/models/iris/versions/9/ready", "", 404, "no version"),
        (&get, "/v2/models/cold/ready", "", 503, "\"ready\":false"),
        (&get, "/v2/models/none/ready", "", 404, "not found"),
        (&get, "/v2/models/none", "", 404, "not found"),
        (&get, "/v2/models/iris/config", "", 200, "\"max_queue_delay_microseconds\":3000"),
        (&get, "/v2/models/iris/stats", "", 200, "\"model_stats\":[{"),
        (&get, "/v2/models/iris/versions/1/stats", "", 200, "\"model_stats\":[{"),
        (&get, "/v2/models/cold/stats", "", 200, "\"model_stats\":[]"),
        (&get, "/v2/models/none/stats", "", 404, "not found"),
        (&get, "/v2/models/stats", "", 200, "\"name\":\"iris\""),
        (&post, "/v2/models/iris/infer", infer, 200, "\"data\":[1.0,2.0,3.5,4.0]"),
        (&post, "/v2/models/i%72is/versions/1/infer", infer, 200, "\"id\":\"7\""),
        (&post, "/v2/models/iris/versions/9/infer", infer, 404, "no version"),
        (&post, "/v2/models/none/infer", infer, 404, "not found"),
        (&post, "/v2/models/iris/infer", "{", 400, "\"reason\":\"invalid\""),
        (&post, "/v2/models/iris/infer", "", 400, "error"),
        (&post, "/v2/models/full/infer", infer, 503, "needs 9GiB"),
        (&post, "/v2/models/broken/infer", infer, 503, "not a model"),
        (&post, "/v2/models/off/infer", infer, 503, "scaled_down"),
        (&get, "/v2/models/iris/infer", "", 405, "use POST"),
        (&post, "/v2/models/iris", "", 405, "use GET"),
        (&Method::DELETE, "/v2/models/iris", "", 405, "use GET"),
        (&get, "/v2/models/iris/nothing", "", 404, "error"),
        (&get, "/", "", 200, "\"status\":\"alive\""),
        (&get, "/nothing", "", 404, "error"),
        (&get, "/metrics", "", 404, "error"),
        (&get, "/v1/models", "", 200, "\"iris\""),
        (&get, "/v1/models/iris", "", 200, "\"ready\":true"),
        (&get, "/v1/models/cold", "", 503, "\"ready\":false"),
        (&post, "/v1/models/iris:predict", rows, 200, "{\"predictions\":[[1.0,2.0,3.5,4.0]]}"),
        (&post, "/v1/models/iris:predict", "{}", 400, "instances"),
        (&post, "/v1/models/none:predict", rows, 404, "not found"),
        (&post, "/v1/models/iris:explain", rows, 501, "not supported"),
        (&get, "/v1/models/iris:predict", "", 405, "use POST"),
        (&post, "/v2/repository/index", "", 200, "\"state\":\"READY\""),
        (&post, "/v2/repository/index", "{\"ready\":true}", 200, "[{\"name\":\"iris\""),
        (&post, "/v2/repository/index", "[", 400, "error"),
        (&get, "/v2/repository/index", "", 405, "use POST"),
        (&post, "/v2/models/iris/generate", values, 200, "\"x\":[1.0,2.0,3.5,4.0]}"),
        (&post, "/v2/models/iris/versions/1/generate", values, 200, "\"model_version\":\"1\""),
        (&post, "/v2/models/iris/generate", "{\"x\": \"a\"}", 400, "must be a number"),
        (&post, "/v2/models/full/generate", values, 503, "needs 9GiB"),
        (&get, "/v2/logging", "", 501, "not supported"),
        (&get, "/v2/trace/setting", "", 200, "\"trace_level\":[\"OFF\"]"),
        (&post, "/v2/trace/setting", "{\"trace_level\": [\"TIMESTAMPS\"]}", 400, "--otlp"),
        (&post, "/v2/models/iris/trace/setting", "{\"trace_rate\": \"5\"}", 501, "not supported"),
        (&get, "/v2/systemsharedmemory/status", "", 501, "--shared-memory"),
        (&get, "/v2/cudasharedmemory/status", "", 501, "not supported"),
    ];
    for (method, path, body, status, part) in table {
        let answer = gateway.request((*method).clone(), path, &[], *body).await;
        assert_eq!(answer.status, *status, "{method} {path}: {answer:?}");
        assert!(String::from_utf8_lossy(&answer.body).contains(part), "{method} {path}: {answer:?}");
        let kind = if *path == "/docs" && *status == 200 { "text/html; charset=utf-8" } else { "application/json" };
        assert_eq!(answer.header("content-type"), kind, "{method} {path}");
        let is_readiness = path.ends_with("ready") || *path == "/v1/models/cold";
        let retries = *status == 503 && !is_readiness && !path.contains("/off/");
        assert_eq!(answer.header("retry-after").is_empty(), !retries, "{path}");
        assert_eq!(answer.header("accept-encoding"), "", "{path}");
        assert_eq!(answer.header("allow").is_empty(), *status != 405, "{path}");
    }
    let head = gateway.request(Method::HEAD, "/v2/health/ready", &[], "").await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
}

#[tokio::test]
async fn who_asks_whether_a_model_is_ready_is_no_request() {
    let mut gateway = TestGateway::new();
    let replica = gateway.replicas.insert(revision("iris", "1"), Echo::open());
    gateway.set(vec![warm("iris", "1")]).await;
    for path in ["/v2/models/iris/ready", "/v2/models/iris/versions/1/ready"] {
        assert_eq!(gateway.get(path).await.status, 200, "{path}");
    }
    assert_eq!(replica.requests(), 0, "a load balancer that probes does not use the model");
    assert_eq!(gateway.post("/v2/models/iris/infer", REQUEST).await.status, 200);
    assert_eq!(replica.requests(), 1);
    replica.begin_drain();
    assert_eq!(gateway.get("/v2/models/iris/ready").await.status, 503);
}

#[tokio::test]
async fn ready_tells_the_truth() {
    let mut gateway = TestGateway::new();
    assert_eq!(gateway.get("/v2/health/live").await.status, 200);
    for (planned, expected, ready, status) in
        [(false, 0, 0, 503), (true, 0, 0, 200), (true, 2, 1, 503), (true, 2, 2, 200)]
    {
        let readiness = Readiness { planned, expected, ready, missing: vec![name("iris")] };
        gateway.change(RouteChange { readiness, ..delta() }).await;
        let answer = gateway.get("/v2/health/ready").await;
        assert_eq!(answer.status, status, "{planned} {expected} {ready}: {answer:?}");
        assert_eq!(gateway.handle.ready(), status == 200);
    }
}

#[tokio::test]
async fn binary_and_compressed_bodies() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::open()).await;
    let data = [1_f32, 2.0, 3.5, 4.0].map(f32::to_le_bytes).concat();
    let json = r#"{"parameters":{"binary_data_output":true},"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}]}"#;
    let body = [json.as_bytes(), &data].concat();
    let length = json.len().to_string();
    let headers = [("inference-header-content-length", length.as_str())];
    let answer = gateway.request(Method::POST, "/v2/models/iris/infer", &headers, body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), "application/octet-stream");
    let split: usize = answer.header("inference-header-content-length").parse().expect("a length");
    assert_eq!(&answer.body[split..], data);

    let raw = gateway
        .request(Method::POST, "/v2/models/iris/infer", &[("inference-header-content-length", "0")], data.clone())
        .await;
    assert_eq!(raw.status, 200, "{raw:?}");
    assert!(raw.body.ends_with(&data));

    // 4,000 numbers: large enough to be worth compressing, and written in pieces when binary.
    let numbers = vec!["1"; 4_000].join(",");
    let json = format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1000,4],"data":[{numbers}]}}]}}"#);
    for coding in ["gzip", "deflate"] {
        let compressed = compressed(coding, json.as_bytes());
        let headers = [("content-encoding", coding), ("accept-encoding", coding)];
        let answer = gateway.request(Method::POST, "/v2/models/iris/infer", &headers, compressed).await;
        assert_eq!((answer.status.as_u16(), answer.header("content-encoding")), (200, coding), "{answer:?}");
        assert!(answer.body.len() < 1_000, "{}", answer.body.len());
    }
    let unsupported = gateway.infer("iris", &[("content-encoding", "br")]).await;
    assert_eq!((unsupported.status.as_u16(), unsupported.header("accept-encoding")), (501, "gzip, deflate"));

    let json = format!(
        r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1000,4],"data":[{numbers}]}}],"outputs":[{{"name":"x","parameters":{{"binary_data":true}}}}]}}"#
    );
    let answer = gateway.post("/v2/models/iris/infer", json).await;
    let split: usize = answer.header("inference-header-content-length").parse().expect("a length");
    assert_eq!(answer.body.len() - split, 16_000);
}

fn compressed(coding: &str, body: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let level = flate2::Compression::default();
    if coding == "gzip" {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
        encoder.write_all(body).and_then(|()| encoder.finish()).expect("a Vec takes everything")
    } else {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
        encoder.write_all(body).and_then(|()| encoder.finish()).expect("a Vec takes everything")
    }
}

#[tokio::test]
async fn a_split_shares_traffic_by_weight_and_versions_answer_to_their_names() {
    let mut gateway = TestGateway::new();
    let (old, new) = (Echo::open(), Echo::open());
    gateway.replicas.insert(revision("iris", "1"), old.clone());
    gateway.replicas.insert(revision("iris", "2"), new.clone());
    let mut route = warm("iris", "1");
    let second = warm("iris", "2");
    route.split = vec![(revision("iris", "1"), 75), (revision("iris", "2"), 25)];
    route.versions.extend(second.versions);
    gateway.set(vec![route.clone()]).await;
    for _ in 0..100 {
        assert_eq!(gateway.infer("iris", &[]).await.status, 200);
    }
    let counts = [&old, &new].map(|model| model.runs.load(std::sync::atomic::Ordering::SeqCst));
    assert_eq!(counts, [75, 25]);
    // The old one leaves the split and still answers to its version.
    route.split = vec![(revision("iris", "2"), 1)];
    gateway.set(vec![route]).await;
    let answer = gateway.post("/v2/models/iris/versions/1/infer", REQUEST).await;
    assert_eq!(answer.json()["model_version"], "1");
    assert_eq!(gateway.infer("iris", &[]).await.json()["model_version"], "2");
}

#[tokio::test]
async fn a_failing_or_panicking_request_fails_alone() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::open()).await;
    for bad in ["fail", "panic"] {
        let answer = gateway.post("/v2/models/iris/infer", REQUEST.replace("\"x\"", &format!("\"{bad}\""))).await;
        assert_eq!(answer.status, 500, "{answer:?}");
        assert!(answer.json()["error"].is_string());
    }
    assert_eq!(gateway.infer("iris", &[]).await.status, 200);
}

#[tokio::test]
async fn a_deployment_takes_as_many_at_once_as_it_says() {
    let mut gateway = TestGateway::new();
    let echo = Echo::shut();
    gateway.replicas.insert(revision("iris", "1"), echo.clone());
    let concurrency = Concurrency { max: Some(1), queue: 100 };
    gateway.set(vec![berth_spec::Route { concurrency, ..warm("iris", "1") }]).await;
    let first = tokio::task::spawn(gateway.infer("iris", &[]));
    echo.starts().await;
    let second = gateway.infer("iris", &[]).await;
    assert_eq!((second.status.as_u16(), second.reason().as_str()), (503, "queue_full"));
    assert_eq!(second.header("retry-after"), "1");
    echo.gate.close();
    assert_eq!(first.await.expect("it ran").status, 200);
}
