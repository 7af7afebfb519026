//! Requests to functions: the hook hears who has sent them, and gets what the client wrote.

use std::sync::Arc;

use berth_mesh::config::FunctionHook;
use http::{Method, Request};
use http_body_util::BodyExt as _;

use super::nodes::{TestCluster, worker};

/// Repeats what it is asked.
fn repeats() -> FunctionHook {
    Arc::new(|sender, request| {
        let (head, body) = request.into_parts();
        let token = head.headers.get("authorization").map_or("", |value| value.to_str().expect("text"));
        let said = format!("{sender:?} {} {} {token} {}", head.method, head.uri, String::from_utf8_lossy(&body));
        Box::pin(std::future::ready(http::Response::new(berth_peer::full(said))))
    })
}

#[tokio::test]
async fn a_function_is_asked_by_clients_and_by_nodes() {
    let with_functions = |name: &str, config: &mut berth_mesh::Config| {
        if name == "b" {
            assert!(config.functions.set(repeats()).is_ok());
        }
    };
    let mut cluster = TestCluster::with(&["a", "b"], with_functions).await;
    let headers = [("authorization", "Bearer t")];
    let answer = cluster.gateway("b").request(Method::POST, "/functions/f?x=1", &headers, "hi").await;
    let said = String::from_utf8_lossy(&answer.body);
    assert!(said.starts_with("Client POST ") && said.ends_with("/functions/f?x=1 Bearer t hi"), "{said}");
    let answer = cluster.gateway("b").request(Method::POST, "/namespaces/team/functions/f", &headers, "hi").await;
    let said = String::from_utf8_lossy(&answer.body);
    assert!(said.ends_with("/namespaces/team/functions/f Bearer t hi"), "{said}");

    let b = cluster.node("a").peers.get(&worker("b")).expect("a peer");
    let request = Request::put("https://b/functions/f?x=1").header("authorization", "Bearer t");
    let answer = b.send(request.body(berth_peer::full("hi")).expect("a request")).await.expect("an answer");
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(&*body, b"Node PUT /functions/f?x=1 Bearer t hi".as_slice());

    let request = Request::put("https://b/namespaces/team/functions/f").header("authorization", "Bearer t");
    let answer = b.send(request.body(berth_peer::full("hi")).expect("a request")).await.expect("an answer");
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(&*body, b"Node PUT /namespaces/team/functions/f Bearer t hi".as_slice());

    // A node without functions says so, and does not take it for an inference.
    let a = cluster.node("b").peers.get(&worker("a")).expect("a peer");
    let request = Request::post("https://a/functions/f").body(berth_peer::full("hi")).expect("a request");
    assert_eq!(a.send(request).await.expect("an answer").status().as_u16(), 404);
}
