//! Routes as they come: in order, joined, or with some missing.

use berth_spec::{GatewayEvent, RouteChange};

use crate::fixture::{House, cold};

/// The next word on routes.
async fn word(house: &mut House) -> GatewayEvent {
    loop {
        match house.events.recv().await.expect("the gateway speaks") {
            GatewayEvent::Demand(_) => {}
            event => return event,
        }
    }
}

#[tokio::test]
async fn a_gateway_that_missed_changes_asks_for_everything_once() {
    let mut house = House::new();
    let change = |seq, base, deployment| RouteChange { seq, base, set: vec![cold(deployment)], ..Default::default() };
    for (sent, answer, status) in [
        (change(1, None, "a"), Some(GatewayEvent::Applied(1)), "a"),
        // Three in one: nothing is missing.
        (change(4, Some(1), "b"), Some(GatewayEvent::Applied(4)), "b"),
        (change(6, Some(5), "c"), Some(GatewayEvent::AskWhole), "b"),
        (change(7, Some(6), "d"), None, "b"),
        (change(8, None, "e"), Some(GatewayEvent::Applied(8)), "e"),
        (change(9, Some(8), "f"), Some(GatewayEvent::Applied(9)), "f"),
    ] {
        house.send(sent).await;
        if let Some(answer) = answer {
            assert_eq!(word(&mut house).await, answer);
        }
        assert_eq!(house.get(&format!("/v2/models/{status}/ready")).await.status, 503, "{status} is known");
    }
    for (gone, status) in [("a", 404), ("d", 404), ("e", 503)] {
        assert_eq!(house.get(&format!("/v2/models/{gone}/ready")).await.status, status, "{gone}");
    }
}
