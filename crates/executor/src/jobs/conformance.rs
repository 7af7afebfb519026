//! The suite that every queue passes: in memory, and the servers of Redis and NATS that the test starts.

use std::{future::Future, time::Duration};

use http::{HeaderMap, StatusCode};

use super::{
    jetstream::JetStreamQueue,
    job::{Answer, CallbackState, JobId, Priority, State, StoredRequest},
    job_table,
    memory::MemoryQueue,
    queue::{Bounds, Cancelled, Completion, Kind, MOST_TAKEN, NewJob, Queue, Submitted, Task},
    redis::RedisQueue,
};
use crate::{
    broker::{Broker, Login},
    tls::TlsFiles,
};

const KEEP: Duration = Duration::from_secs(600);
const BOUNDS: Bounds = Bounds { most: 4, memory: 1 << 20, keep: KEEP, lease: Duration::from_secs(600) };

/// Every lease has run out when somebody looks.
const NO_LEASE: Bounds = Bounds { lease: Duration::ZERO, ..BOUNDS };

fn job(body: &str) -> NewJob {
    let head = http::Request::post("/predict").body(()).expect("a request").into_parts().0;
    let request = StoredRequest::new(&head, body.as_bytes().to_vec());
    NewJob { id: JobId::generate(), priority: Priority::Normal, key: None, callback: None, request }
}

fn answered(text: &str) -> Completion {
    Completion::Answered(Answer::new(StatusCode::OK, &HeaderMap::new(), text.as_bytes().to_vec().into()))
}

fn dead() -> Completion {
    Completion::Dead { why: "no answer".to_owned(), answer: None }
}

async fn submit(queue: &dyn Queue, job: NewJob) -> JobId {
    let id = job.id.clone();
    assert_eq!(queue.submit(job).await.expect("submits"), Submitted::New);
    id
}

/// A queue that others share may be woken too early and find nothing: whoever wants a task asks again, as the runner does.
async fn take(queue: &dyn Queue, kind: Kind) -> Task {
    for _ in 0..5 {
        if let Some(task) = queue.take(kind).await.expect("takes") {
            return task;
        }
    }
    panic!("a task waits")
}

async fn state(queue: &dyn Queue, id: &JobId) -> State {
    queue.status(id).await.expect("answers").expect("the job is known").state
}

async fn a_job_ends_once(queue: &dyn Queue) {
    let mut ended = queue.ended();
    let id = submit(queue, job("one")).await;
    assert_eq!(state(queue, &id).await, State::Queued);
    let task = take(queue, Kind::Run).await;
    assert_eq!((&task.lease.id, task.lease.attempt, &*task.request.body), (&id, 1, &b"one"[..]));
    assert_eq!(state(queue, &id).await, State::Running);
    assert!(queue.extend(&task.lease).await.expect("answers"));
    assert!(queue.end(&task.lease, answered("first")).await.expect("answers"));
    assert!(!queue.end(&task.lease, answered("second")).await.expect("answers"));
    assert!(!queue.end(&task.lease, dead()).await.expect("answers"));
    assert!(!queue.extend(&task.lease).await.expect("answers"));
    assert_eq!(state(queue, &id).await, State::Done);
    assert_eq!(queue.answer(&id).await.expect("answers").map(|answer| answer.body), Some(bytes::Bytes::from("first")));
    assert_eq!(queue.depth().await.expect("answers").jobs, [0, 0, 0]);
    assert_eq!(queue.status(&JobId::generate()).await.expect("answers"), None);
    assert_eq!(queue.take(Kind::Run).await.expect("answers"), None);
    // A queue that others share tells of it soon, but promises nothing.
    if queue.ends_with_process() {
        assert_eq!(ended.recv().await, Ok(id));
    }
}

async fn high_priorities_come_first(queue: &dyn Queue) {
    let mut ids = Vec::new();
    for priority in [Priority::Low, Priority::Normal, Priority::High, Priority::High] {
        ids.push(submit(queue, NewJob { priority, ..job("x") }).await);
    }
    assert_eq!(queue.depth().await.expect("answers").jobs, [2, 1, 1]);
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.push(take(queue, Kind::Run).await.lease.id);
    }
    assert_eq!(taken, [&ids[2], &ids[3], &ids[1], &ids[0]].map(Clone::clone));
}

