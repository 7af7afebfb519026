//! Memory for the bodies of requests.

use std::sync::Arc;

use berth_executor::Limits;
use http::Response;
use http_body_util::BodyExt as _;
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::Semaphore, time::timeout};

use crate::fixture::{Body, PATIENCE, Running, anywhere, config, executor_within, said, server};

/// A request that may be sent again.
fn put(bytes: usize) -> String {
    let body = "x".repeat(bytes);
    format!("PUT /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {bytes}\r\n\r\n{body}")
}

/// Sends it, and waits until the server has it.
async fn sent(executor: &Running, request: &str, arrived: &Semaphore) -> TcpStream {
    let mut client = TcpStream::connect(executor.address).await.expect("it listens");
    client.write_all(request.as_bytes()).await.expect("it reads");
    timeout(PATIENCE, arrived.acquire()).await.expect("it arrives").expect("open").forget();
    client
}

#[tokio::test]
async fn bodies_that_are_kept_to_be_sent_again_have_a_sum() {
    let arrived = Arc::new(Semaphore::new(0));
    let counted = Arc::clone(&arrived);
    let server = server(anywhere(), move |request| {
        let counted = Arc::clone(&counted);
        async move {
            if request.into_body().collect().await.is_ok() {
                counted.add_permits(1);
            }
            std::future::pending::<Response<Body>>().await
        }
    })
    .await;
    // A quarter of the memory is for bodies: 17 large ones leave less than a small one takes.
    let limits = Limits { files: None, memory: Some(4 << 20) };
    let config = config(server.address, "retry: {attempts: 2}") + "maxConnectionsPerAddress: 34\n";
    let executor = executor_within(&config, limits);
    let (large, small) = (put(61_400), put(7_000));
    let mut held = Vec::new();
    for _ in 0..17 {
        held.push(sent(&executor, &large, &arrived).await);
    }
    let answer = said(executor.address, &small).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after: 1\r\n"), "{answer}");
    assert!(answer.contains("the bodies of other requests take a quarter of the memory"), "{answer}");
    executor.tells("berth_executor_refused_total{port=\"http\",reason=\"no_memory\"} 1").await;
    // One goes, and with it the body that was kept for it.
    held.pop();
    executor.tells("berth_executor_requests_in_flight{port=\"http\"} 16").await;
    held.push(sent(&executor, &small, &arrived).await);
}
