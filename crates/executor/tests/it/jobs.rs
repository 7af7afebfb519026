//! Asynchronous serving, from the request to the answer.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use berth_executor::Executor;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::{body::Frame, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, sync::Notify, task::JoinSet};

use crate::{
    authority::Authority,
    fixture::{anywhere, config, echo, executor, full, said, server},
    upstream_tls::secure,
};

const JOBS: &str = "health: {every: 100ms}, async: {paths: [/predict], pause: 10ms, attempts: 3}";

/// Submits a job; the answer, and the id in it.
async fn submit(address: SocketAddr, headers: &str, body: &str) -> (String, String) {
    let length = body.len();
    let request = format!(
        "POST /predict HTTP/1.1\r\nhost: x\r\nconnection: close\r\nprefer: respond-async\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    let answer = said(address, &request).await;
    let id = answer.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned();
    (answer, id)
}

async fn get(address: SocketAddr, path: &str) -> String {
    said(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nprefer: wait=30\r\n\r\n")).await
}

#[tokio::test]
async fn a_job_is_accepted_and_its_answer_fetched() {
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, JOBS));
    let (answer, id) = submit(executor.address, "", "hello").await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    assert!(answer.contains(&format!("location: /jobs/{id}\r\n")), "{answer}");
    assert!(answer.contains("preference-applied: respond-async\r\n"), "{answer}");
    let result = get(executor.address, &format!("/jobs/{id}/result")).await;
    assert!(result.starts_with("HTTP/1.1 200 ") && result.ends_with("/predict hello"), "{result}");
    let status = get(executor.address, &format!("/jobs/{id}")).await;
    assert!(status.contains("\"state\":\"done\"") && status.contains("\"attempts\":1"), "{status}");
    let events = get(executor.address, &format!("/jobs/{id}/events")).await;
    assert!(events.contains("content-type: text/event-stream\r\n") && events.contains("event: end\n"), "{events}");
    // Who asks for no job is answered at once; who asks for another's gets nothing.
    let now = get(executor.address, "/predict").await;
    assert!(now.starts_with("HTTP/1.1 200 "), "{now}");
    for path in ["/jobs", "/jobs/1", &format!("/jobs/{}", "0".repeat(32)), &format!("/jobs/{id}/other")] {
        let answer = get(executor.address, path).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
    }
    executor.tells("berth_executor_jobs_submitted_total{port=\"http\",result=\"new\"} 1").await;
    assert_eq!(executor.ends().await, 0);
}

/// A connection of HTTP/2 whose answers stop after a few KiB, until they are read.
async fn reluctant(address: SocketAddr) -> http2::SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(address).await.expect("it listens");
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(16 << 10).initial_connection_window_size(64 << 10);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn an_answer_that_is_not_read_counts_until_its_client_goes() {
    let server = server(anywhere(), |_| async { Response::new(full(&"x".repeat(600 << 10))) }).await;
    let jobs = JOBS.replace("attempts", "maxBody: 1MiB, memory: 1MiB, attempts");
    let executor = executor(&config(server.address, &jobs));
    let (_, id) = submit(executor.address, "", "x").await;
    let path = format!("/jobs/{id}/result");
    let first = get(executor.address, &path).await;
    assert!(first.starts_with("HTTP/1.1 200 ") && first.ends_with("xxx"), "{}", first.len());
    let request = Request::get(format!("http://x{path}")).body(Empty::<Bytes>::new()).expect("a request");
    let mut sender = reluctant(executor.address).await;
    let unread = sender.send_request(request).await.expect("an answer");
    assert_eq!(unread.status(), StatusCode::OK);
    executor.tells("berth_executor_requests_in_flight{port=\"http\"} 1").await;
    let refused = get(executor.address, &path).await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("async.memory"), "{refused}");
    drop(unread);
    executor.tells("berth_executor_requests_in_flight{port=\"http\"} 0").await;
    let again = get(executor.address, &path).await;
    assert!(again.starts_with("HTTP/1.1 200 "), "{}", again.len());
    assert_eq!(executor.ends().await, 0);
}

