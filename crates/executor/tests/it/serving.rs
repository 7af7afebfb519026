//! Over time: the server restarts, the configuration changes, the process ends.

use std::{sync::Arc, time::Duration};

use http::Response;
use http_body_util::BodyExt as _;
use tokio::{sync::Notify, task::JoinSet};

use crate::fixture::{PATIENCE, anywhere, config, echo, executor, full, said, server};

const GET: &str = "GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn requests_wait_for_a_server_that_restarts() {
    let first = server(anywhere(), echo).await;
    let address = first.address;
    let executor = executor(&config(address, "connectTimeout: 20s"));
    assert!(said(executor.address, GET).await.starts_with("HTTP/1.1 200 "));
    drop(first);
    let mut waiting = JoinSet::new();
    for _ in 0..8 {
        let to = executor.address;
        waiting.spawn(async move { said(to, GET).await });
    }
    executor.tells("berth_executor_requests_in_flight{port=\"http\"} 8").await;
    let _second = server(address, echo).await;
    for answer in waiting.join_all().await {
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[tokio::test]
async fn readiness_follows_the_server() {
    let first = server(anywhere(), echo).await;
    let address = first.address;
    let executor = executor(&config(address, "health: {path: /ready, every: 50ms, failures: 1}"));
    executor.tells("berth_executor_upstream_healthy{port=\"http\"} 1").await;
    assert!(executor.ask("/ready").await.starts_with("HTTP/1.1 200 "));
    drop(first);
    executor.tells("berth_executor_upstream_healthy{port=\"http\"} 0").await;
    let answer = executor.ask("/ready").await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains(&address.to_string()), "{answer}");
    assert!(executor.ask("/live").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn readiness_follows_a_server_of_grpc() {
    let serving = Arc::new(std::sync::atomic::AtomicU8::new(1));
    let says = Arc::clone(&serving);
    let server = server(anywhere(), move |request: http::Request<hyper::body::Incoming>| {
        let says = Arc::clone(&says);
        async move {
            let path = request.uri().path().to_owned();
            let asked = request.into_body().collect().await.expect("a body").to_bytes();
            let right = path == "/grpc.health.v1.Health/Check" && asked[..] == *b"\0\0\0\0\x06\x0A\x04iris";
            let status = says.load(std::sync::atomic::Ordering::Relaxed);
            let body = http_body_util::Full::new(bytes::Bytes::from(vec![0, 0, 0, 0, 2, 8, status]));
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static(if right { "0" } else { "12" }));
            let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
            Response::new(body.map_err(|never| match never {}).boxed_unsync())
        }
    })
    .await;
    let health = "health: {grpc: iris, every: 50ms, failures: 1}";
    let executor = executor(&config(server.address, health));
    executor.tells("berth_executor_upstream_healthy{port=\"http\"} 1").await;
    serving.store(2, std::sync::atomic::Ordering::Relaxed);
    executor.tells("berth_executor_upstream_healthy{port=\"http\"} 0").await;
}

#[tokio::test]
async fn a_changed_file_is_used_whole_or_not_at_all() {
    let (one, two) =
        (server(anywhere(), echo).await, server(anywhere(), |_| async { Response::new(full("two")) }).await);
    let executor = executor(&config(one.address, ""));
    fs_err::write(&executor.file, "ports: [").expect("written");
    executor.tells("berth_executor_config_reloads_total{result=\"refused\"} 1").await;
    assert!(said(executor.address, GET).await.ends_with("/a "), "as before");
    fs_err::write(&executor.file, config(two.address, "maxInFlight: 7")).expect("written");
    executor.tells("berth_executor_config_reloads_total{result=\"used\"} 1").await;
    assert!(said(executor.address, GET).await.ends_with("two"));
    // One that is taken: neither it nor the new upstream comes.
    let taken = two.address;
    let more = format!("  - {{name: more, listen: '{taken}', upstream: '{}'}}\nadmin:", one.address);
    fs_err::write(&executor.file, config(one.address, "").replace("admin:", &more)).expect("written");
    executor.tells("berth_executor_config_reloads_total{result=\"refused\"} 2").await;
    assert!(said(executor.address, GET).await.ends_with("two"));
}

#[tokio::test]
async fn requests_in_flight_end_before_the_process_does() {
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
    let executor = executor(&config(server.address, "health: {every: 50ms}").replace("delay: 0s", "delay: 300ms"));
    executor.tells("berth_executor_upstream_healthy{port=\"http\"} 1").await;
    let to = executor.address;
    let first = tokio::spawn(async move { said(to, GET).await });
    inside.notified().await;
    executor.stop.cancel();
    let unready = async {
        while !executor.ask("/ready").await.contains("draining") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, unready).await.expect("unready");
    // It would keep its connection, and is told to leave it.
    let second = tokio::spawn(async move { said(to, "GET /a HTTP/1.1\r\nhost: x\r\n\r\n").await });
    inside.notified().await;
    let ended = executor.ends();
    tokio::pin!(ended);
    assert!(tokio::time::timeout(Duration::from_millis(600), &mut ended).await.is_err(), "two requests are in flight");
    go_on.notify_waiters();
    assert_eq!(ended.await, 0);
    for answer in [first.await, second.await] {
        let answer = answer.expect("no panic");
        assert!(answer.contains("connection: close") && answer.ends_with("done"), "{answer}");
    }
}

#[tokio::test]
async fn what_does_not_end_in_time_is_cut_and_counted() {
    let inside = Arc::new(Notify::new());
    let told = Arc::clone(&inside);
    let never = move |_| {
        told.notify_one();
        std::future::pending::<Response<crate::fixture::Body>>()
    };
    let server = server(anywhere(), never).await;
    let executor = executor(&config(server.address, "").replace("timeout: 20s", "timeout: 50ms"));
    let to = executor.address;
    let cut = tokio::spawn(async move { tokio::net::TcpStream::connect(to).await });
    let mut stream = cut.await.expect("no panic").expect("it listens");
    tokio::io::AsyncWriteExt::write_all(&mut stream, GET.as_bytes()).await.expect("written");
    inside.notified().await;
    assert_eq!(executor.ends().await, 1);
}

#[tokio::test]
async fn who_asks_for_a_drain_is_told_when_no_request_is_in_flight() {
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
    let executor = executor(&config(server.address, "health: {every: 50ms}"));
    executor.tells("berth_executor_upstream_healthy{port=\"http\"} 1").await;
    let to = executor.address;
    // It would keep its connection.
    let request = tokio::spawn(async move { said(to, "GET /a HTTP/1.1\r\nhost: x\r\n\r\n").await });
    inside.notified().await;
    let asked = executor.ask("/drain");
    tokio::pin!(asked);
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut asked).await.is_err(), "a request is in flight");
    go_on.notify_one();
    assert!(asked.await.contains("no request is in flight"));
    assert!(request.await.expect("no panic").ends_with("done"), "and its connection has ended");
    // The process goes on: its server may have been restarted alone.
    assert!(executor.ask("/ready").await.starts_with("HTTP/1.1 200 "));
    let next = tokio::spawn(async move { said(to, GET).await });
    inside.notified().await;
    go_on.notify_one();
    assert!(next.await.expect("no panic").ends_with("done"));
}
