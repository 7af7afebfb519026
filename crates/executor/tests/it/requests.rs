//! One request at a time: what passes, and what is answered in the server's place.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use berth_executor::Limits;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, mpsc},
};

use crate::fixture::{anywhere, config, echo, executor, executor_within, full, said, server};

const POST: &str = "POST /v1/models/iris:predict HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";

#[tokio::test]
async fn requests_pass_and_are_counted_by_template() {
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, "paths: ['/v1/models/{model}:predict']"));
    let answer = said(executor.address, &format!("{POST}content-length: 3\r\n\r\nabc")).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("/v1/models/iris:predict abc"), "{answer}");
    assert!(answer.to_lowercase().contains("x-request-id: "), "{answer}");
    let answer =
        said(executor.address, &format!("{POST}transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")).await;
    assert!(answer.ends_with(" abc"), "{answer}");
    said(executor.address, "BREW /secret/17 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    executor
        .tells("berth_executor_requests_total{port=\"http\",path=\"/v1/models/{model}:predict\",method=\"POST\",code=\"200\",grpc=\"\"} 2")
        .await;
    executor
        .tells("berth_executor_requests_total{port=\"http\",path=\"other\",method=\"OTHER\",code=\"200\",grpc=\"\"} 1")
        .await;
    executor.tells("berth_executor_request_bytes_total{port=\"http\",path=\"/v1/models/{model}:predict\"} 6").await;
    executor.tells("berth_executor_requests_in_flight{port=\"http\"} 0").await;
}

/// Says how many pieces of a request are empty, beside the one that ends it.
async fn empty_pieces(request: Request<Incoming>) -> Response<crate::fixture::Body> {
    let (mut body, mut empty) = (request.into_body(), 0);
    while let Some(Ok(frame)) = body.frame().await {
        empty += usize::from(frame.data_ref().is_some_and(Bytes::is_empty) && !body.is_end_stream());
    }
    Response::new(full(&format!("{empty} are empty")))
}

/// A hundred of them end a connection, and that to a server has requests of others.
#[tokio::test]
async fn empty_pieces_are_not_passed_on() {
    let server = server(anywhere(), empty_pieces).await;
    let executor = executor(&config(server.address, ""));
    let stream = TcpStream::connect(executor.address).await.expect("it listens");
    let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.expect("HTTP/2");
    tokio::spawn(connection);
    let pieces = std::iter::repeat_n("", 90).chain(["a"]).map(|piece| Ok(Frame::data(Bytes::from(piece))));
    let body = StreamBody::new(tokio_stream::iter(pieces.collect::<Vec<Result<_, hyper::Error>>>()));
    let request = Request::post("http://x/").body(body).expect("a request");
    let answer = sender.send_request(request).await.expect("an answer").into_body();
    assert_eq!(answer.collect().await.expect("whole").to_bytes(), "0 are empty");
}

/// Sends back each piece as it comes, and then trailers.
async fn piece_by_piece(request: Request<Incoming>) -> Response<crate::fixture::Body> {
    assert_eq!(request.version(), Version::HTTP_2);
    let trailers = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), HeaderValue::from_static("5"))]);
    let body = request.into_body().with_trailers(async move { Some(Ok(trailers)) });
    let mut response = Response::new(body.boxed_unsync());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

