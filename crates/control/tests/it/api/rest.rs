//! REST: declaring, conflicts, errors with their places, limits.

use std::time::Instant;

use serde_json::json;
use tokio::time::timeout;

use berth_spec::ByteSize;

use super::world::{PATIENCE, World, answer, manifest};

#[tokio::test]
async fn declare_look_and_delete() {
    let mut world = World::start().await;
    world.worker("node-1", ByteSize::gib(1)).await;
    let live = "apiVersion: berth.dev/v1\nkind: Alias\nmetadata: {name: live}\nspec: {targets: [{deployment: iris}]}\n";
    let declared = world.post("/v1/apply", live).await.ok(200)["results"][0].clone();
    assert_eq!((&declared["kind"], &declared["outcome"]), (&json!("Alias"), &json!("created")));
    let body = format!("{}---\n{}", manifest("iris"), manifest("wine"));
    let applied = world.post("/v1/apply", body.clone()).await.ok(200);
    let results = applied["results"].as_array().expect("one per document");
    assert_eq!(
        results.iter().map(|r| (&r["name"], &r["outcome"])).collect::<Vec<_>>(),
        [(&json!("iris"), &json!("created")), (&json!("wine"), &json!("created"))]
    );
    let again = world.post("/v1/apply", body).await.ok(200);
    assert_eq!(again["results"][0]["outcome"], "unchanged");

    let iris = world.until_phase("iris", "Available").await;
    assert_eq!(iris["apiVersion"], "berth.dev/v1");
    assert_eq!(iris["kind"], "ModelDeployment");
    assert_eq!(iris["metadata"]["generation"], 1);
    assert_eq!(iris["metadata"]["origin"], "api");
    assert_eq!(iris["spec"]["model"]["format"], "onnx");
    assert_eq!(iris["spec"].get("priority"), None, "what was not written is not shown");
    assert_eq!(iris["status"]["replicas"], json!({ "desired": 1, "ready": 1 }));
    assert_eq!(iris["status"]["replicaDetails"][0]["memory"], 10 << 20);

    let list = world.get("/v1/deployments?labelSelector=app%3Dshop&limit=1").await.ok(200);
    assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&json!("ModelDeploymentList"), Some(1)));
    let next = list["metadata"]["continue"].as_str().expect("there is more");
    let rest = world.get(&format!("/v1/deployments?labelSelector=app%3Dshop&limit=1&continue={next}")).await.ok(200);
    assert_eq!(rest["items"][0]["metadata"]["name"], "wine");
    let none = world.get("/v1/deployments?labelSelector=app!%3Dshop").await.ok(200);
    assert_eq!(none["items"], json!([]));

    for (path, kind) in [
        ("/v1/workers", "WorkerList"),
        ("/v1/replicas?deployment=iris", "ReplicaList"),
        ("/v1/revisions", "RevisionList"),
        ("/v1/aliases", "AliasList"),
        ("/v1/events", "EventList"),
        ("/v1/namespaces/default/replicas", "ReplicaList"),
        ("/v1/namespaces/default/replicas?deployment=iris", "ReplicaList"),
        ("/v1/namespaces/default/revisions", "RevisionList"),
        ("/v1/namespaces/default/events?deployment=iris", "EventList"),
    ] {
        let list = world.get(path).await.ok(200);
        assert_eq!(list["kind"], kind);
        assert!(list["items"].as_array().is_some_and(|items| !items.is_empty()), "{path}: {list}");
    }
    for kind in ["replicas", "revisions", "events"] {
        let path = format!("/v1/namespaces/team/{kind}?namespace=default");
        let list = world.get(&path).await.ok(200);
        assert_eq!(list["items"], json!([]), "{path}: the namespace is that of the path");
    }
    let events = world.get("/v1/namespaces/default/events").await.ok(200);
    let of_deployments = |event: &serde_json::Value| event["deployment"].is_string();
    assert!(events["items"].as_array().is_some_and(|items| items.iter().all(of_deployments)), "{events}");
    let top = world.get("/v1/top").await.ok(200);
    assert_eq!((&top["models"][0]["requests"], &top["models"][0]["ready"]), (&json!(7), &json!(1)), "{top}");
    let explained = world.get("/v1/deployments/iris/explain").await.ok(200);
    assert_eq!(explained["workers"][0]["verdict"], "Holds", "{explained}");

    let gone = answer(world.request("DELETE", "/v1/deployments/iris")).await.ok(200);
    assert_eq!(gone["outcome"], "deleted");
}

