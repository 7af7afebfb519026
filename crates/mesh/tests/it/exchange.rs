//! Calls that a model answers by itself, of all four kinds, locally and over the hop between two nodes.

mod streamed_inference;
mod talk;

use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;

use self::talk::{Call, FLOOD_PIECE_BYTES, Talk, framed};
use crate::{
    cluster::nodes::TestCluster,
    fixture::{Echo, revision, soon, until},
};

/// Nodes `a` and `b`; the model is on `b`.
async fn cluster() -> (TestCluster, Talk) {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let talk = Talk::new();
    cluster.gateway("b").replicas.insert(revision("talk", "1"), talk.model());
    cluster.route("talk", &["b"]).await;
    (cluster, talk)
}

/// The nodes that a client may ask: over the hop, and where the model is.
const NODES: [&str; 2] = ["a", "b"];

const MODEL_HEADER: &[(&str, &str)] = &[("berth-model", "talk")];

#[tokio::test]
async fn a_unary_call_has_head_message_and_trailers() {
    let (mut cluster, _talk) = cluster().await;
    for node in NODES {
        let address = cluster.gateway(node).address();
        let headers = [("mm-model-id", "talk"), ("x-mine", "7")];
        let mut call = Call::begin(address, "/talk.Talk/Echo", &headers).await;
        call.send(framed(b"hello"), true);
        let head = call.head().await;
        assert_eq!(head.status, 200, "{node}");
        assert_eq!(head.headers["x-mine"], "7", "{node}");
        assert!(!head.headers.contains_key("berth-stream"), "{node}");
        assert_eq!(call.rest().await, framed(b"hello"), "{node}");
        let trailers = call.trailers().await;
        assert_eq!(trailers["grpc-status"], "0", "{node}");
        assert_eq!(trailers["x-end"], "1", "{node}");
    }
}

#[tokio::test]
async fn several_models_answer_as_one() {
    let (mut cluster, _talk) = cluster().await;
    for node in NODES {
        let names = [("mm-model-id", "talk"), ("mm-model-id", "talk"), ("mm-model-id", "nobody")];
        // As in ModelMesh: all that is not `all` is `any`, and so is nothing.
        for required in [None, Some("any"), Some("most"), Some("all"), Some("ALL")] {
            let mut headers = names.to_vec();
            headers.extend(required.map(|required| ("mm-required", required)));
            let mut call = Call::begin(cluster.gateway(node).address(), "/talk.Talk/Echo", &headers).await;
            call.send(framed(b"hello"), true);
            let head = call.head().await;
            if required.is_some_and(|required| required.eq_ignore_ascii_case("all")) {
                assert_eq!(head.headers["grpc-status"], "5", "{node}, {required:?}");
            } else {
                assert_eq!(head.status, 200, "{node}, {required:?}");
                assert_eq!(call.rest().await, framed(b"hellohello"), "{node}, {required:?}");
            }
        }
        let nobody = [("mm-model-id", "nobody"), ("mm-model-id", "nobody-else")];
        let mut call = Call::begin(cluster.gateway(node).address(), "/talk.Talk/Echo", &nobody).await;
        call.send(framed(b"hello"), true);
        assert_eq!(call.head().await.headers["grpc-status"], "5", "{node}: none is found");
    }
}

#[tokio::test]
async fn a_client_streams_and_is_answered_once() {
    let (mut cluster, _talk) = cluster().await;
    for node in NODES {
        let mut call = Call::begin(cluster.gateway(node).address(), "/talk.Talk/Count", MODEL_HEADER).await;
        for _ in 0..5 {
            call.send(framed(b"piece"), false);
        }
        call.send(Bytes::new(), true);
        assert_eq!(call.head().await.status, 200, "{node}");
        assert_eq!(call.rest().await, framed(b"50"), "{node}");
    }
}

/// By construction: the second message is not made before the first has arrived.
#[tokio::test]
async fn the_first_message_does_not_wait_for_the_second() {
    let (mut cluster, talk) = cluster().await;
    for node in NODES {
        let before = talk.produced.load(SeqCst);
        let mut call = Call::begin(cluster.gateway(node).address(), "/talk.Talk/Gated", MODEL_HEADER).await;
        call.send(framed(b"go"), true);
        for at in 1..=3 {
            talk.gate.add_permits(1);
            if at == 1 {
                assert_eq!(call.head().await.status, 200, "{node}");
            }
            assert_eq!(call.piece().await.expect("a message"), framed(b"token"), "{node}");
            assert_eq!(talk.produced.load(SeqCst) - before, at, "{node}");
        }
        drop(call);
        soon("the cancellation", talk.cancelled.acquire()).await.expect("open").forget();
    }
}

#[tokio::test]
async fn both_sides_stream() {
    let (mut cluster, _talk) = cluster().await;
    for node in NODES {
        let mut call = Call::begin(cluster.gateway(node).address(), "/talk.Talk/Echo", MODEL_HEADER).await;
        for (at, word) in ["one", "two", "three"].into_iter().enumerate() {
            call.send(framed(word.as_bytes()), false);
            if at == 0 {
                assert_eq!(call.head().await.status, 200, "{node}");
            }
            assert_eq!(call.piece().await.expect("a message"), framed(word.as_bytes()), "{node}");
        }
        call.send(Bytes::new(), true);
        assert_eq!(call.rest().await, Bytes::new(), "{node}");
        assert_eq!(call.trailers().await["x-end"], "1", "{node}");
    }
}

