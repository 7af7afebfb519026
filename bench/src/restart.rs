//! No request that was accepted is lost: the model server is killed and started again under load, then the executor ends as Kubernetes ends it.
//!
//! Each request has an id of its own, and its answer is read to the end and compared. A request counts as refused, not as lost, only where the
//! executor ends: nobody takes the connection, or a new one is closed before any byte of an answer. Requests that the executor cut off show in
//! its exit code too.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

use crate::{
    Arguments, executor,
    load::HttpConnection,
    server::{Server, free},
};

/// Callers that send one request after the other.
const CALLERS: usize = 64;

/// Requests of a whole run: the bar speaks of a million.
pub(crate) const REQUESTS: u64 = 1_000_000;

/// Times that the model server is killed.
pub(crate) const KILLS: u64 = 5;

/// Longest wait for an answer: far longer than a restart of the model server.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval between looks at the counts: short beside the time of a run, and no load.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Outcomes of all requests.
pub(crate) struct Restart {
    pub(crate) sent: u64,
    /// Answered with 200 and the right body.
    pub(crate) answered: u64,
    /// Never accepted, because the executor ended.
    pub(crate) refused: u64,
    pub(crate) lost: u64,
    /// True if the executor cut no request off.
    pub(crate) ended_well: bool,
    pub(crate) took: Duration,
}

/// Counts of all callers.
#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    /// The executor was told to end.
    ending: AtomicBool,
    /// The first loss, in words.
    first: OnceLock<String>,
}

pub(crate) async fn measure(arguments: &Arguments) -> Result<Restart> {
    // No client's own port can be this one: a connection to a server that is away would find itself.
    let behind = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), free()?.port()));
    let mut model = Server::echo_at("echo-http", behind).await?;
    let settings =
        "retry: {attempts: 10, paths: ['/v2/models/{model}/infer']}, connectTimeout: 30s, health: {every: 200ms}";
    let (address, mut executor) =
        executor::start(&arguments.berth, behind, executor::EXECUTOR, |_| settings.to_owned()).await?;
    let (counts, mut callers, started) = (Arc::new(Counts::default()), JoinSet::new(), Instant::now());
    for _ in 0..CALLERS {
        callers.spawn(caller(address, Arc::clone(&counts)));
    }
    for kill in 1..=KILLS {
        counts.reach(arguments.requests * kill / (KILLS + 1)).await?;
        drop(model);
        model = Server::echo_at("echo-http", behind).await?;
        eprintln!("the model server was killed after {} answers", counts.answered.load(Relaxed));
    }
    counts.reach(arguments.requests).await?;
    // Callers go on, and are told to leave.
    counts.ending.store(true, Relaxed);
    let ended_well = executor.end().await?.success();
    while let Some(ended) = callers.join_next().await {
        ended?;
    }
    let of = |count: &AtomicU64| count.load(Relaxed);
    let (sent, answered, refused, lost) =
        (of(&counts.sent), of(&counts.answered), of(&counts.refused), of(&counts.lost));
    eprintln!("{sent} sent, {answered} answered, {refused} refused, {lost} lost; first: {:?}", counts.first.get());
    Ok(Restart { sent, answered, refused, lost, ended_well, took: started.elapsed() })
}

impl Counts {
    /// Returns when so many are answered.
    async fn reach(&self, number: u64) -> Result<()> {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            let answered = self.answered.load(Relaxed);
            if answered >= number {
                return Ok(());
            }
            if answered > last {
                (last, since) = (answered, Instant::now());
            }
            let first = self.first.get();
            ensure!(since.elapsed() < PATIENCE, "no answers after {answered} of {number}; the first loss: {first:?}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn lose(&self, why: String) {
        self.lost.fetch_add(1, Relaxed);
        // Another one was the first.
        self.first.set(why).ok();
    }
}

/// Sends requests until nobody takes its connections.
async fn caller(to: SocketAddr, counts: Arc<Counts>) {
    loop {
        let number = counts.sent.fetch_add(1, Relaxed);
        let mut connection = match HttpConnection::open(to).await {
            Ok(connection) => connection,
            Err(error) => {
                if counts.ending.load(Relaxed) {
                    counts.refused.fetch_add(1, Relaxed);
                } else {
                    counts.lose(format!("{error:#}"));
                }
                return;
            }
        };
        if !converse(&mut connection, number, &counts).await {
            return;
        }
    }
}

/// Sends requests over a connection until it ends. False: the executor takes no more.
async fn converse(connection: &mut HttpConnection, first: u64, counts: &Counts) -> bool {
    let mut number = first;
    loop {
        match timeout(PATIENCE, ask(connection, number)).await {
            Ok(Ok(stays)) => {
                counts.answered.fetch_add(1, Relaxed);
                if !stays {
                    return true;
                }
            }
            // The kernel had the connection, and the executor never took it.
            Ok(Err(_)) if number == first && counts.ending.load(Relaxed) && connection.is_silent() => {
                counts.refused.fetch_add(1, Relaxed);
                return false;
            }
            Ok(Err(error)) => {
                counts.lose(format!("{error:#}"));
                return true;
            }
            Err(late) => {
                counts.lose(late.to_string());
                return true;
            }
        }
        number = counts.sent.fetch_add(1, Relaxed);
    }
}

/// Sends one request and compares the answer. True if the connection stays.
async fn ask(connection: &mut HttpConnection, number: u64) -> Result<bool> {
    let id = number.to_string();
    let input = json!({"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]});
    let body = json!({"id": id, "inputs": [input]}).to_string();
    let head = format!(
        "POST /v2/models/iris/infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let (status, head, body) = connection.exchange((head + &body).as_bytes()).await?;
    ensure!(status == 200, "status {status}: {}", String::from_utf8_lossy(&body));
    let answer: Value = serde_json::from_slice(&body)?;
    ensure!(answer["id"] == id, "the answer is that of another request: {answer}");
    let leaves = String::from_utf8_lossy(&head).to_ascii_lowercase().contains("\r\nconnection: close");
    Ok(!leaves)
}
