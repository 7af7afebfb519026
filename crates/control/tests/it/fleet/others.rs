//! What the leader asks the other nodes.

use serde_json::{Value, json};

use super::stage::Stage;

async fn get(base: &str, path: &str) -> Value {
    let answer = reqwest::get(format!("{base}{path}")).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON")
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
    let top = get(&stage.nodes[1].api, "/v1/top").await;
    assert_eq!((&top["gateways"], &top["missing"]), (&json!(3), &json!(null)), "{top}");
    assert_eq!(requests(&top), [("iris", 60), ("a", 10), ("b", 10), ("c", 10)], "{top}");
    let top = get(&stage.nodes[1].api, "/v1/top?limit=1").await;
    assert_eq!(requests(&top), [("iris", 60)]);

    stage.nodes[1].port.cancel();
    let mut top = get(&stage.nodes[0].api, "/v1/top").await;
    while top["missing"].is_null() {
        // Its port ends when it has seen that it should.
        tokio::task::yield_now().await;
        top = get(&stage.nodes[0].api, "/v1/top").await;
    }
    assert_eq!((&top["gateways"], &top["missing"]), (&json!(2), &json!(["b"])), "{top}");
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
    let told = notes(&get(&stage.nodes[0].api, "/v1/nodes").await);
    assert_eq!((&*told[0], &*told[1]), ("", ""), "they were told the same");
    assert!(told[2].contains("(--model-type onnx:required:pool=c) is not what the leader was told (none)"), "{told:?}");
    stage.nodes[1].port.cancel();
    let mut note = String::new();
    while note.is_empty() {
        tokio::task::yield_now().await;
        let node = get(&stage.nodes[0].api, "/v1/nodes/b").await;
        assert_eq!(node["status"]["state"], "Joining");
        note = node["status"]["message"].as_str().unwrap_or_default().to_owned();
    }
    assert!(note.contains(" b"), "it names the node and what came of asking: {note}");
}