#[tokio::test]
async fn grpc_streams_pass_piece_by_piece_with_their_trailers() {
    let server = server(anywhere(), piece_by_piece).await;
    let executor = executor(&config(server.address, ""));
    let stream = TcpStream::connect(executor.address).await.expect("it listens");
    let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.expect("HTTP/2");
    tokio::spawn(connection);
    let (pieces, taken) = mpsc::channel::<Result<Frame<Bytes>, hyper::Error>>(1);
    let body = StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(taken));
    let request =
        Request::post("http://x/iris.Iris/Chat").header("content-type", "application/grpc").header("te", "trailers");
    let mut answer = sender.send_request(request.body(body).expect("a request")).await.expect("an answer").into_body();
    for piece in ["one", "two"] {
        pieces.send(Ok(Frame::data(Bytes::from_static(piece.as_bytes())))).await.expect("it is read");
        let frame = answer.frame().await.expect("a frame").expect("whole");
        assert_eq!(frame.into_data().expect("data"), piece, "before the next one was sent");
    }
    drop(pieces);
    let trailers = answer.frame().await.expect("a frame").expect("whole").into_trailers().expect("trailers");
    assert_eq!(trailers["grpc-status"], "5");
    drop(answer);
    executor
        .tells("berth_executor_requests_total{port=\"http\",path=\"other\",method=\"POST\",code=\"200\",grpc=\"5\"} 1")
        .await;
}

#[tokio::test]
async fn a_websocket_is_joined() {
    let listener = TcpListener::bind(anywhere()).await.expect("a port");
    let executor = executor(&config(listener.local_addr().expect("bound"), ""));
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        // The one that asks for its health says nothing.
        let mut head = [0; 4096];
        while stream.read(&mut head).await.unwrap_or(0) == 0 {
            stream = listener.accept().await.expect("a connection").0;
        }
        let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello ";
        stream.write_all(answer.as_bytes()).await.expect("written");
        let (mut read, mut write) = stream.split();
        tokio::io::copy(&mut read, &mut write).await.expect("copied");
    });
    let mut stream = TcpStream::connect(executor.address).await.expect("it listens");
    stream
        .write_all(b"GET /chat HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\r\n")
        .await
        .expect("written");
    let mut answer = Vec::new();
    while !answer.ends_with(b"hello ") {
        answer.push(stream.read_u8().await.expect("an answer"));
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{:?}", String::from_utf8_lossy(&answer));
    executor.tells("berth_executor_requests_in_flight{port=\"http\"} 1").await;
    stream.write_all(b"frames").await.expect("written");
    stream.shutdown().await.expect("shut");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.expect("to the end");
    assert_eq!(rest, "frames");
    executor
        .tells("berth_executor_requests_total{port=\"http\",path=\"other\",method=\"GET\",code=\"101\",grpc=\"\"} 1")
        .await;
}

