//! Limits on use, and shares of what all requests have together.

use berth_mesh::Config;
use berth_spec::{ByteSize, Route, UseLimits};

use crate::fixture::{Echo, REQUEST, TestGateway, until, warm};

const NO_LIMITS: UseLimits =
    UseLimits { rate: None, burst: None, in_flight: None, bytes_per_second: None, max_wait: None };

fn limited(model: &str, limits: UseLimits) -> Route {
    Route { limits, ..warm(model, "1") }
}

#[tokio::test]
async fn a_model_is_limited_and_others_are_not() {
    let mut gateway = TestGateway::new();
    gateway.serve("rose", "1", Echo::open()).await;
    gateway.serve("iris", "1", Echo::open()).await;
    for (limits, reason) in [
        (UseLimits { rate: Some(1), burst: Some(2), ..NO_LIMITS }, "rate_limit"),
        (UseLimits { bytes_per_second: Some(ByteSize(REQUEST.len() as u64 / 2)), ..NO_LIMITS }, "bytes_limit"),
    ] {
        gateway.set(vec![limited("iris", limits), warm("rose", "1")]).await;
        let refused = loop {
            let answer = gateway.infer("iris", &[]).await;
            if answer.status != 200 {
                break answer;
            }
        };
        assert_eq!((refused.status.as_u16(), refused.reason().as_str()), (429, reason));
        assert!(refused.headers.contains_key("retry-after"));
        assert_eq!(gateway.infer("rose", &[]).await.status, 200);
    }
    gateway.set(vec![warm("iris", "1"), warm("rose", "1")]).await;
    assert_eq!(gateway.infer("iris", &[]).await.status, 200);
}

#[tokio::test]
async fn requests_at_once_end_with_their_answers() {
    let (mut gateway, echo) = (TestGateway::new(), Echo::shut());
    gateway.serve("iris", "1", echo.clone()).await;
    gateway.set(vec![limited("iris", UseLimits { in_flight: Some(1), ..NO_LIMITS })]).await;
    let first = tokio::spawn(gateway.infer("iris", &[]));
    echo.starts().await;
    assert_eq!(gateway.infer("iris", &[]).await.reason(), "in_flight_limit");
    echo.gate.close();
    assert_eq!(first.await.expect("no panic").status, 200);
    assert_eq!(gateway.infer("iris", &[]).await.status, 200);
}

#[tokio::test]
async fn a_storm_on_one_model_leaves_places_for_another() {
    let mut gateway = TestGateway::with(|limits| limits.requests = 8);
    let (busy, calm) = (Echo::shut(), Echo::open());
    gateway.serve("calm", "1", calm).await;
    gateway.serve("busy", "1", busy.clone()).await;
    gateway.set(vec![warm("busy", "1"), warm("calm", "1")]).await;
    let storm: Vec<_> = (0..8).map(|_| tokio::spawn(gateway.infer("busy", &[]))).collect();
    until("the storm to be inside", || gateway.handle.inside() == 8).await;
    assert_eq!(gateway.infer("busy", &[]).await.reason(), "queue_full");
    assert_eq!(gateway.infer("calm", &[]).await.status, 200);
    busy.gate.close();
    for request in storm {
        assert_eq!(request.await.expect("no panic").status, 200);
    }
    assert_eq!(gateway.handle.inside(), 0);
}

#[test]
fn nobody_is_limited_unless_told() {
    assert!(Config::new(([127, 0, 0, 1], 0).into()).principal_limits.is_empty());
}
