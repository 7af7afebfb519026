//! Queries from the leader to the other nodes.

use std::time::Instant;

use serde_json::{Value, json};

use super::stage::Stage;
use crate::api::world::{PATIENCE, client};

async fn get(base: &str, path: &str) -> Value {
    let answer = client().get(format!("{base}{path}")).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON")
}

/// Waits for an answer of a node. A slow node may count as missing on a busy machine, and a stopped one answers until
/// it notices.
async fn until(what: &str, base: &str, path: &str, so: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let said = get(base, path).await;
        if so(&said) {
            return said;
        }
        assert!(Instant::now() < end, "never came: {what}: {said}");
        tokio::task::yield_now().await;
    }
}

fn requests(top: &Value) -> Vec<(&str, u64)> {
    let models = top["models"].as_array().expect("models").iter();
    models
        .map(|model| (model["deployment"].as_str().expect("a name"), model["requests"].as_u64().unwrap_or(0)))
        .collect()
}

/// Whichever node is asked.
#[tokio::test]
async fn top_is_of_all_gateways_and_names_those_that_do_not_answer() {
    let mut stage = Stage::of(&["a", "b", "c"]).await;
    let _leader = stage.elect(0);
    let all = |top: &Value| top["missing"].is_null();
    let top = until("all answer", &stage.nodes[1].api, "/v1/top", all).await;
    assert_eq!(top["gateways"], json!(3), "{top}");
    assert_eq!(requests(&top), [("iris", 60), ("a", 10), ("b", 10), ("c", 10)], "{top}");
    let top = until("all answer", &stage.nodes[1].api, "/v1/top?limit=1", all).await;
    assert_eq!(requests(&top), [("iris", 60)]);

    stage.nodes[1].port.cancel();
    let without = |top: &Value| top["missing"] == json!(["b"]);
    let top = until("one is missing", &stage.nodes[0].api, "/v1/top", without).await;
    assert_eq!(top["gateways"], json!(2), "{top}");
    assert_eq!(requests(&top), [("iris", 40), ("a", 10), ("c", 10)], "{top}");
}

#[tokio::test]
async fn a_node_says_why_it_does_not_come_and_what_it_was_told_otherwise() {
    let mut stage = Stage::of(&["a", "b", "c"]).await;
    let _leader = stage.elect(0);
    let notes = |nodes: &Value| -> Vec<String> {
        let items = nodes["items"].as_array().expect("nodes").iter();
        items.map(|node| node["status"]["message"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let answered = |nodes: &Value| !notes(nodes).iter().any(|note| note.contains("does not answer"));
    let told = notes(&until("all answer", &stage.nodes[0].api, "/v1/nodes", answered).await);
    assert_eq!((&*told[0], &*told[1]), ("", ""), "they were told the same");
    assert!(told[2].contains("(--model-type onnx:required:pool=c) is not what the leader was told (none)"), "{told:?}");
    stage.nodes[1].port.cancel();
    let noted = |node: &Value| node["status"]["message"].as_str().is_some_and(|note| !note.is_empty());
    let node = until("a note", &stage.nodes[0].api, "/v1/nodes/b", noted).await;
    assert_eq!(node["status"]["state"], "Joining");
    let note = node["status"]["message"].as_str().unwrap_or_default();
    assert!(note.contains(" b"), "it names the node and what came of asking: {note}");
}
