//! Limits on use, and shares of what all requests have together.

use berth_mesh::Config;
use berth_spec::{ByteSize, Route, UseLimits};

use crate::fixture::{Echo, House, REQUEST, until, warm};

const NONE: UseLimits = UseLimits { rate: None, burst: None, in_flight: None, bytes_per_second: None, max_wait: None };

fn limited(model: &str, limits: UseLimits) -> Route {
    Route { limits, ..warm(model, "1") }
}

#[tokio::test]
async fn a_model_is_limited_and_others_are_not() {
    let mut house = House::new();
    house.serve("rose", "1", Echo::open()).await;
    house.serve("iris", "1", Echo::open()).await;
    for (limits, reason) in [
        (UseLimits { rate: Some(1), burst: Some(2), ..NONE }, "rate_limit"),
        (UseLimits { bytes_per_second: Some(ByteSize(REQUEST.len() as u64 / 2)), ..NONE }, "bytes_limit"),
    ] {
        house.set(vec![limited("iris", limits), warm("rose", "1")]).await;
        let refused = loop {
            let answer = house.infer("iris", &[]).await;
            if answer.status != 200 {
                break answer;
            }
        };
        assert_eq!((refused.status.as_u16(), refused.reason().as_str()), (429, reason));
        assert!(refused.headers.contains_key("retry-after"));
        assert_eq!(house.infer("rose", &[]).await.status, 200);
    }
    house.set(vec![warm("iris", "1"), warm("rose", "1")]).await;
    assert_eq!(house.infer("iris", &[]).await.status, 200);
}

#[tokio::test]
async fn requests_at_once_end_with_their_answers() {
    let (mut house, echo) = (House::new(), Echo::shut());
    house.serve("iris", "1", echo.clone()).await;
    house.set(vec![limited("iris", UseLimits { in_flight: Some(1), ..NONE })]).await;
    let first = tokio::spawn(house.infer("iris", &[]));
    echo.starts().await;
    assert_eq!(house.infer("iris", &[]).await.reason(), "in_flight_limit");
    echo.gate.close();
    assert_eq!(first.await.expect("no panic").status, 200);
    assert_eq!(house.infer("iris", &[]).await.status, 200);
}

#[tokio::test]
async fn a_storm_on_one_model_leaves_places_for_another() {
    let mut house = House::with(|limits| limits.requests = 8);
    let (busy, calm) = (Echo::shut(), Echo::open());
    house.serve("calm", "1", calm).await;
    house.serve("busy", "1", busy.clone()).await;
    house.set(vec![warm("busy", "1"), warm("calm", "1")]).await;
    let storm: Vec<_> = (0..8).map(|_| tokio::spawn(house.infer("busy", &[]))).collect();
    until("the storm to be inside", || house.handle.inside() == 8).await;
    assert_eq!(house.infer("busy", &[]).await.reason(), "queue_full");
    assert_eq!(house.infer("calm", &[]).await.status, 200);
    busy.gate.close();
    for request in storm {
        assert_eq!(request.await.expect("no panic").status, 200);
    }
    assert_eq!(house.handle.inside(), 0);
}

#[test]
fn nobody_is_limited_unless_told() {
    assert!(Config::new(([127, 0, 0, 1], 0).into()).principal_limits.is_empty());
}
