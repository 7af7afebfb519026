//! Bodies that pass through, short and long, and clients that misbehave while they do.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::nodes::{TestCluster, metric};
use crate::fixture::{Echo, REQUEST, TestGateway, on, soon, until};

/// A request of about this many bytes, as JSON cannot be: raw.
fn binary(bytes: usize) -> (String, Vec<u8>) {
    let rows = bytes / 16;
    let head = format!(
        r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[{rows},4],"parameters":{{"binary_data_size":{}}}}}],"parameters":{{"binary_data_output":true}}}}"#,
        rows * 16
    );
    let mut body = head.clone().into_bytes();
    body.resize(head.len() + rows * 16, 1);
    (head.len().to_string(), body)
}

async fn begin(gateway: &TestGateway, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address()).await.expect("it listens");
    let head = format!("POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.expect("written");
    stream
}

async fn all(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset after the answer is as good as an end.
    let _ = soon("the end", stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn long_bodies_and_answers_pass_through() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let echo = Echo::open();
    cluster.serve("iris", &[("b", &echo)]).await;
    for bytes in [1 << 10, 300 << 10, 2 << 20, 9 << 20] {
        let (length, body) = binary(bytes);
        let headers = [("inference-header-content-length", length.as_str())];
        let gateway = cluster.gateway("a");
        let answer = gateway.request(http::Method::POST, "/v2/models/iris/infer", &headers, body).await;
        assert_eq!(answer.status, 200, "{bytes}");
        assert!(answer.body.len() > bytes, "{bytes}: {}", answer.body.len());
    }
    assert_eq!(metric(cluster.gateway("a"), "berth_gateway_replay_bytes", &[]), 0, "all is given back");
}

#[tokio::test]
async fn a_body_beyond_what_is_kept_is_not_sent_again() {
    let mut cluster = TestCluster::with(&["a", "b", "c"], |_, config| config.limits.replay = 64 << 10).await;
    let (held, other) = (Echo::shut(), Echo::open());
    cluster.put("c", "iris", &other);
    for (bytes, status) in [(32 << 10, 200), (1 << 20, 502)] {
        let mut cluster = TestCluster::with(&["a", "b", "c"], |_, config| config.limits.replay = 64 << 10).await;
        cluster.serve("iris", &[("b", &held)]).await;
        let (length, body) = binary(bytes);
        let headers = [("inference-header-content-length", length.as_str())];
        let asked = cluster.gateway("a").request(http::Method::POST, "/v2/models/iris/infer", &headers, body);
        let asked = tokio::spawn(asked);
        held.starts().await;
        cluster.put("c", "iris", &other);
        cluster.route("iris", &["b", "c"]).await;
        cluster.node("b").kill();
        let answer = asked.await.expect("it ran");
        assert_eq!(answer.status, status, "{bytes}: {answer:?}");
    }
    assert_eq!(other.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn a_body_in_pieces_is_sent_again_from_its_start() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (gone, other) = (Echo::open(), Echo::open());
    cluster.serve("iris", &[("b", &gone)]).await;
    let (length, body) = binary(100 << 10);
    let headers = format!("Content-Length: {}\r\nInference-Header-Content-Length: {length}\r\n", body.len());
    let mut stream = begin(cluster.gateway("a"), &headers).await;
    stream.write_all(&body[..50_000]).await.expect("written");
    until("it is kept", || metric(cluster.gateway("a"), "berth_gateway_replay_bytes", &[]) >= 50_000).await;
    cluster.put("c", "iris", &other);
    cluster.route("iris", &["c"]).await;
    cluster.node("b").kill();
    until("it is sent again", || metric(cluster.gateway("a"), "berth_gateway_retries_total", &[]) >= 1).await;
    stream.write_all(&body[50_000..]).await.expect("written");
    let answer = all(stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:.200}");
    assert_eq!((gone.runs.load(SeqCst), other.runs.load(SeqCst)), (0, 1));
}

#[tokio::test]
async fn clients_that_misbehave_are_told_here() {
    let mut cluster = TestCluster::with(&["a", "b", "c"], |name, config| match name {
        "a" => config.limits.body_idle = Duration::from_millis(200),
        "c" => config.limits.body = 128 << 10,
        _ => {}
    })
    .await;
    let echo = Echo::open();
    cluster.serve("iris", &[("b", &echo)]).await;
    let mut large = begin(cluster.gateway("c"), "Transfer-Encoding: chunked\r\n").await;
    let chunk = vec![b' '; 64 << 10];
    for _ in 0..3 {
        // It may be told before the last.
        let _ = large.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).await;
        let _ = large.write_all(&chunk).await;
        let _ = large.write_all(b"\r\n").await;
    }
    let answer = all(large).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer:.300}");
    let mut slow = begin(cluster.gateway("a"), "Content-Length: 1000\r\n").await;
    slow.write_all(b"{").await.expect("written");
    let answer = all(slow).await;
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer:.300}");
    assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200, "the place is not blamed");
    // The short one had not been sent yet.
    assert_eq!(
        ["a", "c"].map(|node| metric(cluster.gateway(node), "berth_gateway_forwards_total", &["client"])),
        [0, 1]
    );
}

/// A client that goes away takes its request out of the model elsewhere, too.
#[tokio::test]
async fn a_client_that_leaves_is_not_run_for() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let held = Echo::shut();
    cluster.put("b", "iris", &held);
    cluster.gateway("a").set(vec![on("iris", "1", &["b"])]).await;
    let asked = tokio::spawn(cluster.gateway("a").infer("iris", &[]));
    held.starts().await;
    asked.abort();
    let replica = cluster.gateway("b").replicas.get(&crate::fixture::revision("iris", "1")).expect("there");
    replica.begin_drain();
    soon("the lease", replica.drained()).await;
    assert_eq!(held.runs.load(SeqCst), 0);
}

/// A client that sends a short body slowly is not in flight yet, and takes nobody's place.
#[tokio::test]
async fn a_slow_client_leaves_the_model_to_the_others() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let echo = Echo::open();
    cluster.put("b", "iris", &echo);
    let concurrency = berth_spec::deployment::Concurrency { max: Some(1), queue: 9 };
    cluster.gateway("a").set(vec![berth_spec::Route { concurrency, ..on("iris", "1", &["b"]) }]).await;
    let mut slow = begin(cluster.gateway("a"), &format!("Content-Length: {}\r\n", REQUEST.len())).await;
    slow.write_all(&REQUEST.as_bytes()[..10]).await.expect("written");
    until("it is let in", || cluster.gateway("a").handle.inside() > 0).await;
    for _ in 0..3 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    slow.write_all(&REQUEST.as_bytes()[10..]).await.expect("written");
    let answer = all(slow).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:.200}");
}
