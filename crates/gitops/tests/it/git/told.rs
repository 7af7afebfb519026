//! Messages to people and hosts, received by a small host of the test.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use aws_lc_rs::hmac;
use axum::{Router, body::Bytes, http::HeaderMap, http::StatusCode, http::Uri};
use berth_control::store::{Store, memory::MemoryStore};
use berth_gitops::WriteBackTo;
use serde_json::Value;
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

use super::forge::{Followed, Forge};
use crate::fixture::Running;

/// Longer than anything here may take, also on a machine that compiles beside the tests.
const PATIENCE: Duration = Duration::from_secs(120);

struct Received {
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Received {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// A host that takes everything.
async fn host() -> (SocketAddr, mpsc::Receiver<Received>, JoinSet<std::io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (told, host) = host_at(listener, &Arc::new(AtomicBool::new(true)));
    (address, told, host)
}

/// One that takes something only while it `takes`.
fn host_at(listener: TcpListener, takes: &Arc<AtomicBool>) -> (mpsc::Receiver<Received>, JoinSet<std::io::Result<()>>) {
    let (sender, told) = mpsc::channel(64);
    let takes = Arc::clone(takes);
    let app = Router::new().fallback(move |uri: Uri, headers: HeaderMap, body: Bytes| {
        let (sender, takes) = (sender.clone(), takes.load(Ordering::Relaxed));
        async move {
            if !takes {
                return StatusCode::SERVICE_UNAVAILABLE;
            }
            sender.send(Received { path: uri.path().to_owned(), headers, body }).await.expect("the test listens");
            StatusCode::CREATED
        }
    });
    let mut host = JoinSet::new();
    host.spawn(async move { axum::serve(listener, app).await });
    (told, host)
}

/// The next message that the host receives.
async fn next(told: &mut mpsc::Receiver<Received>) -> Received {
    tokio::time::timeout(PATIENCE, told.recv()).await.expect("it is told something").expect("open")
}

/// The next message on a commit that is bad, or no longer. The fleet has no worker, which is another matter.
async fn verdict(told: &mut mpsc::Receiver<Received>) -> Value {
    loop {
        let message = next(told).await.json();
        if message["kind"] == "validation-error" {
            return message;
        }
    }
}

/// Waits until the store says so of what was told.
async fn kept(store: &MemoryStore, so: impl Fn(Option<&str>) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        let kept = store.get("/sources/git/notified").await.expect("read");
        let kept = kept.map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
        if so(kept.as_deref()) {
            return;
        }
        assert!(Instant::now() < end, "{kept:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_bad_commit_is_marked_and_told_with_a_signature() {
    let (address, mut told, mut host) = host().await;
    let forge = Forge::new();
    forge.write(
        "registry.yaml",
        &format!(
            "commitStatus: {{provider: gitea, api: \"http://{address}/api/v1\", repository: acme/registry, secretRef: status, context: berth/test}}\n\
             notifications:\n  - {{type: webhook, url: \"http://{address}/hook\", secretRef: key, minSeverity: info}}\n"
        ),
    );
    forge.deploy("doubler", "v1.0.0", "");
    let good = forge.push("Deploy doubler");
    let secrets = forge.path("secrets");
    fs_err::create_dir(&secrets).expect("made");
    fs_err::write(secrets.join("status"), "t0ken\n").expect("written");
    fs_err::write(secrets.join("key"), "k3y\n").expect("written");
    let running = Running::start(Arc::new(MemoryStore::default()));
    let mut config = forge.config("disk", WriteBackTo::Off);
    config.secrets = Some(secrets);
    let followed = Followed::start(config, &running.handle, 0);
    followed.until_applied(&good).await;

    forge.deploy("bad", "main", "");
    let bad = forge.push("A branch");
    assert!(followed.sync());
    // The marks come in their order, and so do messages; which of the two lines is faster is not said.
    let (mut states, mut message, mut good_is_marked) = (Vec::new(), None, false);
    let message = loop {
        if let Some(message) = message.take_if(|_| states.last().is_some_and(|state| state == "failure")) {
            break message;
        }
        let told = next(&mut told).await;
        if told.path == "/hook" {
            // That the fleet has no worker is another matter.
            message = message.or(Some(told).filter(|told| told.json()["kind"] == "validation-error"));
            continue;
        }
        let body = told.json();
        if told.path.ends_with(&good) {
            assert_eq!((body["state"].as_str(), states.len()), (Some("success"), 0), "the good commit is in force");
            good_is_marked = true;
            continue;
        }
        assert_eq!(
            (told.path.as_str(), told.header("authorization")),
            (format!("/api/v1/repos/acme/registry/statuses/{bad}").as_str(), "token t0ken")
        );
        assert_eq!(body["context"], "berth/test");
        states.push(body["state"].as_str().expect("a state").to_owned());
        if states.last().is_some_and(|state| state == "failure") {
            assert!(body["description"].as_str().is_some_and(|words| words.starts_with("unpinned-ref: ")), "{body}");
        }
    };
    assert!(good_is_marked);
    // A mark that still waits gives way to the next one of its commit.
    assert!(states == ["pending", "failure"] || states == ["failure"], "{states:?}");
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"k3y");
    let signature =
        hmac::sign(&key, &message.body).as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(message.header("x-berth-signature"), format!("sha256={signature}"));
    let body = message.json();
    assert_eq!(
        (&body["kind"], &body["status"], &body["facts"]["commit"]),
        (&"validation-error".into(), &"firing".into(), &bad.into())
    );
    followed.stop().await;
    running.stop().await;
    host.shutdown().await;
}

#[tokio::test]
async fn the_first_commit_is_told_though_it_is_bad_and_the_next_leader_tells_the_end() {
    let (address, mut told, mut host) = host().await;
    let forge = Forge::new();
    let hook = format!("notifications:\n  - {{type: webhook, url: \"http://{address}/hook\", minSeverity: info}}\n");
    forge.write("registry.yaml", &hook);
    forge.deploy("doubler", "main", "");
    let bad = forge.push("A branch, and nothing before it");
    let store = Arc::new(MemoryStore::default());
    let running = Running::start(store.clone());
    let followed = Followed::start(forge.config("disk-1", WriteBackTo::Off), &running.handle, 1);
    let first = verdict(&mut told).await;
    assert_eq!((&first["status"], &first["facts"]["commit"]), (&"firing".into(), &bad.clone().into()));
    // A leader that ends before it knows that a message has arrived has the next one repeat it.
    kept(&store, |kept| kept.is_some_and(|kept| !kept.contains("under_way"))).await;
    followed.stop().await;
    running.stop().await;

    let running = Running::start(store);
    let followed = Followed::start(forge.config("disk-2", WriteBackTo::Off), &running.handle, 2);
    followed.until("refused again", |view| view.refused.is_some()).await;
    forge.deploy("doubler", "v1.0.0", "");
    let good = forge.push("Pinned");
    assert!(followed.sync());
    followed.until_applied(&good).await;
    let last = verdict(&mut told).await;
    assert_eq!((&last["status"], &last["subject"]), (&"resolved".into(), &bad.into()), "not told twice: {last}");
    followed.stop().await;
    running.stop().await;
    host.shutdown().await;
}

#[tokio::test]
async fn what_had_not_arrived_when_a_leader_ended_is_told_by_the_next_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, takes) = (listener.local_addr().expect("an address"), Arc::new(AtomicBool::new(false)));
    let (mut told, mut host) = host_at(listener, &takes);
    let forge = Forge::new();
    let hook = format!("notifications:\n  - {{type: webhook, url: \"http://{address}/hook\", minSeverity: info}}\n");
    forge.write("registry.yaml", &hook);
    forge.deploy("doubler", "main", "");
    let bad = forge.push("A branch, and nothing before it");
    let store = Arc::new(MemoryStore::default());
    let running = Running::start(store.clone());
    let followed = Followed::start(forge.config("disk-1", WriteBackTo::Off), &running.handle, 1);
    kept(&store, |kept| kept.is_some()).await;
    followed.stop().await;
    running.stop().await;

    takes.store(true, Ordering::Relaxed);
    let running = Running::start(store);
    let followed = Followed::start(forge.config("disk-2", WriteBackTo::Off), &running.handle, 2);
    let message = verdict(&mut told).await;
    assert_eq!((&message["status"], &message["facts"]["commit"]), (&"firing".into(), &bad.into()));
    followed.stop().await;
    running.stop().await;
    host.shutdown().await;
}