#[tokio::test]
async fn one_too_many_is_told_to_come_back() {
    let (inside, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let waits = (Arc::clone(&inside), Arc::clone(&go_on));
    let slow = move |_| {
        let (inside, go_on) = waits.clone();
        async move {
            inside.notify_one();
            go_on.notified().await;
            Response::new(full("done"))
        }
    };
    let server = server(anywhere(), slow).await;
    let executor = executor(&config(server.address, "maxInFlight: 1"));
    let address = executor.address;
    let get = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    let first = tokio::spawn(async move { said(address, &format!("{get}\r\n")).await });
    inside.notified().await;
    let second = said(address, &format!("{get}\r\n")).await;
    assert!(second.starts_with("HTTP/1.1 503 ") && second.contains("retry-after: 1"), "{second}");
    assert!(second.contains("1 requests are in flight, which is the most (maxInFlight)"), "{second}");
    let grpc = said(address, &format!("{get}content-type: application/grpc\r\n\r\n")).await;
    assert!(grpc.starts_with("HTTP/1.1 200 ") && grpc.contains("grpc-status: 14"), "{grpc}");
    go_on.notify_one();
    assert!(first.await.expect("no panic").ends_with("done"));
    executor.tells("berth_executor_refused_total{port=\"http\",reason=\"busy\"} 2").await;
}

#[tokio::test]
async fn an_address_has_as_many_connections_as_it_may() {
    let server = server(anywhere(), echo).await;
    let executor = executor(&(config(server.address, "") + "maxConnectionsPerAddress: 1\n"));
    let mut first = TcpStream::connect(executor.address).await.expect("it listens");
    first.write_all(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
    let mut answer = Vec::new();
    while !answer.ends_with(b"/a ") {
        answer.push(first.read_u8().await.expect("an answer"));
    }
    let mut second = TcpStream::connect(executor.address).await.expect("it listens");
    assert!(matches!(second.read(&mut [0]).await, Ok(0) | Err(_)), "it is closed");
}

#[tokio::test]
async fn requests_in_flight_leave_files_for_the_admin_port() {
    let server = server(anywhere(), |_| std::future::pending::<Response<crate::fixture::Body>>()).await;
    // A share of 8.
    let few = Limits { files: Some(20), memory: None };
    let executor = executor_within(&config(server.address, "maxInFlight: 100"), few);
    let stream = TcpStream::connect(executor.address).await.expect("it listens");
    let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.expect("HTTP/2");
    tokio::spawn(connection);
    let request = || Request::get("http://x/").body(Empty::<Bytes>::new()).expect("a request");
    let _waiting: Vec<_> = (0..8).map(|_| sender.send_request(request())).collect();
    executor.tells("berth_executor_requests_in_flight{port=\"http\"} 8").await;
    assert_eq!(sender.send_request(request()).await.expect("an answer").status(), 503);
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, ""));
    for (bytes, expected) in [(30 << 10, "HTTP/1.1 200 "), (80 << 10, "HTTP/1.1 431 ")] {
        let cookie = "x".repeat(bytes);
        let mut stream = TcpStream::connect(executor.address).await.expect("it listens");
        let head = format!("GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncookie: {cookie}\r\n\r\n");
        // As far as it is read: what nobody reads would break the connection under the answer.
        let length = head.len().min(64 << 10);
        stream.write_all(&head.as_bytes()[..length]).await.expect("it reads");
        let mut answer = [0; 13];
        stream.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(String::from_utf8_lossy(&answer), expected, "{bytes}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_known_or_not() {
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, "maxBody: 1KiB"));
    let large = "x".repeat(2_000);
    for request in [
        format!("{POST}content-length: 2000\r\n\r\n{large}"),
        format!("{POST}transfer-encoding: chunked\r\n\r\n7d0\r\n{large}\r\n0\r\n\r\n"),
    ] {
        let answer = said(executor.address, &request).await;
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("(maxBody)"), "{answer}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_request_does_not_count_against_the_server() {
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, "breaker: {failures: 1, openFor: 1h}"));
    let chunked = format!("{POST}transfer-encoding: chunked\r\n\r\n");
    for (request, says) in [
        (format!("{chunked}zz\r\nabc\r\n0\r\n\r\n"), "your request's body broke off"),
        (format!("{chunked}3\r\nabcdef\r\n0\r\n\r\n"), "your request's body broke off"),
        (format!("{POST}host: y\r\n\r\n"), "several Host headers"),
    ] {
        let answer = said(executor.address, &request).await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains(says), "{request:?}: {answer}");
    }
    executor.tells("berth_executor_refused_total{port=\"http\",reason=\"bad_body\"} 2").await;
    executor.tells("berth_executor_refused_total{port=\"http\",reason=\"hosts\"} 1").await;
    let answer = said(executor.address, &format!("{POST}content-length: 4\r\n\r\nfull")).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("full"), "{answer}");
}

#[tokio::test]
async fn a_late_server_is_given_up_and_then_left_alone() {
    let server = server(anywhere(), |_| std::future::pending::<Response<crate::fixture::Body>>()).await;
    let executor = executor(&config(server.address, "timeout: 50ms, breaker: {failures: 2, openFor: 1h}"));
    let get = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    for _ in 0..2 {
        let answer = said(executor.address, get).await;
        assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    }
    let answer = said(executor.address, get).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after: 3600"), "{answer}");
    executor.tells("berth_executor_refused_total{port=\"http\",reason=\"breaker_open\"} 1").await;
}