#[tokio::test]
async fn those_who_follow_a_job_have_an_end_and_count_as_no_request() {
    // More followers than there may be requests, and half of all that the port may have: one address leaves room for others.
    let server = server(anywhere(), |_| std::future::pending::<Response<crate::fixture::Body>>()).await;
    let executor = executor(&config(server.address, &format!("maxInFlight: 2, {JOBS}")));
    let (_, id) = submit(executor.address, "", "x").await;
    let follow = async |sender: &mut http2::SendRequest<Empty<Bytes>>| {
        let request = Request::get(format!("http://x/jobs/{id}/events")).body(Empty::<Bytes>::new());
        sender.ready().await.expect("a connection");
        sender.send_request(request.expect("a request")).await.expect("an answer")
    };
    // On several connections: a client takes many small frames on one for an attack.
    let mut following = JoinSet::new();
    for _ in 0..4 {
        let mut sender = reluctant(executor.address).await;
        for _ in 0..32 {
            let answer = follow(&mut sender).await;
            assert_eq!(answer.status(), StatusCode::OK);
            following.spawn(answer.into_body().collect());
        }
    }
    let mut sender = reluctant(executor.address).await;
    let refused = follow(&mut sender).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key("retry-after"));
    // The job, which runs.
    executor.tells("berth_executor_requests_in_flight{port=\"http\"} 1").await;
    let cancel = format!("DELETE /jobs/{id} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert!(said(executor.address, &cancel).await.starts_with("HTTP/1.1 200 "));
    while let Some(events) = following.join_next().await {
        let events = events.expect("no panic").expect("to its end").to_bytes();
        assert!(String::from_utf8_lossy(&events).contains("event: end"), "{events:?}");
    }
    assert_eq!(follow(&mut sender).await.status(), StatusCode::OK);
    assert_eq!(executor.ends().await, 0);
}

#[tokio::test]
async fn a_server_that_stops_in_the_middle_of_an_answer_keeps_no_place() {
    let server = server(anywhere(), |_| async {
        let half = stream::iter([Ok::<_, hyper::Error>(Frame::data(Bytes::from_static(b"half")))]);
        Response::new(StreamBody::new(half.chain(stream::pending())).boxed_unsync())
    })
    .await;
    // `timeout` counts where there is no `idleTimeout`.
    for (limit, seconds) in [("timeout: 1s", "1"), ("idleTimeout: 100ms", "0.1")] {
        let jobs = JOBS.replace("attempts: 3", "attempts: 2, concurrency: 1");
        let executor = executor(&config(server.address, &format!("{limit}, {jobs}")));
        let (_, id) = submit(executor.address, "", "x").await;
        let result = get(executor.address, &format!("/jobs/{id}/result")).await;
        assert!(result.starts_with("HTTP/1.1 502 "), "{result}");
        let why = format!("sent nothing of its answer for {seconds} s");
        for part in ["\"state\":\"dead\"", "\"attempts\":2", &why] {
            assert!(result.contains(part), "{part}: {result}");
        }
        executor.tells("berth_executor_requests_in_flight{port=\"http\"} 0").await;
        assert_eq!(executor.ends().await, 0);
    }
}

