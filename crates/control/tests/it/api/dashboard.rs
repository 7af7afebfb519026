//! Questions of the dashboard: its files, lists, memory, history and live news.

use berth_spec::ByteSize;
use serde_json::json;
use tokio::time::timeout;

use super::world::{PATIENCE, World, manifest};

#[tokio::test]
async fn the_page_and_its_files_come_with_rules_for_browsers() {
    let world = World::start().await;
    let page = world.get("/dashboard").await;
    assert!(page.status == 200 && page.text.contains("app.js"), "it leads to the page: {}", page.text);
    let script = world.get("/dashboard/app.js").await;
    assert_eq!(script.headers["content-type"], "text/javascript; charset=utf-8");
    for answer in [&page, &script] {
        let policy = answer.headers["content-security-policy"].to_str().expect("text");
        assert!(policy.contains("default-src 'none'") && policy.contains("require-trusted-types-for"), "{policy}");
    }
    world.get("/dashboard/nothing.js").await.refused(404, "NotFound");
    let elsewhere = world.request("GET", "/v1/dashboard/models").header("origin", "https://example.com");
    super::world::answer(elsewhere).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn models_are_searched_sorted_and_cut_here() {
    let mut world = World::start().await;
    world.worker("node-1", ByteSize::gib(1)).await;
    let all: Vec<String> = ["wine", "iris", "shop/iris"].map(manifest).to_vec();
    let all = all.join("---\n").replace("name: shop/iris", "name: iris\n  namespace: shop");
    world.post("/v1/apply", all).await.ok(200);
    world.until_phase("wine", "Available").await;
    let page = world.get("/v1/dashboard/models?search=IRIS&limit=1&sort=requests&descending=true").await.ok(200);
    assert_eq!((&page["total"], &page["matching"]), (&json!(3), &json!(2)), "{page}");
    assert_eq!(page["items"].as_array().map(Vec::len), Some(1));
    let row = &page["items"][0];
    assert_eq!((&row["deployment"], &row["requests"], &row["format"]), (&json!("iris"), &json!(7), &json!("onnx")));
    let next = world.get("/v1/dashboard/models?search=iris&offset=1").await.ok(200);
    assert_eq!((&next["items"][0]["deployment"], &next["offset"]), (&json!("shop/iris"), &json!(1)));
    let alone = world.get("/v1/dashboard/models?deployment=shop/iris").await.ok(200);
    assert_eq!(alone["items"][0]["deployment"], "shop/iris");
    for (wrong, says) in
        [("sort=size", "lastUsed"), ("phase=Good", "Available"), ("limit=201", "200"), ("offset=-1", "offset")]
    {
        let error = world.get(&format!("/v1/dashboard/models?{wrong}")).await.refused(400, "BadRequest");
        assert!(error.to_string().contains(says), "{wrong}: {error}");
    }
    let missing = world.get("/v1/dashboard/models?deployment=irsi").await.refused(404, "NotFound");
    assert!(missing["message"].as_str().is_some_and(|text| text.contains("iris")), "{missing}");
}

#[tokio::test]
async fn memory_is_told_by_model_the_largest_first() {
    let mut world = World::start().await;
    world.worker("node-1", ByteSize::gib(1)).await;
    world.post("/v1/apply", [manifest("iris"), manifest("wine")].join("---\n")).await.ok(200);
    world.until_phase("iris", "Available").await;
    world.until_phase("wine", "Available").await;
    let memory = world.get("/v1/dashboard/memory?largest=1").await.ok(200);
    let worker = &memory["items"][0];
    assert_eq!((&worker["worker"], &worker["others"]), (&json!("node-1"), &json!(1)), "{memory}");
    assert_eq!(worker["largest"][0]["memory"], ByteSize::mib(10).0);
    assert_eq!(worker["othersMemory"], ByteSize::mib(10).0);
}

#[tokio::test]
async fn history_begins_with_the_process() {
    let mut world = World::start().await;
    world.worker("node-1", ByteSize::gib(1)).await;
    // The first sample is taken at once.
    let history = loop {
        let history = world.get("/v1/dashboard/history").await.ok(200);
        if history["lines"][0]["points"].as_array().is_some_and(|points| !points.is_empty()) {
            break history;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((&history["stepMs"], &history["lines"][0]["name"]), (&json!(10_000), &json!("requestsPerSecond")));
    let day = world.get("/v1/dashboard/history?worker=node-1&range=day").await.ok(200);
    assert_eq!(
        (&day["stepMs"], &day["of"], &day["lines"][0]["name"]),
        (&json!(120_000), &json!("node-1"), &json!("memory"))
    );
    world.get("/v1/dashboard/history?worker=nobody").await.refused(404, "NotFound");
    world.get("/v1/dashboard/history?range=year").await.refused(400, "BadRequest");
    world.get("/v1/dashboard/history?worker=node-1&deployment=iris").await.refused(400, "BadRequest");
}

#[tokio::test]
async fn news_come_live_to_a_bounded_number_of_readers() {
    let world = World::start().await;
    let open = || world.request("GET", "/v1/dashboard/stream").send();
    let mut first = open().await.expect("it is serving");
    assert_eq!(first.headers()["content-type"], "text/event-stream");
    let mut readers = Vec::new();
    for _ in 1..64 {
        readers.push(open().await.expect("it is serving"));
    }
    world.get("/v1/dashboard/stream").await.refused(503, "Unavailable");
    world.post("/v1/apply", manifest("iris")).await.ok(200);
    let mut text = String::new();
    let told = async {
        while !(text.contains("event: pulse") && text.contains("event: events") && text.contains("Declared")) {
            let chunk = first.chunk().await.expect("it goes on").expect("it does not end");
            text.push_str(std::str::from_utf8(&chunk).expect("it is text"));
        }
    };
    timeout(PATIENCE, told).await.expect("in time");
    let line = text.lines().find(|line| line.starts_with("data: [")).expect("events are a list");
    let events: serde_json::Value = serde_json::from_str(&line["data: ".len()..]).expect("it is JSON");
    assert_eq!(events[0]["kind"], "Event", "{events}");
    drop(readers);
    let again = async {
        while open().await.expect("it is serving").status() != 200 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, again).await.expect("places are given back");
}

#[tokio::test]
async fn who_comes_back_gets_what_he_missed() {
    let world = World::start().await;
    world.post("/v1/apply", manifest("iris")).await.ok(200);
    let mut response =
        world.request("GET", "/v1/dashboard/stream").header("last-event-id", "0").send().await.expect("it is serving");
    let chunk = timeout(PATIENCE, response.chunk()).await.expect("in time").expect("it goes on").expect("a piece");
    let text = String::from_utf8_lossy(&chunk);
    assert!(text.starts_with("id: ") && text.contains("iris"), "{text}");
}

#[tokio::test]
async fn without_a_gateway_nothing_is_tried() {
    let world = World::start().await;
    world.post("/v1/apply", manifest("iris")).await.ok(200);
    let error = world.get("/v1/deployments/iris/try").await;
    assert_eq!(error.status, 501, "{}", error.text);
    let large = "x".repeat((1 << 20) + 1);
    world.post("/v1/deployments/iris/try", large).await.refused(413, "TooLarge");
}