#[tokio::test]
async fn bad_manifests_say_where_and_what_to_do() {
    let world = World::start().await;
    let bad = format!("{}---\n{}  replicas: {{min: -1}}\n  priorty: 3\n", manifest("iris"), manifest("wine"));
    let request = world.request("POST", "/v1/apply").header("x-berth-file", "models.yaml").body(bad);
    let error = answer(request).await.refused(422, "InvalidManifest");
    let details = error["details"].as_array().expect("one per fault");
    let fault = details.iter().find(|d| d["path"].as_str().is_some_and(|p| p.contains("priorty"))).expect("it is told");
    assert_eq!(fault["file"], "models.yaml");
    assert_eq!((&fault["line"], &fault["column"]), (&json!(23), &json!(3)), "{error}");
    assert!(fault["remedy"].as_str().is_some_and(|remedy| remedy.contains("priority")), "{fault}");
    assert!(details.iter().any(|d| d["path"].as_str().is_some_and(|p| p.starts_with("spec.replicas"))), "{error}");
    let list = world.get("/v1/deployments").await.ok(200);
    assert_eq!(list["items"], json!([]), "nothing was applied");

    let fine = world.post("/v1/validate", manifest("iris")).await.ok(200);
    assert_eq!(fine["documents"], json!(["iris"]));
    let broken = world.post("/v1/validate", "a: 1\nb: [").await.refused(422, "InvalidManifest");
    assert!(broken["message"].as_str().is_some_and(|message| message.starts_with("line 2, column ")), "{broken}");
    world.post("/v1/apply", "").await.refused(400, "BadRequest");
}

#[tokio::test]
async fn two_writers() {
    let world = World::start().await;
    let put = |body: String| world.request("PUT", "/v1/deployments/iris").body(body);
    let created = answer(put(manifest("iris")).header("if-none-match", "*")).await.ok(201);
    let first = created["resourceVersion"].as_str().expect("a version").to_owned();
    answer(put(manifest("iris")).header("if-none-match", "*")).await.refused(412, "PreconditionFailed");

    let found = world.get("/v1/deployments/iris").await;
    assert_eq!(found.headers["etag"], format!("\"{first}\""));

    let changed = manifest("iris") + "  priority: 70\n";
    let written = answer(put(changed.clone()).header("if-match", format!("\"{first}\""))).await.ok(200);
    assert_eq!((&written["outcome"], &written["generation"]), (&json!("configured"), &json!(2)));
    answer(put(manifest("iris")).header("if-match", format!("\"{first}\""))).await.refused(412, "PreconditionFailed");

    let stale = manifest("iris").replace("metadata:\n", &format!("metadata:\n  resourceVersion: \"{first}\"\n"));
    let error = answer(put(stale.clone())).await.refused(409, "ResourceVersionChanged");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("read it again")), "{error}");

    // One stale document keeps the others from being applied.
    let both = format!("{}---\n{stale}", manifest("wine"));
    let error = world.post("/v1/apply", both).await.refused(409, "ResourceVersionChanged");
    assert_eq!(error["details"][0]["path"], "iris");
    world.get("/v1/deployments/wine").await.refused(404, "NotFound");

    let gone = manifest("gone").replace("metadata:\n", "metadata:\n  resourceVersion: \"7\"\n");
    let error = answer(world.request("PUT", "/v1/deployments/gone").body(gone)).await;
    let error = error.refused(409, "ResourceVersionChanged");
    assert!(
        error["message"].as_str().is_some_and(|message| message.contains("leave out metadata.resource")),
        "{error}"
    );

    answer(world.request("PUT", "/v1/deployments/other").body(manifest("iris"))).await.refused(400, "BadRequest");
    let stale = world.request("DELETE", "/v1/deployments/iris").header("if-match", "\"1\"");
    answer(stale).await.refused(412, "PreconditionFailed");
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let mut world = World::start().await;
    world.worker("node-1", ByteSize::gib(1)).await;
    let dry = world.post("/v1/apply?dryRun=true", manifest("iris")).await.ok(200);
    assert_eq!((&dry["dryRun"], &dry["results"][0]["outcome"]), (&json!(true), &json!("created")));
    world.get("/v1/deployments/iris").await.refused(404, "NotFound");

    let plan = world.post("/v1/plan", manifest("iris")).await.ok(200);
    assert_eq!(plan["documents"][0]["outcome"], "created");
    assert_eq!(plan["steps"][0]["action"], "Load", "{plan}");
    assert_eq!(plan["steps"][0]["worker"], "node-1");
    world.get("/v1/deployments/iris").await.refused(404, "NotFound");

    world.post("/v1/apply", manifest("iris")).await.ok(200);
    let dry = answer(world.request("DELETE", "/v1/deployments/iris?dryRun=true")).await.ok(200);
    assert_eq!(dry["outcome"], "deleted");
    world.get("/v1/deployments/iris").await.ok(200);
}