#[tokio::test]
async fn a_cancelled_job_leaves_the_server_alone() {
    let (inside, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    /// Tells when the server's side of a request is dropped.
    struct Notice(Arc<Notify>);
    impl Drop for Notice {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let waits = (Arc::clone(&inside), Arc::clone(&dropped));
    let server = server(anywhere(), move |_| {
        let (inside, told) = (Arc::clone(&waits.0), Notice(Arc::clone(&waits.1)));
        async move {
            inside.notify_one();
            let _told = told;
            std::future::pending::<Response<crate::fixture::Body>>().await
        }
    })
    .await;
    let executor = executor(&config(server.address, JOBS));
    let (_, id) = submit(executor.address, "", "x").await;
    inside.notified().await;
    let cancel = format!("DELETE /jobs/{id} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let answer = said(executor.address, &cancel).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"state\":\"cancelled\""), "{answer}");
    dropped.notified().await;
    let result = get(executor.address, &format!("/jobs/{id}/result")).await;
    assert!(result.starts_with("HTTP/1.1 410 "), "{result}");
    let again = said(executor.address, &cancel).await;
    assert!(again.starts_with("HTTP/1.1 409 "), "{again}");
    executor.tells("berth_executor_jobs_cancelled_total{port=\"http\"} 1").await;
    assert_eq!(executor.ends().await, 0);
}

#[tokio::test]
async fn a_key_is_run_once() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    let server = server(anywhere(), move |request| {
        counter.fetch_add(1, Relaxed);
        echo(request)
    })
    .await;
    let executor = executor(&config(server.address, JOBS));
    let (_, first) = submit(executor.address, "idempotency-key: k\r\n", "x").await;
    let (_, second) = submit(executor.address, "idempotency-key: k\r\n", "x").await;
    assert_eq!(first, second);
    let (conflict, _) = submit(executor.address, "idempotency-key: k\r\n", "y").await;
    assert!(conflict.starts_with("HTTP/1.1 422 ") && conflict.contains("choose a new key"), "{conflict}");
    get(executor.address, &format!("/jobs/{first}/result")).await;
    assert_eq!(executor.ends().await, 0);
    assert_eq!(runs.load(Relaxed), 1);
}

#[tokio::test]
async fn dead_letters_are_listed_and_run_again() {
    let well = Arc::new(AtomicUsize::new(0));
    let state = Arc::clone(&well);
    let server = server(anywhere(), move |request| {
        let state = Arc::clone(&state);
        async move {
            let mut response = echo(request).await;
            if state.load(Relaxed) == 0 {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            response
        }
    })
    .await;
    let executor = executor(&config(server.address, JOBS));
    let (_, id) = submit(executor.address, "", "x").await;
    let result = get(executor.address, &format!("/jobs/{id}/result")).await;
    assert!(result.starts_with("HTTP/1.1 502 "), "{result}");
    for part in ["\"state\":\"dead\"", "\"attempts\":3", "the model server answered 503", "\"text\":\"/predict x\""] {
        assert!(result.contains(part), "{part}: {result}");
    }
    let dead = executor.ask("/jobs/http/dead").await;
    assert!(dead.ends_with(&format!("{id}\n")), "{dead}");
    well.store(1, Relaxed);
    let revive = format!("POST /jobs/http/dead/{id} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let revived = said(executor.admin, &revive).await;
    assert!(revived.ends_with("queued again\n"), "{revived}");
    let result = get(executor.address, &format!("/jobs/{id}/result")).await;
    assert!(result.starts_with("HTTP/1.1 200 "), "{result}");
    let again = said(executor.admin, &revive).await;
    assert!(again.starts_with("HTTP/1.1 404 "), "{again}");
    assert_eq!(executor.ends().await, 0);
}

#[tokio::test]
async fn callbacks_are_signed_and_sent_only_where_allowed() {
    let (got, told) = (Arc::new(std::sync::Mutex::new(Vec::new())), Arc::new(Notify::new()));
    let (keep, tell) = (Arc::clone(&got), Arc::clone(&told));
    let receiver = server(anywhere(), move |request: http::Request<hyper::body::Incoming>| {
        let (keep, tell) = (Arc::clone(&keep), Arc::clone(&tell));
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            let mut kept = keep.lock().expect("no panic");
            kept.push((head.headers, String::from_utf8_lossy(&body).into_owned()));
            // The first one is refused: it comes again.
            let mut response = Response::new(full(""));
            if kept.len() == 1 {
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            } else {
                tell.notify_one();
            }
            response
        }
    })
    .await;
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    fs_err::write(&secret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").expect("written");
    let callbacks =
        format!("callbacks: {{allow: ['http://{}/hooks'], secretFile: '{}'}}", receiver.address, secret.display());
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, &JOBS.replace("attempts: 3", &callbacks)));
    let (refused, _) = submit(executor.address, "berth-callback: http://127.0.0.1:1/hooks\r\n", "x").await;
    assert!(refused.starts_with("HTTP/1.1 400 ") && refused.contains("async.callbacks.allow"), "{refused}");
    let callback = format!("berth-callback: http://{}/hooks/1\r\n", receiver.address);
    let (_, id) = submit(executor.address, &callback, "x").await;
    told.notified().await;
    let got = got.lock().expect("no panic").clone();
    let [(_, first), (headers, second)] = &*got else { panic!("two deliveries: {got:?}") };
    assert_eq!(first, second);
    assert!(second.contains(&id) && second.contains("\"type\":\"job.ended\""), "{second}");
    assert!(second.contains("\"text\":\"/predict x\""), "{second}");
    assert_eq!(headers["webhook-id"], &*id);
    assert!(headers["webhook-signature"].to_str().is_ok_and(|signature| signature.starts_with("v1,")), "{headers:?}");
    assert_eq!(executor.ends().await, 0);
}