async fn a_key_is_one_job(queue: &dyn Queue) {
    let keyed = |body: &str| NewJob { key: Some("k".to_owned()), ..job(body) };
    let id = submit(queue, keyed("a")).await;
    assert_eq!(queue.submit(keyed("a")).await.expect("submits"), Submitted::Known(id.clone()));
    assert_eq!(queue.submit(keyed("b")).await.expect("submits"), Submitted::Conflict);
    let task = take(queue, Kind::Run).await;
    queue.end(&task.lease, answered("done")).await.expect("ends");
    assert_eq!(queue.submit(keyed("a")).await.expect("submits"), Submitted::Known(id));
    assert_eq!(queue.take(Kind::Run).await.expect("answers"), None);
}

async fn no_more_than_may_be_wait(queue: &dyn Queue) {
    for _ in 0..BOUNDS.most {
        submit(queue, job("x")).await;
    }
    assert_eq!(queue.submit(job("x")).await.expect("submits"), Submitted::Full);
    let task = take(queue, Kind::Run).await;
    assert_eq!(queue.submit(job("x")).await.expect("submits"), Submitted::Full, "what runs counts");
    queue.end(&task.lease, answered("done")).await.expect("ends");
    submit(queue, job("x")).await;
}

async fn what_failed_comes_again(queue: &dyn Queue) {
    let id = submit(queue, job("x")).await;
    let task = take(queue, Kind::Run).await;
    assert!(queue.again(&task.lease, Duration::ZERO, "it broke").await.expect("answers"));
    assert!(!queue.again(&task.lease, Duration::ZERO, "it broke").await.expect("answers"));
    let status = queue.status(&id).await.expect("answers").expect("it is known");
    assert_eq!((status.state, status.attempts, status.error.as_deref()), (State::Queued, 1, Some("it broke")));
    assert_eq!(take(queue, Kind::Run).await.lease.attempt, 2);
    let second = submit(queue, job("y")).await;
    let task = take(queue, Kind::Run).await;
    assert_eq!(task.lease.id, second);
    assert!(queue.again(&task.lease, KEEP, "later").await.expect("answers"));
    assert_eq!(queue.take(Kind::Run).await.expect("answers"), None);
}

async fn dead_letters_come_back_when_asked(queue: &dyn Queue) {
    let callback = Some("http://receiver/".to_owned());
    let id = submit(queue, NewJob { callback, key: Some("k".to_owned()), ..job("x") }).await;
    let task = take(queue, Kind::Run).await;
    assert!(!queue.revive(&id).await.expect("answers"), "it runs");
    assert!(queue.end(&task.lease, dead()).await.expect("answers"));
    let status = queue.status(&id).await.expect("answers").expect("it is known");
    assert_eq!((status.state, status.error.as_deref()), (State::Dead, Some("no answer")));
    assert_eq!(queue.dead().await.expect("answers"), std::slice::from_ref(&id));
    assert!(queue.revive(&id).await.expect("answers"));
    assert!(queue.dead().await.expect("answers").is_empty());
    let task = take(queue, Kind::Run).await;
    assert_eq!((&task.lease.id, task.lease.attempt), (&id, 1));
    assert!(queue.end(&task.lease, answered("now")).await.expect("answers"));
    assert_eq!(state(queue, &id).await, State::Done);
}

async fn callbacks_are_tasks_of_their_own(queue: &dyn Queue) {
    let callback = Some("http://receiver/".to_owned());
    let pending = Some(CallbackState::Pending);
    let id = submit(queue, NewJob { callback: callback.clone(), ..job("x") }).await;
    assert_eq!(queue.take(Kind::Callback).await.expect("answers"), None);
    let run = take(queue, Kind::Run).await;
    queue.end(&run.lease, answered("done")).await.expect("ends");
    assert_eq!(queue.depth().await.expect("answers").callbacks, 1);
    let call = take(queue, Kind::Callback).await;
    assert_eq!((&call.lease.id, call.lease.kind, &call.callback), (&id, Kind::Callback, &callback));
    assert!(queue.again(&call.lease, Duration::ZERO, "no receiver").await.expect("answers"));
    let status = queue.status(&id).await.expect("answers").expect("it is known");
    assert_eq!((status.state, status.callback), (State::Done, pending));
    let call = take(queue, Kind::Callback).await;
    assert_eq!(call.lease.attempt, 2);
    assert!(queue.end(&call.lease, Completion::Delivered).await.expect("answers"));
    assert!(!queue.end(&call.lease, dead()).await.expect("answers"));
    let status = queue.status(&id).await.expect("answers").expect("it is known");
    assert_eq!(status.callback, Some(CallbackState::Delivered));
}

