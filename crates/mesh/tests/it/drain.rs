//! Replicas that drain and gateways that stop lose nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use berth_mesh::{Config, DrainReport, GatewayLink};
use berth_spec::{RouteChange, WorkerId};
use futures::future::join_all;
use prometheus_client::registry::Registry;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use crate::fixture::{Echo, REQUEST, TestGateway, cold, delta, name, revision, soon, until, warm};

/// 10,000 requests while the model is replaced all the time, and paged out now and then: none fails, and none runs on a
/// model that is unloaded (the model asserts it).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_routes_switch() {
    const CLIENTS: usize = 20;
    const EACH: usize = 500;
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "0", Echo::open()).await;
    let done = Arc::new(AtomicBool::new(false));
    let asked: Vec<Vec<_>> = (0..CLIENTS).map(|_| (0..EACH).map(|_| gateway.infer("iris", &[])).collect()).collect();
    let clients = asked.into_iter().map(|asked| {
        tokio::task::spawn(async move {
            for answer in asked {
                let answer = answer.await;
                assert_eq!(answer.status, 200, "{answer:?}");
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    let finished = tokio::task::spawn({
        let done = Arc::clone(&done);
        async move {
            let ended = join_all(clients).await;
            done.store(true, Ordering::SeqCst);
            assert!(ended.iter().all(Result::is_ok));
        }
    });
    let mut switches = 0;
    let mut old = "0".to_owned();
    let mut old_model: Option<Arc<Echo>> = None;
    while !done.load(Ordering::SeqCst) {
        switches += 1;
        let new = switches.to_string();
        let model = Echo::open();
        if switches % 3 == 0 {
            // Paged out first: requests park until the new one is there.
            gateway.set(vec![cold("iris")]).await;
        }
        gateway.replicas.insert(revision("iris", &new), model.clone());
        gateway.set(vec![warm("iris", &new)]).await;
        let replica = gateway.replicas.get(&revision("iris", &old)).expect("it is there");
        replica.begin_drain();
        soon("the last lease", replica.drained()).await;
        gateway.replicas.remove(replica.revision());
        if let Some(old) = old_model.replace(model) {
            old.unloaded.store(true, Ordering::SeqCst);
        }
        old = new;
    }
    soon("all answers", finished).await.expect("every request was answered");
    assert!(switches > 3, "{switches}");
}

#[tokio::test]
async fn a_gateway_that_stops_finishes_what_is_inside() {
    let mut gateway = TestGateway::new();
    let echo = Echo::shut();
    gateway.serve("iris", "1", echo.clone()).await;
    let inside = tokio::task::spawn(gateway.infer("iris", &[]));
    echo.starts().await;
    gateway.shutdown.cancel();
    gateway.leaves().await;
    assert!(!gateway.running.is_finished());
    echo.gate.close();
    assert_eq!(inside.await.expect("it ran").status, 200);
    assert_eq!(gateway.ended().await, DrainReport { finished: 1, cut: 0 });
}

/// The data plane of a node that is no gateway: it listens nowhere, and ends as the others do.
#[tokio::test]
async fn without_an_address_nothing_is_listened_on() {
    let config = Config { http: None, ..Config::new(([127, 0, 0, 1], 0).into()) };
    let me = WorkerId::new("w").expect("a name");
    let (gateway, handle) =
        berth_mesh::build(config, me, Arc::default(), None, &mut Registry::default()).expect("nothing to bind");
    assert_eq!(handle.local_addr(), None);
    let ((events, _), (_, routes)) = (mpsc::channel(1), mpsc::channel(1));
    let shutdown = CancellationToken::new();
    let running = gateway.run(GatewayLink { routes, events }, shutdown.clone());
    shutdown.cancel();
    let drained = soon("the end of the gateway", running).await.expect("it ends");
    assert_eq!(drained, DrainReport { finished: 0, cut: 0 });
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_cut() {
    let mut gateway = TestGateway::with(|limits| limits.drain = Duration::from_millis(50));
    let echo = Echo::shut();
    gateway.serve("iris", "1", echo.clone()).await;
    let path = gateway.uri("/v2/models/iris/infer");
    let client: hyper_util::client::legacy::Client<_, http_body_util::Full<bytes::Bytes>> =
        hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
    let request = http::Request::post(path).body(crate::fixture::REQUEST.into()).expect("a request");
    let inside = tokio::task::spawn(client.request(request));
    echo.starts().await;
    gateway.shutdown.cancel();
    assert_eq!(gateway.ended().await, DrainReport { finished: 0, cut: 1 });
    assert!(soon("an error", inside).await.expect("it ran").is_err());
}

/// A kept connection is answered what it asked, told that this was the last answer, and closed.
#[tokio::test]
async fn kept_connections_are_told_to_close() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut gateway = TestGateway::new();
    let echo = Echo::shut();
    gateway.serve("iris", "1", echo.clone()).await;
    let mut kept = tokio::net::TcpStream::connect(gateway.address()).await.expect("it listens");
    let body = crate::fixture::REQUEST;
    let post =
        format!("POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    kept.write_all(post.as_bytes()).await.expect("written");
    echo.starts().await;
    gateway.shutdown.cancel();
    gateway.leaves().await;
    echo.gate.close();
    let mut answers = String::new();
    soon("the end", kept.read_to_string(&mut answers)).await.expect("answered and closed");
    assert!(answers.starts_with("HTTP/1.1 200"), "{answers}");
    assert!(answers.to_lowercase().contains("connection: close"), "{answers}");
    assert_eq!(gateway.ended().await.cut, 0);
}

/// A stream that stays open across the stop gets its answers and then a clear status; it does not hold the stop up.
#[tokio::test]
async fn an_open_stream_ends_with_the_reason() {
    use tokio_stream::StreamExt as _;
    let mut gateway = TestGateway::new();
    let echo = Echo::shut();
    gateway.serve("iris", "1", echo.clone()).await;
    let mut client = crate::grpc::client(&gateway).await;
    let (requests, rest) = tokio::sync::mpsc::channel(4);
    let requested = tokio_stream::wrappers::ReceiverStream::new(rest);
    requests.send(crate::grpc::infer("iris", "1")).await.expect("room");
    let mut answers = client.model_stream_infer(requested).await.expect("a stream").into_inner();
    echo.starts().await;
    gateway.shutdown.cancel();
    gateway.leaves().await;
    echo.gate.close();
    let first = soon("an answer", answers.next()).await.expect("an answer").expect("no status");
    assert_eq!(first.infer_response.expect("it ran").id, "1");
    let status = soon("a status", answers.next()).await.expect("a status").expect_err("a status");
    assert_eq!(status.metadata().get("berth-reason").expect("a reason"), "shutting_down");
    assert_eq!(gateway.ended().await, DrainReport { finished: 1, cut: 0 });
}

/// A request whose body is still on its way when its model is deleted was let in: it is answered. The next one is not.
#[tokio::test]
async fn who_was_let_in_is_answered_though_it_is_deleted() {
    let mut gateway = TestGateway::new();
    let replica = gateway.serve("iris", "1", Echo::open()).await;
    let mut stream = tokio::net::TcpStream::connect(gateway.address()).await.expect("it listens");
    let head = format!(
        "POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        REQUEST.len()
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    until("it is let in", || gateway.handle.inside() > 0).await;
    let gone = RouteChange { unset: vec![name("iris")], ..delta() };
    gateway.change(gone).await;
    gateway.comes_to(404, |gateway| gateway.infer("iris", &[])).await;
    stream.write_all(REQUEST.as_bytes()).await.expect("written");
    let mut answer = String::new();
    soon("an answer", stream.read_to_string(&mut answer)).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    replica.begin_drain();
    soon("the last lease", replica.drained()).await;
}
