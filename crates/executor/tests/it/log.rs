//! The log of requests and answers.

use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

use crate::fixture::{anywhere, config, echo, executor, full, said, server};

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer s3cret\r\nx-request-id: one\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

async fn json(_: Request<Incoming>) -> Response<crate::fixture::Body> {
    let mut response = Response::new(full(r#"{"score":0.5,"pin":"s3cret"}"#));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

#[tokio::test]
async fn exchanges_are_written_to_a_file_without_their_secrets() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, server) = (folder.path().join("log.jsonl"), server(anywhere(), json).await);
    let log = format!(
        "log: {{bodies: 8KiB, paths: ['/predict'], redact: {{fields: [pin]}}, to: {{file: '{}'}}}}",
        file.display()
    );
    let executor = executor(&config(server.address, &log));
    said(executor.address, &post("/predict", r#"{"a":1,"pin":"s3cret"}"#)).await;
    said(executor.address, &post("/other", "{}")).await;
    executor.tells("berth_executor_log_lines_total{port=\"http\",result=\"written\"} 1").await;
    let text = fs_err::read_to_string(&file).expect("it is there");
    assert!(!text.contains("s3cret"), "{text}");
    let line: Value = serde_json::from_str(text.trim()).expect("one line");
    assert_eq!((&line["method"], &line["path"], &line["status"]), (&"POST".into(), &"/predict".into(), &200.into()));
    assert_eq!((&line["id"], &line["port"]), (&"one".into(), &"http".into()));
    assert_eq!(line["request"]["body"], serde_json::json!({"a": 1, "pin": "[redacted]"}));
    assert_eq!(line["response"]["body"]["score"], 0.5);
    assert_eq!(line["request"]["headers"]["authorization"], "[redacted]");
    // The last line is written before the process ends.
    said(executor.address, &post("/predict", "{}")).await;
    assert_eq!(executor.ends().await, 0);
    assert_eq!(fs_err::read_to_string(&file).expect("it is there").lines().count(), 2);
}

#[tokio::test]
async fn lines_go_to_a_receiver_and_are_counted_when_it_takes_none() {
    let taken: Arc<Mutex<Vec<String>>> = Arc::default();
    let status = Arc::new(Mutex::new(StatusCode::OK));
    let seen = (Arc::clone(&taken), Arc::clone(&status));
    let receiver = server(anywhere(), move |request: Request<Incoming>| {
        let (taken, status) = (Arc::clone(&seen.0), *seen.1.lock().expect("no panic"));
        async move {
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            taken.lock().expect("no panic").extend(String::from_utf8_lossy(&body).lines().map(str::to_owned));
            let mut response = Response::new(full(""));
            *response.status_mut() = status;
            response
        }
    })
    .await;
    let server = server(anywhere(), echo).await;
    let log = format!("log: {{to: {{http: 'http://{}/in'}}}}", receiver.address);
    let executor = executor(&config(server.address, &log));
    said(executor.address, &post("/a", "body")).await;
    executor.tells("berth_executor_log_lines_total{port=\"http\",result=\"written\"} 1").await;
    let line: Value = serde_json::from_str(&taken.lock().expect("no panic")[0]).expect("a line");
    assert!(line["request"].get("text").is_none() && line["request"]["bytes"] == 4, "no bodies: {line}");
    *status.lock().expect("no panic") = StatusCode::SERVICE_UNAVAILABLE;
    let answer = said(executor.address, &post("/a", "body")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "requests do not wait for the log: {answer}");
    executor.tells("berth_executor_log_lines_total{port=\"http\",result=\"failed\"} 1").await;
}

#[tokio::test]
async fn what_finds_no_room_is_dropped_and_counted() {
    let (inside, go_on) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(tokio::sync::Semaphore::new(0)));
    let waits = (Arc::clone(&inside), Arc::clone(&go_on));
    let server = server(anywhere(), move |_| {
        let (inside, go_on) = waits.clone();
        async move {
            inside.add_permits(1);
            drop(go_on.acquire().await);
            Response::new(full("done"))
        }
    })
    .await;
    let folder = tempfile::tempdir().expect("a folder");
    // Room for 16 exchanges of 4 KiB.
    let log = format!("log: {{memory: 64KiB, to: {{file: '{}'}}}}", folder.path().join("log").display());
    let executor = executor(&config(server.address, &log));
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let to = executor.address;
        all.spawn(async move { said(to, &post("/a", "x")).await });
    }
    drop(inside.acquire_many(20).await);
    go_on.add_permits(20);
    assert!(all.join_all().await.iter().all(|answer| answer.starts_with("HTTP/1.1 200 ")));
    executor.tells("berth_executor_log_lines_total{port=\"http\",result=\"dropped\"} 4").await;
    executor.tells("berth_executor_log_lines_total{port=\"http\",result=\"written\"} 16").await;
}

#[tokio::test]
#[ignore = "needs a broker that speaks Kafka's protocol: BERTH_KAFKA is the `to` of a log"]
async fn a_broker_of_kafka_takes_lines() {
    let to = std::env::var_os("BERTH_KAFKA").expect("the section `to`").into_string().expect("text");
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, &format!("log: {{bodies: 1KiB, to: {to}}}")));
    for number in 0..100 {
        said(executor.address, &post("/a", &number.to_string())).await;
    }
    executor.tells("berth_executor_log_lines_total{port=\"http\",result=\"written\"} 100").await;
}

#[tokio::test]
async fn lines_go_to_nats() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = tokio::process::Command::new("nats-server");
    command.args(["-a", "127.0.0.1", "-p", "-1", "--ports_file_dir"]).arg(folder.path());
    let started = command.stderr(std::process::Stdio::null()).kill_on_drop(true).spawn();
    let broker = match started {
        Ok(broker) => broker,
        Err(error) if std::env::var_os("BERTH_REQUIRE_TOOLS").is_none() => {
            println!("skipped: nats-server cannot be started: {error}");
            return;
        }
        Err(error) => panic!("nats-server cannot be started: {error}"),
    };
    let file = folder.path().join(format!("nats-server_{}.ports", broker.id().expect("it runs")));
    let url = loop {
        let ports = fs_err::read(&file).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        match ports.as_ref().and_then(|ports| ports["nats"][0].as_str()) {
            Some(url) => break url.to_owned(),
            None => tokio::task::yield_now().await,
        }
    };
    // A subscriber that knows nothing of the executor.
    let address = url.trim_start_matches("nats://").to_owned();
    let mut subscriber = BufReader::new(TcpStream::connect(address).await.expect("it listens"));
    let hello = b"CONNECT {\"verbose\":false}\r\nSUB logs.> 1\r\nPING\r\n";
    subscriber.get_mut().write_all(hello).await.expect("it reads");
    let mut line = String::new();
    while line != "PONG\r\n" {
        line.clear();
        subscriber.read_line(&mut line).await.expect("it says something");
    }
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, &format!("log: {{to: {{nats: '{url}', subject: logs.iris}}}}")));
    said(executor.address, &post("/a", "x")).await;
    line.clear();
    subscriber.read_line(&mut line).await.expect("a message");
    assert!(line.starts_with("MSG logs.iris 1 "), "{line}");
    line.clear();
    subscriber.read_line(&mut line).await.expect("its line");
    let logged: Value = serde_json::from_str(line.trim()).expect("JSON");
    assert_eq!((&logged["path"], &logged["status"]), (&"/a".into(), &200.into()));
    executor.tells("berth_executor_log_lines_total{port=\"http\",result=\"written\"} 1").await;
}
