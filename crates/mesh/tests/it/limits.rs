//! Limits for clients.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::fixture::{Echo, REQUEST, TestGateway, soon, until};

async fn raw(gateway: &TestGateway, sent: &[u8]) -> String {
    let mut stream = TcpStream::connect(gateway.address()).await.expect("it listens");
    stream.write_all(sent).await.expect("written");
    let mut answer = Vec::new();
    // A reset after the answer is as good as a close.
    let _ = soon("the end", stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn bodies_paths_and_headers_are_bounded() {
    let mut gateway = TestGateway::with(|limits| {
        limits.body = 1_000;
        limits.uri = 300;
        limits.headers = 8 << 10;
    });
    gateway.serve("iris", "1", Echo::open()).await;
    let large = gateway.post("/v2/models/iris/infer", vec![b' '; 1_001]).await;
    assert_eq!((large.status.as_u16(), large.reason().as_str()), (413, "too_large"));
    let chunked =
        "POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("258\r\n{}\r\n", " ".repeat(600));
    let answer = raw(&gateway, format!("{chunked}{chunk}{chunk}0\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let path = gateway.get(&format!("/v2/models/{}", "x".repeat(400))).await;
    assert_eq!(path.status, 414);
    let header = format!("GET /v2 HTTP/1.1\r\nHost: x\r\nX-Large: {}\r\n\r\n", "x".repeat(20_000));
    let answer = raw(&gateway, header.as_bytes()).await;
    // What was not read any more may reset the connection before the answer is seen.
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let answer = raw(&gateway, b"NONSENSE\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(gateway.infer("iris", &[]).await.status, 200);
}

#[tokio::test]
async fn slow_clients_are_cut_off() {
    let mut gateway = TestGateway::with(|limits| limits.body_idle = Duration::from_millis(50));
    gateway.serve("iris", "1", Echo::open()).await;
    let answer = raw(&gateway, b"POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{").await;
    assert!(answer.starts_with("HTTP/1.1 504") && answer.contains("paused"), "{answer}");
    // Half a head is no request: the connection is closed without an answer of ours.
    let gateway = TestGateway::with(|limits| limits.header_idle = Duration::from_millis(100));
    let answer = raw(&gateway, b"GET /v2 HTTP/1.1\r\nHo").await;
    assert!(!answer.contains(" 200 "), "{answer}");
}

/// A client that asks and then reads nothing holds neither its answer nor its place for ever.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn answers_that_nobody_reads_are_given_up() {
    let mut gateway = TestGateway::with(|limits| limits.unread = Duration::from_millis(300));
    gateway.serve("iris", "1", Echo::open()).await;
    let mut stream = TcpStream::connect(gateway.address()).await.expect("it listens");
    // More than the kernel buffers between two sockets.
    const BYTES: usize = 32 << 20;
    let json = format!(
        r#"{{"parameters":{{"binary_data_output":true}},"inputs":[{{"name":"x","datatype":"FP32","shape":[1,{}],"parameters":{{"binary_data_size":{BYTES}}}}}]}}"#,
        BYTES / 4
    );
    let (header, length) = (json.len(), json.len() + BYTES);
    let head = format!(
        "POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {header}\r\nContent-Length: {length}"
    );
    stream.write_all(format!("{head}\r\n\r\n{json}").as_bytes()).await.expect("written");
    stream.write_all(&vec![0; BYTES]).await.expect("written");
    let open = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &gateway.registry).expect("a String takes everything");
        !text.lines().any(|line| line == "berth_gateway_connections 0")
    };
    soon("an answer", stream.readable()).await.expect("an answer begins");
    until("it is given up", || !open()).await;
}

/// A connection of HTTP/2 whose answers stop after a few KiB, until they are read.
async fn reluctant(gateway: &TestGateway) -> http2::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(gateway.address()).await.expect("it listens");
    let mut client = http2::Builder::new(TokioExecutor::new());
    client.initial_stream_window_size(16 << 10).initial_connection_window_size(64 << 10);
    let (sender, connection) = client.handshake(TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::task::spawn(connection);
    sender
}

/// A request whose answer has so many rows of 16 bytes.
fn ask(gateway: &TestGateway, model: &str, rows: usize) -> Request<Full<Bytes>> {
    let json = format!(
        r#"{{"parameters":{{"binary_data_output":true}},"inputs":[{{"name":"x","datatype":"FP32","shape":[{rows},4],"parameters":{{"binary_data_size":{}}}}}]}}"#,
        rows * 16
    );
    let body = [json.as_bytes(), &vec![0; rows * 16]].concat();
    let request = Request::post(gateway.uri(&format!("/v2/models/{model}/infer")));
    let request = request.header("inference-header-content-length", json.len());
    request.body(Full::new(Bytes::from(body))).expect("a request")
}

/// True if this is a line of the metrics.
fn tells(gateway: &TestGateway, line: &str) -> bool {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &gateway.registry).expect("a String takes everything");
    text.lines().any(|told| told == line)
}

/// Over HTTP/2 the connection lives on, and nothing would ever ask for the rest.
#[tokio::test]
async fn answers_that_nobody_reads_over_http2_are_given_up() {
    let mut gateway = TestGateway::with(|limits| limits.unread = Duration::from_millis(300));
    gateway.serve("iris", "1", Echo::open()).await;
    // Of the first answer there are many pieces, of the second one a part of the last.
    for (rows, lives, cut) in [(64 << 10, true, 1), (2 << 10, false, 2)] {
        let mut sender = reluctant(&gateway).await;
        let unread = soon("an answer", sender.send_request(ask(&gateway, "iris", rows))).await.expect("an answer");
        assert_eq!(unread.status(), 200);
        until("it is given up", || tells(&gateway, &format!("berth_gateway_answers_unread_total {cut}"))).await;
        until("its memory is free", || tells(&gateway, "berth_gateway_request_memory_bytes 0")).await;
        assert!(soon("its end", unread.into_body().collect()).await.is_err());
        if lives {
            let other = sender.send_request(ask(&gateway, "iris", 1));
            assert_eq!(soon("an answer", other).await.expect("the connection lives").status(), 200);
        } else {
            until("the connection is over", || sender.is_closed()).await;
        }
    }
}

/// A proxy sends the requests of many clients over one connection.
#[tokio::test]
async fn an_end_that_nobody_reads_costs_others_on_the_connection_no_answer() {
    const UNREAD_TIMEOUT: Duration = Duration::from_secs(20);
    let mut gateway = TestGateway::with(|limits| limits.unread = UNREAD_TIMEOUT);
    let slow = Echo::shut();
    gateway.serve("iris", "1", Echo::open()).await;
    gateway.serve("slow", "1", slow.clone()).await;
    let mut sender = reluctant(&gateway).await;
    let neighbour = tokio::task::spawn(sender.send_request(ask(&gateway, "slow", 1)));
    slow.starts().await;
    let unread = soon("an answer", sender.send_request(ask(&gateway, "iris", 2 << 10))).await.expect("an answer");
    // The time is what this test says: it would run ahead if the runtime rested.
    tokio::time::pause();
    tokio::task::spawn(async {
        loop {
            tokio::task::yield_now().await;
        }
    });
    let taken = async {
        while let Ok(other) = sender.send_request(ask(&gateway, "iris", 1)).await {
            assert_eq!(other.status(), 200);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    };
    soon("the end of new requests", taken).await;
    assert!(!tells(&gateway, "berth_gateway_answers_unread_total 1"), "nothing is cut yet");
    slow.gate.close();
    let answer = soon("the neighbour's answer", neighbour).await.expect("no panic").expect("an answer");
    assert_eq!(answer.status(), 200);
    assert!(!soon("all of it", answer.into_body().collect()).await.expect("all of it").to_bytes().is_empty());
    tokio::time::advance(UNREAD_TIMEOUT).await;
    until("it is given up", || tells(&gateway, "berth_gateway_answers_unread_total 1")).await;
    assert!(soon("its end", unread.into_body().collect()).await.is_err());
}

#[tokio::test]
async fn connections_beyond_the_bound_wait_for_others_to_end() {
    let mut gateway = TestGateway::with(|limits| limits.connections = 1);
    gateway.serve("iris", "1", Echo::open()).await;
    let mut first = TcpStream::connect(gateway.address()).await.expect("it listens");
    first.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("written");
    soon("an answer", first.readable()).await.expect("it is served");
    let mut second = TcpStream::connect(gateway.address()).await.expect("the kernel takes it");
    second.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.expect("written");
    let mut byte = [0];
    let waits = tokio::time::timeout(Duration::from_millis(50), second.read(&mut byte)).await;
    assert!(waits.is_err(), "the second is not served beside the first");
    drop(first);
    let mut answer = String::new();
    soon("an answer", second.read_to_string(&mut answer)).await.expect("it is served now");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn requests_beyond_the_bound_are_shed_before_their_body_is_read() {
    let mut gateway = TestGateway::with(|limits| limits.requests = 1);
    let echo = Echo::shut();
    gateway.serve("iris", "1", echo.clone()).await;
    let first = tokio::task::spawn(gateway.infer("iris", &[]));
    echo.starts().await;
    let second = gateway.infer("iris", &[]).await;
    assert_eq!((second.status.as_u16(), second.reason().as_str()), (503, "queue_full"));
    echo.gate.close();
    assert_eq!(first.await.expect("it ran").status, 200);
}

#[tokio::test]
async fn deadlines_end_requests() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::shut()).await;
    let head = gateway.infer("iris", &[("berth-timeout-ms", "30")]).await;
    assert_eq!((head.status.as_u16(), head.reason().as_str()), (504, "deadline"));
    let body = REQUEST.replacen('{', "{\"parameters\":{\"timeout\":30000},", 1);
    let parameter = gateway.request(Method::POST, "/v2/models/iris/infer", &[], body).await;
    assert_eq!((parameter.status.as_u16(), parameter.reason().as_str()), (504, "deadline"));
    assert_eq!(gateway.handle.top()[0].in_flight, 0);
}