#[tokio::test]
async fn an_answer_that_stops_is_given_up() {
    let server = server(anywhere(), |_| async {
        let half = tokio_stream::iter([Ok::<_, hyper::Error>(Frame::data(Bytes::from_static(b"half")))]);
        let parts = tokio_stream::StreamExt::chain(half, tokio_stream::pending());
        Response::new(StreamBody::new(parts).boxed_unsync())
    })
    .await;
    let executor = executor(&config(server.address, "idleTimeout: 100ms"));
    let answer = said(executor.address, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("half"), "{answer}");
    assert!(!answer.ends_with("0\r\n\r\n"), "it looks whole: {answer}");
    executor.tells("berth_executor_requests_in_flight{port=\"http\"} 0").await;
}

#[tokio::test]
async fn a_client_that_falls_silent_keeps_no_place() {
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, "timeout: 200ms, retry: {attempts: 2}, maxInFlight: 1"));
    // Small and idempotent: its body is kept for another attempt, and would come first.
    let half = "PUT /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 10\r\n\r\nhalf";
    let answer = said(executor.address, half).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("your request's body did not arrive"), "{answer}");
    executor.tells("berth_executor_refused_total{port=\"http\",reason=\"slow_client\"} 1").await;
    executor.tells("berth_executor_requests_in_flight{port=\"http\"} 0").await;
    let answer = said(executor.address, "GET /b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.ends_with("/b "), "{answer}");
}

#[tokio::test]
async fn a_client_that_falls_silent_does_not_count_against_the_server() {
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, "timeout: 200ms, breaker: {failures: 1, openFor: 1h}"));
    for body in ["content-length: 10\r\n\r\nhalf", "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"] {
        let answer = said(executor.address, &format!("{POST}{body}")).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    // Of gRPC there is a status for it.
    let grpc = format!("{POST}content-type: application/grpc\r\ncontent-length: 10\r\n\r\nhalf");
    let answer = said(executor.address, &grpc).await;
    assert!(answer.contains("grpc-status: 4\r\n"), "{answer}");
    executor.tells("berth_executor_refused_total{port=\"http\",reason=\"slow_client\"} 3").await;
    // The breaker, which one failure opens, lets the next one in.
    let answer = said(executor.address, &format!("{POST}content-length: 4\r\n\r\nfull")).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("full"), "{answer}");
}

#[tokio::test]
async fn a_server_that_takes_no_body_counts_however_much_the_client_would_send() {
    let listener = TcpListener::bind(anywhere()).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    // Takes connections and reads nothing.
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    let executor = executor(&config(address, "timeout: 2s, breaker: {failures: 1, openFor: 1h}"));
    let mut client = TcpStream::connect(executor.address).await.expect("it listens");
    let length = 256 << 20;
    client.write_all(format!("{POST}content-length: {length}\r\n\r\n").as_bytes()).await.expect("it reads");
    // More than all buffers on the way hold. The connection is closed under it.
    let sending = tokio::spawn(async move {
        let part = vec![b'x'; 1 << 20];
        while client.write_all(&part).await.is_ok() {}
    });
    executor.tells("berth_executor_refused_total{port=\"http\",reason=\"late\"} 1").await;
    let answer = said(executor.address, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    sending.abort();
}

#[tokio::test]
async fn only_what_may_run_twice_is_sent_again() {
    let listener = TcpListener::bind(anywhere()).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    tokio::spawn(async move {
        // Every first request is read and its connection closed, every second one is answered.
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            if stream.read(&mut head).await.unwrap_or(0) > 0 && counted.fetch_add(1, Relaxed) % 2 == 1 {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await.ok();
            }
        }
    });
    let executor = executor(&config(address, "retry: {attempts: 2, paths: ['/infer']}"));
    let post =
        |path: &str| format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx");
    let answer = said(executor.address, &post("/infer")).await;
    assert!(answer.ends_with("ok"), "{answer}");
    assert_eq!(seen.load(Relaxed), 2);
    let answer = said(executor.address, &post("/train")).await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("closed the connection"), "{answer}");
    assert_eq!(seen.load(Relaxed), 3, "once");
    executor.tells("berth_executor_retries_total{port=\"http\"} 1").await;
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).expect("short");
    [&[0, 0, length, kind, flags][..], &stream, payload].concat()
}