#[tokio::test]
async fn a_deadline_ends_the_call_and_reaches_the_model() {
    let (mut cluster, talk) = cluster().await;
    for node in NODES {
        let headers = [("berth-model", "talk"), ("grpc-timeout", "300m")];
        let mut call = Call::begin(cluster.gateway(node).address(), "/talk.Talk/Gated", &headers).await;
        call.send(framed(b"go"), true);
        talk.gate.add_permits(1);
        assert_eq!(call.head().await.status, 200, "{node}");
        assert_eq!(call.piece().await.expect("a message"), framed(b"token"), "{node}");
        assert_eq!(call.rest().await, Bytes::new(), "{node}");
        assert_eq!(call.trailers().await["grpc-status"], "4", "{node}");
        soon("the cancellation", talk.cancelled.acquire()).await.expect("open").forget();
        let told = talk.timeouts.lock().expect("no panic").pop().expect("a timeout");
        assert!(told.ends_with('u') && told.trim_end_matches('u').parse::<u64>().expect("digits") <= 300_000, "{told}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_call() {
    let (mut cluster, talk) = cluster().await;
    for node in NODES {
        let mut call = Call::begin(cluster.gateway(node).address(), "/talk.Talk/Hang", MODEL_HEADER).await;
        call.send(framed(b"go"), false);
        until("it is called", || talk.calls.load(SeqCst) > 0).await;
        drop(call);
        soon("the cancellation", talk.cancelled.acquire()).await.expect("open").forget();
        talk.calls.store(0, SeqCst);
    }
}

/// A client that reads slowly slows the model: what is made and not read is bounded by the windows on the way.
#[tokio::test]
async fn a_slow_reader_slows_the_model() {
    let (mut cluster, talk) = cluster().await;
    for node in NODES {
        talk.produced.store(0, SeqCst);
        let mut call = Call::begin(cluster.gateway(node).address(), "/talk.Talk/Flood", MODEL_HEADER).await;
        call.send(framed(b"go"), true);
        assert_eq!(call.head().await.status, 200, "{node}");
        let mut read = 0;
        while read < 24 << 20 {
            read += call.piece().await.expect("more").len();
            let made = usize::try_from(talk.produced.load(SeqCst)).expect("few") * FLOOD_PIECE_BYTES;
            assert!(made <= read + (8 << 20), "{node}: {made} bytes were made, {read} were read");
        }
        drop(call);
        soon("the cancellation", talk.cancelled.acquire()).await.expect("open").forget();
    }
}

#[tokio::test]
async fn calls_that_no_model_answers_are_unimplemented() {
    let (mut cluster, _talk) = cluster().await;
    let echo = Echo::open();
    cluster.serve("iris", &[("b", &echo)]).await;
    for node in NODES {
        for (headers, status) in [
            (&[][..], "12"),
            (&[("berth-model", "iris")], "12"),
            (&[("berth-model", "other")], "5"),
            (&[("mm-model-id-bin", "!")], "3"),
        ] {
            let mut call = Call::begin(cluster.gateway(node).address(), "/talk.Talk/Echo", headers).await;
            call.send(framed(b"hello"), true);
            assert_eq!(call.head().await.headers["grpc-status"], status, "{node} {headers:?}");
        }
    }
}

/// Nodes share their connections, and HTTP/2 ends one on which far too many headers come, with the calls of others on it.
#[tokio::test]
async fn an_answer_with_too_many_headers_fails_alone() {
    let (mut cluster, talk) = cluster().await;
    for node in NODES {
        let address = cluster.gateway(node).address();
        let mut other = Call::begin(address, "/talk.Talk/Gated", MODEL_HEADER).await;
        other.send(framed(b"go"), true);
        talk.gate.add_permits(1);
        assert_eq!(other.head().await.status, 200, "{node}");
        assert_eq!(other.piece().await.expect("a message"), framed(b"token"), "{node}");
        let long = async |part: &'static str, bytes: usize| {
            let bytes = bytes.to_string();
            let headers = [("berth-model", "talk"), (part, bytes.as_str())];
            let mut call = Call::begin(address, "/talk.Talk/Long", &headers).await;
            call.send(framed(b"go"), true);
            let head = call.head().await.headers;
            if head.contains_key("grpc-status") {
                return (head.clone(), head);
            }
            assert_eq!(call.rest().await, framed(b"long"), "{node}, {part}");
            (head, call.trailers().await)
        };
        // Each event loop has a connection of its own.
        for _ in 0..4 {
            for part in ["x-head", "x-trailers"] {
                let (head, end) = long(part, 60_000).await;
                let whole = if part == "x-head" { &head } else { &end };
                assert_eq!(end["grpc-status"], "0", "{node}, {part}");
                assert_eq!(whole["x-long"].len(), 60_000, "{node}, {part}");
                for bytes in [100_000, 300_000] {
                    let (_, end) = long(part, bytes).await;
                    let why = end["grpc-message"].to_str().expect("text");
                    assert_eq!(end["grpc-status"], "13", "{node}, {part}: {why}");
                    assert!(why.contains("65536"), "{node}, {part}: {why}");
                }
            }
        }
        talk.gate.add_permits(1);
        assert_eq!(other.piece().await.expect("a message"), framed(b"token"), "{node}: it goes on");
        drop(other);
        soon("the cancellation", talk.cancelled.acquire()).await.expect("open").forget();
    }
}
