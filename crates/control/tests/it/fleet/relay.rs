//! The control API of a node that does not lead.

use berth_control::leadership::LeadershipView;
use berth_spec::Epoch;
use futures::StreamExt;
use serde_json::Value;

use super::stage::{Stage, node};
use crate::{
    api::world::{PATIENCE, client},
    fixture::apply,
};

const MANIFEST: &str = "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {name: iris}\nspec:\n  model: {format: onnx, uri: \"s3://m/iris.onnx\"}\n";

async fn get(base: &str, path: &str) -> (u16, Option<String>, String) {
    let answer = client().get(format!("{base}{path}")).send().await.expect("an answer");
    let again = answer.headers().get("retry-after").map(|value| value.to_str().expect("text").to_owned());
    (answer.status().as_u16(), again, answer.text().await.expect("a body"))
}

#[tokio::test]
async fn any_node_takes_what_the_leader_is_to_do() {
    let mut stage = Stage::of(&["a", "b"]).await;
    let handle = stage.elect(0);
    let other = stage.nodes[1].api.clone();
    let client = client();
    let applied = client.post(format!("{other}/v1/apply")).body(MANIFEST).send().await.expect("an answer");
    assert_eq!(applied.status(), 200, "{}", applied.text().await.expect("a body"));
    let (status, _, text) = get(&other, "/v1/deployments/iris").await;
    let view: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((status, view["metadata"]["name"].as_str()), (200, Some("iris")));
    assert_eq!(get(&other, "/v1/deployments/rose").await.0, 404, "errors come as they are");
    let (_, _, version) = get(&other, "/version").await;
    assert!(version.contains("\"b\""), "what concerns the node it says itself: {version}");

    // A watch goes on as long as the client likes, one line after the other.
    let watch = client.get(format!("{other}/v1/deployments?watch=true")).send().await.expect("an answer");
    let mut lines = watch.bytes_stream();
    let first = lines.next().await.expect("a line").expect("read");
    assert!(first.windows(4).any(|word| word == b"iris"));
    handle.apply(apply("rose", "")).await.expect("applied");
    let changed = async {
        let mut text = String::new();
        while !text.contains("rose") {
            text.push_str(&String::from_utf8_lossy(&lines.next().await.expect("a line").expect("read")));
        }
    };
    tokio::time::timeout(PATIENCE, changed).await.expect("it is told while the watch is open");
}

#[tokio::test]
async fn where_nobody_leads_it_says_so_and_what_works() {
    let mut stage = Stage::of(&["a", "b"]).await;
    let base = stage.nodes[0].api.clone();
    let (status, again, text) = get(&base, "/v1/deployments").await;
    assert_eq!((status, again.as_deref()), (503, Some("1")));
    assert!(text.contains("NoLeader") && text.contains("go on answering"), "{text}");
    for (path, status) in [("/healthz", 200), ("/metrics", 200), ("/version", 200), ("/readyz", 503)] {
        assert_eq!(get(&base, path).await.0, status, "{path}");
    }
    assert_eq!(get(&base, "/v1/deployments/iris").await.0, 503);

    // Each takes the other for the leader: the request goes one way, and not back again.
    for (index, other) in [(0, "b"), (1, "a")] {
        let leader = Some((node(other), Epoch(4)));
        stage.nodes[index].leadership.send_replace(LeadershipView::Following { leader });
    }
    let (status, _, text) = get(&base, "/v1/deployments").await;
    assert!(status == 503 && text.contains("NoLeader"), "{status} {text}");
    assert_eq!(get(&base, "/readyz").await.0, 200, "it knows whom to ask");

    stage.nodes[0].leadership.send_replace(LeadershipView::Following { leader: Some((node("stranger"), Epoch(5))) });
    let (status, _, text) = get(&base, "/v1/deployments").await;
    assert!(status == 503 && text.contains("stranger"), "{status} {text}");
    stage.elect(0);
    assert_eq!(get(&base, "/v1/deployments").await.0, 200);
}