/// A connection of HTTP/2 whose server does not look at every first request, and answers every second one.
async fn looks_at_every_second(mut stream: TcpStream, seen: Arc<AtomicUsize>) -> std::io::Result<()> {
    stream.read_exact(&mut [0; 24]).await?;
    stream.write_all(&frame(SETTINGS, 0, [0; 4], &[])).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, _, id @ ..] = head;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).expect("it fits");
        stream.read_exact(&mut vec![0; length]).await?;
        if kind == HEADERS {
            let looks = seen.fetch_add(1, Relaxed) % 2 == 1;
            // The status 200 and the end, or REFUSED_STREAM.
            let answer = if looks { frame(HEADERS, 5, id, &[0x88]) } else { frame(RST_STREAM, 0, id, &[0, 0, 0, 7]) };
            stream.write_all(&answer).await?;
        }
    }
}

#[tokio::test]
async fn a_request_that_the_server_did_not_look_at_is_sent_again() {
    let listener = TcpListener::bind(anywhere()).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(looks_at_every_second(stream, Arc::clone(&counted)));
        }
    });
    let executor = executor(&config(address, "protocol: http2, retry: {attempts: 2}"));
    let answer = said(executor.address, "GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(seen.load(Relaxed), 2);
    executor.tells("berth_executor_retries_total{port=\"http\"} 1").await;
    // Its body is not kept.
    let answer = said(executor.address, &format!("{POST}content-length: 1\r\n\r\nx")).await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("did not look at it"), "{answer}");
    assert_eq!(seen.load(Relaxed), 3, "once");
    executor.tells("berth_executor_refused_total{port=\"http\",reason=\"not_taken\"} 1").await;
}

/// Requests share the connections to a server of HTTP/2, which ends one on which far too many headers come.
#[tokio::test]
async fn a_long_head_leaves_its_connection_to_the_others() {
    let (came, goes) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let waits = (Arc::clone(&came), Arc::clone(&goes));
    let server = server(anywhere(), move |request: Request<Incoming>| {
        let (came, goes) = waits.clone();
        async move {
            let mut answer = Response::new(full("whole"));
            if request.uri().path() == "/long" {
                let long = HeaderValue::from_str(&"x".repeat(300_000)).expect("a value");
                answer.headers_mut().insert("x-long", long);
            } else {
                came.add_permits(1);
                goes.acquire().await.expect("open").forget();
            }
            answer
        }
    })
    .await;
    let executor = executor(&config(server.address, "protocol: http2"));
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let (late, long) = (get("/late"), get("/long"));
    // One on each of its connections, which are used in turn.
    let late = futures::future::join_all((0..4).map(|_| said(executor.address, &late)));
    let between = async {
        came.acquire_many(4).await.expect("open").forget();
        for _ in 0..4 {
            let answer = said(executor.address, &long).await;
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.len() > 300_000, "{answer:.300}");
        }
        goes.add_permits(4);
    };
    let (late, ()) = tokio::join!(late, between);
    assert!(late.iter().all(|answer| answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("whole")), "{late:?}");
}

#[tokio::test]
async fn no_tunnel_leads_through_it() {
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, ""));
    let answer =
        said(executor.address, "CONNECT 10.0.0.1:22 HTTP/1.1\r\nhost: 10.0.0.1:22\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("CONNECT is not passed on"), "{answer}");
    // An address in the request's line is a name, as in the header.
    let answer = said(executor.address, "GET http://10.0.0.1/a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.ends_with("/a "), "{answer}");
}