async fn a_cancelled_job_has_ended(queue: &dyn Queue) {
    let callback = Some("http://receiver/".to_owned());
    let waits = submit(queue, NewJob { callback, key: Some("k".to_owned()), ..job("x") }).await;
    assert_eq!(queue.cancel(&waits).await.expect("answers"), Cancelled::Now);
    assert_eq!(queue.cancel(&waits).await.expect("answers"), Cancelled::Ended(State::Cancelled));
    assert_eq!(state(queue, &waits).await, State::Cancelled);
    assert_eq!(queue.depth().await.expect("answers").jobs, [0, 0, 0]);
    assert_eq!(queue.take(Kind::Run).await.expect("answers"), None);
    assert_eq!(take(queue, Kind::Callback).await.lease.id, waits, "its end is told as any other");
    let again = NewJob { key: Some("k".to_owned()), ..job("x") };
    assert_eq!(queue.submit(again).await.expect("submits"), Submitted::Known(waits));
    let runs = submit(queue, job("y")).await;
    let task = take(queue, Kind::Run).await;
    assert_eq!(queue.cancel(&runs).await.expect("answers"), Cancelled::Now);
    assert!(!queue.extend(&task.lease).await.expect("answers"));
    assert!(!queue.again(&task.lease, Duration::ZERO, "late").await.expect("answers"));
    assert!(!queue.end(&task.lease, answered("late")).await.expect("answers"));
    assert_eq!(state(queue, &runs).await, State::Cancelled);
    let later = submit(queue, job("z")).await;
    let task = take(queue, Kind::Run).await;
    assert!(queue.again(&task.lease, KEEP, "later").await.expect("answers"));
    assert_eq!(queue.cancel(&later).await.expect("answers"), Cancelled::Now);
    let ended = submit(queue, job("w")).await;
    let task = take(queue, Kind::Run).await;
    assert!(queue.end(&task.lease, answered("done")).await.expect("answers"));
    assert_eq!(queue.cancel(&ended).await.expect("answers"), Cancelled::Ended(State::Done));
    assert_eq!(queue.cancel(&JobId::generate()).await.expect("answers"), Cancelled::Unknown);
}

/// With [`NO_LEASE`].
async fn what_a_killed_taker_held_is_taken_again(queue: &dyn Queue) {
    let id = submit(queue, job("x")).await;
    let first = take(queue, Kind::Run).await;
    let second = take(queue, Kind::Run).await;
    assert_eq!((&second.lease.id, second.lease.attempt), (&id, 2));
    assert!(!queue.extend(&first.lease).await.expect("answers"));
    assert!(!queue.again(&first.lease, Duration::ZERO, "late").await.expect("answers"));
    assert!(queue.end(&first.lease, answered("first")).await.expect("answers"), "the first end counts");
    assert!(!queue.end(&second.lease, answered("second")).await.expect("answers"));
    assert_eq!(queue.take(Kind::Run).await.expect("answers"), None);
    let id = submit(queue, job("kills its executor")).await;
    for _ in 0..MOST_TAKEN {
        take(queue, Kind::Run).await;
    }
    assert_eq!(queue.take(Kind::Run).await.expect("answers"), None);
    let status = queue.status(&id).await.expect("answers").expect("it is known");
    assert_eq!((status.state, status.error), (State::Dead, Some(job_table::taken_too_often())));
}

/// Runs the suite with a new queue for each case.
async fn suite<Q: Queue, F: Future<Output = Q>>(new: impl Fn(Bounds) -> F) {
    a_job_ends_once(&new(BOUNDS).await).await;
    high_priorities_come_first(&new(BOUNDS).await).await;
    a_key_is_one_job(&new(BOUNDS).await).await;
    no_more_than_may_be_wait(&new(BOUNDS).await).await;
    what_failed_comes_again(&new(BOUNDS).await).await;
    dead_letters_come_back_when_asked(&new(BOUNDS).await).await;
    callbacks_are_tasks_of_their_own(&new(BOUNDS).await).await;
    a_cancelled_job_has_ended(&new(BOUNDS).await).await;
    what_a_killed_taker_held_is_taken_again(&new(NO_LEASE).await).await;
}