#[tokio::test]
async fn a_registry_is_planned_with_its_workers() {
    let mut world = World::start().await;
    world.worker("node-1", ByteSize::gib(1)).await;
    world.post("/v1/apply", manifest("iris")).await.ok(200);
    world.until_phase("iris", "Available").await;
    let wine = json!({
        "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": "wine"},
        "spec": {
            "model": {"format": "onnx", "uri": "https://example.com/wine.onnx", "sha256": "ab".repeat(32)},
            "resources": {"memory": "512MiB"},
        },
    });
    let roomy = json!({"memory": 1u64 << 30, "evictionStrategy": "lru", "evicts": true});
    let small = json!({"memory": 256u64 << 20, "evictionStrategy": "lru", "evicts": true});
    for (worker, unknown, placed) in [
        (json!({"node-1": roomy}), "allow", true),
        (json!({"node-1": small}), "allow", false),
        (json!({"node-2": roomy}), "allow", true),
        (json!({"node-2": roomy}), "ignore", false),
    ] {
        let draft = json!({"manifests": [wine], "workers": worker, "unknownWorkers": unknown});
        let plan = world.post("/v1/plan/registry", draft.to_string()).await.ok(200);
        assert_eq!(plan["documents"][0]["outcome"], "created", "{plan}");
        let unplaced = plan["unplaced"].as_array().expect("a list");
        assert_eq!(unplaced.is_empty(), placed, "{worker} {unknown}: {plan}");
        let loads = plan["steps"].as_array().expect("a list").iter().any(|step| step["deployment"] == "wine");
        assert_eq!(loads, placed, "{worker} {unknown}: {plan}");
    }
    let emptied = world.post("/v1/plan/registry", json!({"deleted": ["iris"]}).to_string()).await.ok(200);
    assert_eq!((&emptied["documents"], &emptied["steps"][0]["action"]), (&json!([]), &json!("Unload")), "{emptied}");
    for (draft, says) in [
        (json!(3), "this is no registry"),
        (json!({"workers": {"node-1": {"evictionStrategy": "fifo"}}}), "write \"lru\" or \"priority\""),
        (json!({"workers": {"": small}}), "is not a name"),
        (json!({"unknownWorkers": "never"}), "this is no registry"),
        (json!({"deleted": ["iris "]}), "is not a name"),
    ] {
        let error = world.post("/v1/plan/registry", draft.to_string()).await.refused(400, "BadRequest");
        assert!(error.to_string().contains(&says.replace('"', "\\\"")), "{draft}: {error}");
    }
    assert_eq!(
        world.get("/v1/deployments").await.ok(200)["items"].as_array().map(Vec::len),
        Some(1),
        "nothing changed"
    );
}

#[tokio::test]
async fn what_is_not_there_gets_a_suggestion() {
    let world = World::start().await;
    world.post("/v1/apply", manifest("iris")).await.ok(200);
    for (path, status, reason, says) in [
        ("/v1/deployments/irsi", 404, "NotFound", "did you mean \"iris\"?"),
        ("/v1/deployments/zzzzzz", 404, "NotFound", "berth get deployments"),
        ("/v1/deployments/irsi/explain", 404, "NotFound", "did you mean"),
        ("/v1/deployments/not-a-name%20", 400, "BadRequest", "white space"),
        ("/v1/deployment", 404, "NotFound", "/v1/deployments"),
        ("/v1/deployments?lablSelector=a", 400, "BadRequest", "labelSelector"),
        ("/v1/deployments?limit=0", 400, "BadRequest", "from 1"),
        ("/v1/deployments?watch=true&resourceVersion=x", 400, "BadRequest", "resource version"),
        ("/v1/workers/nobody", 404, "NotFound", "none is attached"),
        ("/v1/apply", 405, "MethodNotAllowed", "GET is not for"),
    ] {
        let error = world.get(path).await.refused(status, reason);
        assert!(
            error["message"].as_str().is_some_and(|m| m.contains(says)) || error.to_string().contains(says),
            "{path}: {error}"
        );
    }
    answer(world.request("DELETE", "/v1/deployments/irsi")).await.refused(404, "NotFound");
}