#[tokio::test]
async fn a_receiver_of_a_private_ca_is_told_and_shown_a_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let ca = Authority::new(folder.path());
    ca.files("127.0.0.1", &folder.path().join("server"));
    ca.files("executor", &folder.path().join("own"));
    let told = Arc::new(Notify::new());
    let tell = Arc::clone(&told);
    // It lets nobody in without a certificate.
    let receiver = secure(folder.path(), move |_| {
        tell.notify_one();
        async { Response::new(full("")) }
    })
    .await;
    let own = format!("certificate: '{}', key: '{}'", path("own.pem"), path("own.key"));
    let tls = format!("tls: {{ca: '{}', {own}}}", path("ca.pem"));
    let allow = format!("allow: ['https://{}/hooks']", receiver.address);
    let server = server(anywhere(), echo).await;
    let with = |callbacks: &str| config(server.address, &JOBS.replace("attempts: 3", callbacks));
    let executor = executor(&with(&format!("callbacks: {{{allow}, {tls}}}")));
    let callback = format!("berth-callback: https://{}/hooks/1\r\n", receiver.address);
    submit(executor.address, &callback, "x").await;
    told.notified().await;
    assert_eq!(executor.ends().await, 0);

    let file = folder.path().join("executor.yaml");
    fs_err::write(&file, with(&format!("callbacks: {{{allow}, tls: {{ca: /nowhere}}}}"))).expect("written");
    let error = Executor::start(&file).err().expect("no such file").to_string();
    assert!(error.starts_with("async.callbacks.tls: /nowhere: "), "{error}");
}

#[tokio::test]
async fn what_was_accepted_runs_before_the_end() {
    let (gate, runs) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (wait, counter) = (Arc::clone(&gate), Arc::clone(&runs));
    let server = server(anywhere(), move |request: http::Request<hyper::body::Incoming>| {
        let (wait, counter) = (Arc::clone(&wait), Arc::clone(&counter));
        async move {
            // The health checks come here too.
            if request.uri().path() != "/predict" {
                return echo(request).await;
            }
            wait.notified().await;
            counter.fetch_add(1, Relaxed);
            wait.notify_one();
            echo(request).await
        }
    })
    .await;
    let executor = executor(&config(server.address, &JOBS.replace("pause", "concurrency: 2, pause")));
    for body in ["1", "2", "3", "4", "5"] {
        let (answer, _) = submit(executor.address, "berth-priority: low\r\n", body).await;
        assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    }
    executor.stop.cancel();
    gate.notify_one();
    assert_eq!(executor.ends().await, 0);
    assert_eq!(runs.load(Relaxed), 5);
}

#[tokio::test]
async fn all_requests_of_a_path_but_calls_of_grpc_may_be_queued() {
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, &JOBS.replace("attempts: 3", "always: true")));
    for (kind, expected) in [("text/plain", "HTTP/1.1 202 "), ("application/grpc", "HTTP/1.1 200 ")] {
        let head = format!("POST /predict HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: {kind}");
        let answer = said(executor.address, &format!("{head}\r\ncontent-length: 1\r\n\r\nx")).await;
        assert!(answer.starts_with(expected), "{kind}: {answer}");
    }
    assert_eq!(executor.ends().await, 0);
}
