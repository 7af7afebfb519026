//! Metrics as Prometheus and `berth top` see them.

use prometheus_client::encoding::text::encode;

use crate::fixture::{Echo, TestGateway, WORKER, cold};

#[tokio::test]
async fn requests_are_counted_by_deployment_protocol_and_code() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::open()).await;
    gateway.set(vec![cold("cold")]).await;
    for _ in 0..3 {
        assert_eq!(gateway.infer("iris", &[]).await.status, 200);
    }
    assert_eq!(gateway.post("/v2/models/iris/infer", "{").await.status, 400);
    assert_eq!(gateway.infer("made-up", &[]).await.status, 404);
    assert_eq!(gateway.infer("cold", &[("berth-timeout-ms", "10")]).await.status, 503);
    let mut text = String::new();
    encode(&mut text, &gateway.registry).expect("a String takes everything");
    for line in [
        r#"berth_gateway_requests_total{namespace="default",deployment="iris",protocol="rest",code="200"} 3"#,
        r#"berth_gateway_requests_total{namespace="default",deployment="iris",protocol="rest",code="400"} 1"#,
        r#"berth_gateway_requests_total{namespace="",deployment="",protocol="rest",code="404"} 1"#,
        r#"berth_gateway_requests_total{namespace="default",deployment="cold",protocol="rest",code="503"} 1"#,
        r#"berth_gateway_request_seconds_count{namespace="default",deployment="iris",protocol="rest"} 4"#,
        r#"berth_gateway_misses_total{namespace="default",deployment="cold"} 1"#,
        r#"berth_gateway_shed_total{reason="loading"} 1"#,
        r#"berth_gateway_in_flight{namespace="default",deployment="iris"} 0"#,
        r#"berth_gateway_parked{namespace="default",deployment="cold"} 0"#,
    ] {
        assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
    }
    let rows = gateway.handle.top();
    let iris = rows.iter().find(|row| row.deployment.as_str() == "iris").expect("it was used");
    assert_eq!((iris.requests, iris.errors, iris.ready), (4, 1, true));
    assert!(iris.latency.quantile(0.99).is_some());
    // The numbers go with the deployment.
    gateway.change(berth_spec::RouteChange::default()).await;
    assert!(gateway.handle.top().is_empty());
}

#[tokio::test]
async fn counts_of_calls_by_model_go_with_the_model() {
    let mut config = berth_mesh::Config::new(([127, 0, 0, 1], 0).into());
    config.calls = Some(berth_mesh::calls::Settings { per_model: true, ..Default::default() });
    let mut gateway = TestGateway::of(WORKER, config, None);
    gateway.serve("iris", "1", Echo::open()).await;
    assert_eq!(gateway.infer("iris", &[]).await.status, 200);
    let told = |gateway: &TestGateway| {
        let mut text = String::new();
        encode(&mut text, &gateway.registry).expect("a String takes everything");
        text.lines().filter(|line| line.contains("modelId=\"iris\"")).map(str::to_owned).collect::<Vec<_>>()
    };
    let ran = |line: &String| line.starts_with("modelmesh_invoke_model_milliseconds_count{");
    assert!(told(&gateway).iter().any(ran), "{:?}", told(&gateway));
    gateway.change(berth_spec::RouteChange::default()).await;
    assert_eq!(told(&gateway), Vec::<String>::new());
}