#[tokio::test]
async fn limits() {
    let world = World::start().await;
    world.post("/v1/apply", vec![b'#'; (16 << 20) + 1]).await.refused(413, "TooLarge");
    world.post("/v1/apply", vec![0xff, 0xfe]).await.refused(400, "BadRequest");
    let form = world.request("POST", "/v1/apply").header("content-type", "multipart/form-data").body("x");
    answer(form).await.refused(415, "UnsupportedMediaType");
    let zipped = world.request("POST", "/v1/apply").header("content-encoding", "gzip").body("x");
    answer(zipped).await.refused(415, "UnsupportedMediaType");
    let deep = format!("a: {}{}", "[".repeat(50_000), "]".repeat(50_000));
    world.post("/v1/validate", deep).await.refused(422, "InvalidManifest");
    let base = world.request("POST", "/v1/apply").header("x-berth-base-uri", "models").body(manifest("iris"));
    answer(base).await.refused(400, "BadRequest");
    let head = world.request("GET", "/version").header("x-long", "a".repeat(64 << 10));
    assert_eq!(answer(head).await.status, 431);
    world.get("/version").await.ok(200);
}

/// A page that the operator looks at must not be able to declare models.
#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let world = World::start().await;
    let page = world.request("POST", "/v1/apply").header("origin", "https://evil.example").body(manifest("iris"));
    answer(page).await.refused(403, "Forbidden");
    let rebound = world.request("GET", "/v1/deployments").header("host", "evil.example");
    answer(rebound).await.refused(403, "Forbidden");
}

/// Senders that stall take up the places for bodies and nothing else: others are told to come again.
#[tokio::test]
async fn stalled_bodies_are_bounded() {
    let world = World::start().await;
    let mut stalled = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let body = reqwest::Body::wrap_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
        stalled.spawn(world.request("POST", "/v1/apply").body(body).send());
    }
    let end = Instant::now() + PATIENCE;
    let refused = loop {
        let answer = world.post("/v1/validate", manifest("iris")).await;
        if answer.status != 200 {
            break answer;
        }
        assert!(Instant::now() < end, "the places are never taken");
    };
    refused.refused(503, "Unavailable");
    assert_eq!(refused.headers["retry-after"], "1");
    world.get("/v1/deployments").await.ok(200);
    stalled.shutdown().await;
    let end = Instant::now() + PATIENCE;
    while world.post("/v1/validate", manifest("iris")).await.status != 200 {
        assert!(Instant::now() < end, "the places are not given back");
    }
}

#[tokio::test]
async fn operating() {
    let mut world = World::start().await;
    assert_eq!(world.get("/healthz").await.text, "ok\n");
    assert_eq!(world.get("/version").await.ok(200), json!({ "version": "1.2.3", "apiVersion": "berth.dev/v1" }));
    assert_eq!(world.get("/metrics").await.text, "# EOF\n");
    let index = world.get("/").await;
    assert!(index.text.contains("/v1/deployments/{name}/explain"), "{}", index.text);
    let document = world.get("/openapi.json").await.ok(200);
    assert_eq!(document["info"]["version"], "1.2.3");

    world.worker("node-1", ByteSize::gib(1)).await;
    let cordoned = world.post("/v1/workers/node-1/cordon", "").await.ok(200);
    assert_eq!(cordoned["spec"]["cordoned"], true, "{cordoned}");
    world.post("/v1/apply", manifest("iris")).await.ok(200);
    let explained = world.get("/v1/deployments/iris/explain").await.ok(200);
    assert_eq!(explained["workers"][0]["rejection"]["reason"], "Cordoned", "{explained}");
    let mut readiness = world.handle.readiness();
    drop(timeout(PATIENCE, readiness.wait_for(|readiness| readiness.expected == 1)).await.expect("in time"));
    assert_eq!(world.get("/readyz").await.ok(503)["missing"], json!(["iris"]));
    let open = world.post("/v1/workers/node-1/uncordon", "").await.ok(200);
    assert_eq!(open["spec"]["cordoned"], false, "{open}");
    drop(timeout(PATIENCE, readiness.wait_for(|readiness| readiness.ready == 1)).await.expect("in time"));
    assert_eq!(world.get("/readyz").await.ok(200)["ready"], true);
}
