//! Routes as they come: in order, joined, or with some missing.

use berth_spec::{GatewayEvent, RouteChange, routes::Readiness};
use berth_wire::oip as wire;
use tonic::{Code, Status};

use crate::{
    fixture::{REQUEST, TestGateway, cold},
    grpc::{client, infer},
};

/// The next word on routes.
async fn word(gateway: &mut TestGateway) -> GatewayEvent {
    loop {
        match gateway.event().await {
            GatewayEvent::Demand(_) => {}
            event => return event,
        }
    }
}

#[tokio::test]
async fn a_gateway_that_missed_changes_asks_for_everything_once() {
    let mut gateway = TestGateway::new();
    let change = |seq, base, deployment| RouteChange { seq, base, set: vec![cold(deployment)], ..Default::default() };
    for (sent, answer, status) in [
        (change(1, None, "a"), Some(GatewayEvent::Applied(1)), "a"),
        // Three in one: nothing is missing.
        (change(4, Some(1), "b"), Some(GatewayEvent::Applied(4)), "b"),
        (change(6, Some(5), "c"), Some(GatewayEvent::Resync), "b"),
        (change(7, Some(6), "d"), None, "b"),
        (change(8, None, "e"), Some(GatewayEvent::Applied(8)), "e"),
        (change(9, Some(8), "f"), Some(GatewayEvent::Applied(9)), "f"),
    ] {
        gateway.send(sent).await;
        if let Some(answer) = answer {
            assert_eq!(word(&mut gateway).await, answer);
        }
        assert_eq!(gateway.get(&format!("/v2/models/{status}/ready")).await.status, 503, "{status} is known");
    }
    for (gone, status) in [("a", 404), ("d", 404), ("e", 503)] {
        assert_eq!(gateway.get(&format!("/v2/models/{gone}/ready")).await.status, status, "{gone}");
    }
}

/// The HTTP status of each face's answer about an unknown model.
async fn unknown(gateway: &TestGateway) -> Vec<u16> {
    let mut seen = Vec::new();
    for path in ["/v2/models/iris", "/v2/models/iris/ready", "/v2/models/iris/config", "/v2/models/iris/stats"] {
        seen.push(gateway.get(path).await.status.as_u16());
    }
    for (path, body) in [("/v2/models/iris/infer", REQUEST), ("/v2/repository/models/iris/load", "{}")] {
        seen.push(gateway.post(path, body).await.status.as_u16());
    }
    seen
}

/// A gateway that was never told which models there are says so, and does not call one missing.
#[tokio::test]
async fn a_gateway_that_was_never_told_anything_says_that_and_not_that_a_model_is_missing() {
    let mut gateway = TestGateway::new();
    assert_eq!(unknown(&gateway).await, [503; 6]);
    for path in ["/v2/models", "/v2/repository/index"] {
        let listed = if path == "/v2/models" { gateway.get(path).await } else { gateway.post(path, "{}").await };
        assert_eq!((listed.status.as_u16(), listed.reason().as_str()), (503, "unavailable"), "{path}: {listed:?}");
    }
    let answer = gateway.infer("iris", &[]).await;
    assert_eq!((answer.reason().as_str(), answer.header("retry-after")), ("unavailable", "1"), "{answer:?}");
    let mut client = client(&gateway).await;
    let refused = |status: &Status| (status.code(), status.metadata().get("retry-after").is_some());
    let status = client.model_infer(infer("iris", "1")).await.expect_err("nobody knows");
    assert_eq!(refused(&status), (Code::Unavailable, true), "{status:?}");
    let asked = wire::ModelMetadataRequest { name: "iris".to_owned(), version: String::new() };
    let status = client.model_metadata(asked.clone()).await.expect_err("nobody knows");
    assert_eq!(refused(&status), (Code::Unavailable, true), "{status:?}");
    let status = client.repository_index(wire::RepositoryIndexRequest::default()).await.expect_err("nobody knows");
    assert_eq!(refused(&status), (Code::Unavailable, true), "{status:?}");

    // A controller that has planned nothing yet has said nothing of what there is.
    gateway.change(RouteChange::default()).await;
    assert_eq!(unknown(&gateway).await, [503; 6]);
    let readiness = Readiness { planned: true, ..Readiness::default() };
    gateway.change(RouteChange { readiness, ..RouteChange::default() }).await;
    assert_eq!(unknown(&gateway).await, [404; 6]);
    let status = client.model_metadata(asked).await.expect_err("there is none");
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(gateway.get("/v2/models").await.status, 200);
}
