//! Watches: what is there, what changes, where to go on, and that they end.

use serde_json::Value;

use berth_spec::ByteSize;

use super::world::{World, answer, manifest};

fn kind_and_name(event: &Value) -> (&str, &str) {
    let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
    (event["type"].as_str().expect("an event has a type"), name)
}

#[tokio::test]
async fn what_is_there_then_what_changes() {
    let world = World::start().await;
    world.post("/v1/apply", manifest("iris")).await.ok(200);
    let mut watch = world.lines("/v1/deployments?watch=true&labelSelector=app%3Dshop").await;
    assert_eq!(kind_and_name(&watch.next().await.expect("the first")), ("ADDED", "iris"));
    let bookmark = watch.next().await.expect("the bookmark");
    assert_eq!(bookmark["type"], "BOOKMARK");
    let version = bookmark["object"]["resourceVersion"].as_str().expect("a version").to_owned();

    let other = manifest("wine").replace("app: shop", "app: bank");
    world.post("/v1/apply", other).await.ok(200);
    world.post("/v1/apply", manifest("iris") + "  priority: 70\n").await.ok(200);
    let changed = loop {
        let event = watch.next().await.expect("the watch goes on");
        assert_eq!(kind_and_name(&event).1, "iris", "the other has another label");
        if event["object"]["metadata"]["generation"] == 2 {
            break event;
        }
    };
    assert_eq!(changed["type"], "MODIFIED");

    answer(world.request("DELETE", "/v1/deployments/iris")).await.ok(200);
    loop {
        if watch.next().await.expect("the watch goes on")["type"] == "DELETED" {
            break;
        }
    }

    // From the bookmark on: what came after it, and nothing of before.
    let mut later = world.lines(&format!("/v1/deployments?watch=true&resourceVersion={version}")).await;
    let mut seen = Vec::new();
    loop {
        let event = later.next().await.expect("the watch goes on");
        if event["type"] == "BOOKMARK" {
            break;
        }
        let (kind, name) = kind_and_name(&event);
        seen.push(format!("{kind} {name}"));
    }
    seen.sort();
    assert_eq!(seen, ["ADDED wine", "DELETED iris"]);
}

#[tokio::test]
async fn events_as_they_happen() {
    let mut world = World::start().await;
    let mut events = world.lines("/v1/events?watch=true&deployment=iris").await;
    world.worker("node-1", ByteSize::gib(1)).await;
    world.post("/v1/apply", manifest("iris")).await.ok(200);
    let first = events.next().await.expect("something happens");
    assert_eq!((&first["type"], &first["object"]["deployment"]), (&"ADDED".into(), &"iris".into()), "{first}");
}

#[tokio::test]
async fn a_watch_ends_when_the_control_plane_stops() {
    let mut world = World::start().await;
    let mut watch = world.lines("/v1/deployments?watch=true").await;
    assert_eq!(watch.next().await.expect("the bookmark")["type"], "BOOKMARK");
    world.shutdown.cancel();
    assert_eq!(watch.next().await, None, "it ends cleanly");
    while let Some(task) = world.tasks.join_next().await {
        task.expect("no task failed");
    }
}