#[tokio::test]
async fn memory() {
    suite(async |bounds| MemoryQueue::new(bounds)).await;
}

fn broker(url: &str) -> Broker {
    Broker { url: url.to_owned(), login: Login::default(), tls: None }
}

/// Starts a server. `None`: the machine has none, and need not.
fn server(program: &str, command: &mut tokio::process::Command) -> Option<tokio::process::Child> {
    let started =
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).kill_on_drop(true).spawn();
    match started {
        Ok(server) => Some(server),
        Err(error) if std::env::var_os("BERTH_REQUIRE_TOOLS").is_none() => {
            println!("skipped: {program} cannot be started: {error}");
            None
        }
        Err(error) => panic!("{program} cannot be started: {error}"),
    }
}

/// A server of NATS with JetStream, and its port.
async fn nats_server(folder: &std::path::Path, more: &[String]) -> Option<(tokio::process::Child, u16)> {
    let mut command = tokio::process::Command::new("nats-server");
    command.args(["-js", "-a", "127.0.0.1", "-p", "-1", "-sd"]).arg(folder).arg("--ports_file_dir").arg(folder);
    let mut server = server("nats-server", command.args(more))?;
    let file = folder.join(format!("nats-server_{}.ports", server.id().expect("it runs")));
    loop {
        let ports = fs_err::read(&file).ok().and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
        match ports.as_ref().and_then(|ports| ports["nats"][0].as_str()?.rsplit_once(':')) {
            Some((_, port)) => return Some((server, port.parse().expect("a port"))),
            None => assert!(server.try_wait().expect("its state").is_none(), "nats-server has ended"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn jetstream() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((mut server, port)) = nats_server(folder.path(), &[]).await else { return };
    let url = format!("nats://127.0.0.1:{port}");
    suite(async |bounds| JetStreamQueue::new(broker(&url), JobId::generate().as_str(), 1, bounds)).await;
    bodies_may_be_larger_than_messages(&JetStreamQueue::new(broker(&url), "large", 1, BOUNDS)).await;
    server.kill().await.expect("it runs");
    let queue = JetStreamQueue::new(broker(&url), "k", 1, BOUNDS);
    let error = queue.submit(job("x")).await.expect_err("it is gone").to_string();
    assert!(error.starts_with("the queue cannot be used: NATS: "), "{error}");
}

/// A CA and what it has issued, for a server at this machine and for its client, with a password. The URL is the caller's to set.
fn secured(folder: &std::path::Path) -> Broker {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a certificate whose issuer has its own name for one that signs itself.
    params.distinguished_name.push(DnType::CommonName, "CA");
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA");
    fs_err::write(folder.join("ca.pem"), ca.pem()).expect("written");
    for name in ["server", "client"] {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &ca).expect("signed");
        fs_err::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("written");
        fs_err::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("written");
    }
    fs_err::write(folder.join("password"), "s3cret\n").expect("written");
    let password_file = Some(folder.join("password"));
    let login = Login { user: Some("me".to_owned()), password_file, ..Login::default() };
    let tls = TlsFiles {
        ca: Some(folder.join("ca.pem")),
        identity: Some((folder.join("client.pem"), folder.join("client.key"))),
    };
    Broker { url: String::new(), login, tls: Some(tls) }
}

/// Waits until the server of a queue answers. `false`: it has ended.
async fn answers(queue: &dyn Queue, server: &mut tokio::process::Child) -> bool {
    let until = tokio::time::Instant::now() + Duration::from_secs(30);
    while let Err(error) = queue.depth().await {
        if server.try_wait().expect("its state").is_some() {
            return false;
        }
        assert!(tokio::time::Instant::now() < until, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}

/// A port of this machine that nobody has just now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

/// The value of an option that names a file.
fn path(folder: &std::path::Path, file: &str) -> String {
    folder.join(file).to_str().expect("a path in UTF-8").to_owned()
}

#[tokio::test]
async fn jetstream_over_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut broker = secured(folder.path());
    let mut options: Vec<String> = ["--user", "me", "--pass", "s3cret", "--tlsverify"].map(str::to_owned).into();
    for (name, file) in [("--tlscert", "server.pem"), ("--tlskey", "server.key"), ("--tlscacert", "ca.pem")] {
        options.extend([name.to_owned(), path(folder.path(), file)]);
    }
    let Some((mut server, port)) = nats_server(folder.path(), &options).await else { return };
    broker.url = format!("tls://127.0.0.1:{port}");
    let queue = JetStreamQueue::new(broker.clone(), "k", 1, BOUNDS);
    assert!(answers(&queue, &mut server).await, "nats-server has ended");
    a_job_ends_once(&queue).await;
    fs_err::write(folder.path().join("password"), "another").expect("written");
    let refused = JetStreamQueue::new(broker, "k", 1, BOUNDS).depth().await.expect_err("refused").to_string();
    assert!(refused.contains("Authorization Violation"), "{refused}");
}

#[tokio::test]
async fn redis_over_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut broker = secured(folder.path());
    // Redis cannot choose its port, and somebody may take a free one before it does.
    let mut ended = 0;
    let (_server, queue) = loop {
        assert!(ended < 5, "redis-server ends at once: {:?}", broker.url);
        let port = free_port();
        broker.url = format!("rediss://127.0.0.1:{port}");
        let mut command = tokio::process::Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--requirepass", "s3cret", "--tls-port", &port.to_string()]);
        for (name, file) in
            [("--tls-cert-file", "server.pem"), ("--tls-key-file", "server.key"), ("--tls-ca-cert-file", "ca.pem")]
        {
            command.args([name, &path(folder.path(), file)]);
        }
        let Some(mut server) = server("redis-server", command.current_dir(folder.path())) else { return };
        let queue = RedisQueue::new(&broker, "k", BOUNDS).expect("its files are right");
        if answers(&queue, &mut server).await {
            break (server, queue);
        }
        ended += 1;
    };
    a_job_ends_once(&queue).await;
}

async fn bodies_may_be_larger_than_messages(queue: &dyn Queue) {
    let (sent, large) = ("a".repeat(3 << 20), "b".repeat(2 << 20));
    let id = submit(queue, job(&sent)).await;
    let task = take(queue, Kind::Run).await;
    assert!(task.request.body == sent.as_bytes());
    assert!(queue.end(&task.lease, answered(&large)).await.expect("answers"));
    assert!(queue.answer(&id).await.expect("answers").is_some_and(|answer| answer.body == large.as_bytes()));
}

#[tokio::test]
async fn redis() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("redis.sock");
    let mut command = tokio::process::Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).current_dir(folder.path());
    let Some(mut server) = server("redis-server", &mut command) else { return };
    let url = format!("redis+unix://{}", socket.display());
    let new = async |bounds| {
        let queue = RedisQueue::new(&broker(&url), JobId::generate().as_str(), bounds).expect("a URL");
        while queue.depth().await.is_err() {
            tokio::task::yield_now().await;
        }
        queue
    };
    suite(new).await;
    server.kill().await.expect("it runs");
    let queue = RedisQueue::new(&broker(&url), "k", BOUNDS).expect("a URL");
    let error = queue.submit(job("x")).await.expect_err("it is gone").to_string();
    assert!(error.starts_with("the queue cannot be used: Redis: "), "{error}");
}

#[tokio::test]
async fn memory_has_a_sum() {
    let queue = MemoryQueue::new(Bounds { most: 100, memory: 8 << 10, ..BOUNDS });
    let large = "x".repeat(2 << 10);
    let first = submit(&queue, job(&large)).await;
    submit(&queue, job(&large)).await;
    assert_eq!(queue.submit(job(&large)).await.expect("submits"), Submitted::Full);
    let task = take(&queue, Kind::Run).await;
    assert!(queue.end(&task.lease, answered("done")).await.expect("answers"));
    assert_eq!(state(&queue, &first).await, State::Done, "there is room for it still");
    submit(&queue, job(&large)).await;
    assert!(queue.status(&first).await.expect("answers").is_none(), "forgotten for the new one");
    assert_eq!(queue.submit(job(&large)).await.expect("submits"), Submitted::Full);
}
