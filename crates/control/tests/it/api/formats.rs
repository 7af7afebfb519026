//! A manifest says the same in YAML and in JSON, whichever way it is asked about.

use berth_spec::ByteSize;
use serde_json::{Value, json};

use super::world::{PATIENCE, World, answer, manifest};

fn document(name: &str) -> Value {
    json!({
        "apiVersion": "berth.dev/v1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"format": "onnx", "uri": format!("https://example.com/{name}.onnx")},
            "replicas": {"min": 0, "max": 1},
            "priority": 70,
        },
    })
}

#[tokio::test]
async fn json_and_yaml_manifests_are_the_same() {
    let world = World::start().await;
    let applied = world.post("/v1/apply", document("wine").to_string()).await.ok(200);
    assert_eq!(
        (&applied["results"][0]["name"], &applied["results"][0]["outcome"]),
        (&json!("wine"), &json!("created"))
    );
    let again = world.post("/v1/apply", document("wine").to_string()).await.ok(200);
    assert_eq!(again["results"][0]["outcome"], "unchanged");
    let found = world.get("/v1/deployments/wine").await.ok(200);
    assert_eq!(found["spec"], document("wine")["spec"]);

    let put = world.request("PUT", "/v1/deployments/wine").header("content-type", "application/json");
    let put = answer(put.body(document("wine").to_string())).await.ok(200);
    assert_eq!(put["outcome"], "unchanged");

    world.post("/v1/apply", manifest("iris")).await.ok(200);
    let list = world.get("/v1/deployments?labelSelector=app%3Dshop").await.ok(200);
    let names: Vec<_> = list["items"].as_array().expect("a list").iter().map(|one| &one["metadata"]["name"]).collect();
    assert_eq!(names, [&json!("iris")]);
}

#[tokio::test]
async fn errors_carry_the_fields() {
    let world = World::start().await;
    let mut bad = document("wine");
    bad["spec"]["priority"] = json!(700);
    let error = world.post("/v1/apply", bad.to_string()).await.refused(422, "InvalidManifest");
    assert_eq!(error["details"][0]["path"], "spec.priority", "{error}");
    world.get("/v1/deployments/nobody").await.refused(404, "NotFound");
    world.post("/v1/apply", document("wine").to_string()).await.ok(200);
    let stale = world.request("DELETE", "/v1/deployments/wine").header("if-match", "\"999\"");
    answer(stale).await.refused(412, "PreconditionFailed");
    world.post("/berth.control.v9.Nothing/Do", "").await.refused(404, "NotFound");
}

#[tokio::test]
async fn watch_explain_plan_and_lists() {
    let mut world = World::start().await;
    world.worker("node-1", ByteSize::gib(1)).await;
    let mut watch = world.lines("/v1/deployments?watch=true").await;
    assert_eq!(watch.next().await.expect("it goes on")["type"], "BOOKMARK");

    let plan = world.post("/v1/plan", manifest("iris")).await.ok(200);
    assert_eq!(plan["steps"].as_array().map(Vec::len), Some(1), "{plan}");
    assert_eq!(plan["documents"][0]["outcome"], "created", "{plan}");

    world.post("/v1/apply", manifest("iris")).await.ok(200);
    let available =
        async { while watch.next().await.expect("it goes on")["object"]["status"]["phase"] != "Available" {} };
    tokio::time::timeout(PATIENCE, available).await.expect("it is available");
    let explained = world.get("/v1/deployments/iris/explain").await.ok(200);
    assert_eq!(explained["workers"][0]["verdict"], "Holds", "{explained}");
    let workers = world.get("/v1/workers").await.ok(200);
    let worker = &workers["items"][0];
    assert_eq!((&worker["metadata"]["name"], &worker["status"]["ready"]), (&json!("node-1"), &json!(1)), "{worker}");
    let events = world.get("/v1/events").await.ok(200);
    let events = events["items"].as_array().expect("events");
    assert!(events.iter().any(|event| event["deployment"] == "iris"), "{events:?}");
}
