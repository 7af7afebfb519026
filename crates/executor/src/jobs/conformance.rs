//! The suite that every queue passes: in memory, and a Redis that the test starts.

use std::{future::Future, time::Duration};

use http::{HeaderMap, StatusCode};

use super::{
    job::{Answer, CallbackState, JobId, Priority, State, StoredRequest},
    ledger,
    memory::MemoryQueue,
    queue::{Bounds, End, Kind, MOST_TAKEN, NewJob, Queue, Submitted, Task},
    redis::RedisQueue,
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

fn answered(text: &str) -> End {
    End::Answered(Answer::new(StatusCode::OK, &HeaderMap::new(), text.as_bytes().to_vec()))
}

fn dead() -> End {
    End::Dead { why: "no answer".to_owned(), answer: None }
}

async fn submit(queue: &dyn Queue, job: NewJob) -> JobId {
    let id = job.id.clone();
    assert_eq!(queue.submit(job).await.expect("submits"), Submitted::New);
    id
}

async fn take(queue: &dyn Queue, kind: Kind) -> Task {
    queue.take(kind).await.expect("takes").expect("a task waits")
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
    assert_eq!(queue.answer(&id).await.expect("answers").map(|answer| answer.body), Some(b"first".to_vec()));
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
    assert_eq!(queue.depth().await.expect("answers").later, 1);
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
    assert!(queue.end(&call.lease, End::Delivered).await.expect("answers"));
    assert!(!queue.end(&call.lease, dead()).await.expect("answers"));
    let status = queue.status(&id).await.expect("answers").expect("it is known");
    assert_eq!(status.callback, Some(CallbackState::Delivered));
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
    assert_eq!((status.state, status.error), (State::Dead, Some(ledger::taken_too_often())));
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
    what_a_killed_taker_held_is_taken_again(&new(NO_LEASE).await).await;
}

#[tokio::test]
async fn memory() {
    suite(async |bounds| MemoryQueue::new(bounds)).await;
}

#[tokio::test]
async fn redis() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("redis.sock");
    let mut command = tokio::process::Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).current_dir(folder.path());
    let mut server = match command.stdout(std::process::Stdio::null()).kill_on_drop(true).spawn() {
        Ok(server) => server,
        Err(error) if std::env::var_os("BERTH_REQUIRE_TOOLS").is_none() => {
            println!("skipped: redis-server cannot be started: {error}");
            return;
        }
        Err(error) => panic!("redis-server cannot be started: {error}"),
    };
    let url = format!("redis+unix://{}", socket.display());
    let new = async |bounds| {
        let queue = RedisQueue::new(&url, None, JobId::generate().as_str(), bounds).expect("a URL");
        while queue.depth().await.is_err() {
            tokio::task::yield_now().await;
        }
        queue
    };
    suite(new).await;
    server.kill().await.expect("it runs");
    let queue = RedisQueue::new(&url, None, "k", BOUNDS).expect("a URL");
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
