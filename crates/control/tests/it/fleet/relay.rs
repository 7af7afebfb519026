//! The control API of a node that does not lead.

use berth_control::{
    api::{NoAnswer, Relay},
    leadership::LeadershipView,
};
use berth_peer::{LinePolicy, Members, Peers};
use berth_spec::{Epoch, Health, Member};
use futures::StreamExt;
use serde_json::Value;

use super::stage::{Stage, member, node};
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

/// Membership gives the leader up while it is being dialled: it has not received the request, which may be sent again.
#[tokio::test]
async fn what_was_still_dialling_has_not_reached_the_leader() {
    let stage = Stage::of(&["a"]).await;
    // It takes connections, and no more.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = silent.local_addr().expect("bound");
    let member = |name| Member::clone(&member(&node(name), at).0);
    let (members, roster) = Members::by_hand(member("a"));
    roster.set(member("b"), Health::Alive);
    let patient = LinePolicy { dial: PATIENCE, ..LinePolicy::default() };
    let relay = Relay { peers: Peers::start(stage.nodes[0].identity.clone(), members, patient), found: None };
    let b = node("b");
    while relay.peers.get(&b).is_none() {
        tokio::task::yield_now().await;
    }
    let request = || http::Request::post("/relay/v1/apply").body(berth_peer::full("")).expect("a request");
    let give_up = async {
        let dialled = silent.accept().await.expect("it is dialled");
        roster.set_health(&b, Health::Failed);
        dialled
    };
    let (asked, _dialled) = tokio::join!(relay.ask(&b, request(), PATIENCE), give_up);
    assert!(matches!(asked, Err(NoAnswer::NotSent(_))), "{asked:?}");
    let asked = relay.ask(&b, request(), PATIENCE).await;
    assert!(matches!(&asked, Err(NoAnswer::NotSent(why)) if why.contains("lost")), "{asked:?}");
}
