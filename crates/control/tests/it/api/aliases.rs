//! REST: aliases.

use berth_spec::ByteSize;
use serde_json::json;

use super::world::{World, answer, manifest};

fn alias(name: &str, targets: &str) -> String {
    format!("apiVersion: berth.dev/v1\nkind: Alias\nmetadata: {{name: {name}}}\nspec: {{targets: [{targets}]}}\n")
}

#[tokio::test]
async fn declare_look_change_and_delete() {
    let mut world = World::start().await;
    world.worker("node-1", ByteSize::gib(1)).await;
    let both =
        format!("{}---\n{}", alias("live", "{deployment: iris, weight: 3}, {deployment: wine}"), manifest("iris"));
    let planned = world.post("/v1/plan", both.clone()).await.ok(200);
    let kinds = |results: &serde_json::Value| {
        let results = results.as_array().cloned().unwrap_or_default();
        results
            .iter()
            .map(|r| format!("{} {}", r["kind"], r["outcome"]))
            .collect::<Vec<_>>()
            .join(", ")
            .replace('"', "")
    };
    assert_eq!(kinds(&planned["documents"]), "Alias created, ModelDeployment created");
    let absent = "there is no deployment wine: its share goes to the other targets until there is one";
    assert_eq!(planned["documents"][0]["warnings"], json!([absent]), "iris is declared with it");
    assert_eq!(world.get("/v1/aliases").await.ok(200)["items"], json!([]), "a plan changes nothing");
    let applied = world.post("/v1/apply", both).await.ok(200);
    assert_eq!(kinds(&applied["results"]), "Alias created, ModelDeployment created");
    world.until_phase("iris", "Available").await;

    let found = world.get("/v1/aliases/live").await;
    let tag = found.headers["etag"].clone();
    let found = found.ok(200);
    assert_eq!((&found["kind"], &found["metadata"]["namespace"]), (&json!("Alias"), &json!("default")));
    assert_eq!(found["spec"]["targets"][0]["weight"], 3);
    let targets = json!([
        {"deployment": "iris", "weight": 3, "share": 100, "phase": "Available"},
        {"deployment": "wine", "weight": 1, "share": 0, "phase": "Missing"},
    ]);
    assert_eq!((&found["status"]["targets"], &found["status"]["missing"]), (&targets, &json!(["wine"])));
    let same = world.get("/v1/namespaces/default/aliases/live").await.ok(200);
    assert_eq!(same, found);
    for (path, count) in [("/v1/aliases", 1), ("/v1/namespaces/default/aliases", 1), ("/v1/namespaces/team/aliases", 0)]
    {
        let items = world.get(path).await.ok(200)["items"].as_array().map(Vec::len);
        assert_eq!(items, Some(count), "{path}");
    }

    let put = |path: &str, body: String| world.request("PUT", path).body(body);
    let same = answer(put("/v1/aliases/live", found.to_string()).header("if-match", &tag)).await.ok(200);
    assert_eq!(same["outcome"], "unchanged", "what the server adds is ignored");
    let even = alias("live", "{deployment: iris}, {deployment: wine}");
    let changed = answer(put("/v1/aliases/live", even).header("if-match", &tag)).await.ok(200);
    assert_eq!(changed["outcome"], "configured");
    answer(put("/v1/aliases/live", alias("live", "{deployment: wine}")).header("if-match", &tag))
        .await
        .refused(412, "PreconditionFailed");
    answer(put("/v1/aliases/other", alias("live", "{deployment: wine}"))).await.refused(400, "BadRequest");
    answer(put("/v1/aliases/iris", manifest("iris"))).await.refused(400, "BadRequest");
    answer(put("/v1/aliases/iris", alias("iris", "{deployment: wine}"))).await.refused(409, "NameInUse");
    answer(put("/v1/deployments/live", manifest("live"))).await.refused(409, "NameInUse");
    let team = alias("live", "{deployment: iris}");
    let team = answer(put("/v1/namespaces/team/aliases/live", team)).await.ok(201);
    assert_eq!(team["name"], "team/live");

    let missing = world.get("/v1/aliases/lime").await.refused(404, "NotFound");
    assert!(missing["message"].as_str().is_some_and(|text| text.contains("live")), "{missing}");
    let dry = answer(world.request("DELETE", "/v1/aliases/live?dryRun=true")).await.ok(200);
    assert_eq!(dry["outcome"], "deleted");
    answer(world.request("DELETE", "/v1/aliases/live")).await.ok(200);
    answer(world.request("DELETE", "/v1/aliases/live")).await.refused(404, "NotFound");
    world.until_phase("iris", "Available").await;
}
