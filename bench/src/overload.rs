//! More requests than a model can answer, open loop: they come at a fixed rate, whether earlier ones were answered or not.
//!
//! The model is a loop in the engine, so that a request is small and its run is not. First its capacity is measured, with callers that
//! wait for their answers; then requests come at 80 % and at 200 % of that, at random moments. Latencies count from the moment at which a
//! request should have been sent.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use tokio::task::LocalSet;

use crate::{
    Arguments,
    cluster::hop::{self, Speaks},
    load::{self, HttpConnection, Request},
    memory::apply,
    payload::Model,
    server::{Hosted, Server},
};

/// A loop that turns as often as its input says.
const TURNS: Model =
    Model { name: "turns", artifact: "crates/worker/tests/fixtures/turns.onnx", input: "n", shape: &[1], outputs: &[] };

/// The same model with a declared bound on the wait of requests.
const SHORT_TURNS: &str = "turns-short";

/// The wait of [`SHORT_TURNS`], in words of a manifest.
const MAX_WAIT: &str = "5ms";

/// A run should take about this long: long beside what the server does for a request, short beside a caller's patience.
const RUN: Duration = Duration::from_millis(4);

/// Callers that find out the capacity.
const CALLERS: usize = 16;

/// Requests at once that Envoy's circuit breaker lets through: twice what two cores run.
const BREAKER: u32 = 4;

/// The time before anything is counted: queues fill up and are dealt with.
const WARMUP: Duration = Duration::from_secs(3);

/// Connections at once, at most. Who finds none waits, and that counts.
const CONNECTIONS: usize = 2_000;

/// The longest latency that is told apart, in nanoseconds: requests have less time.
const MAX_LATENCY_NANOS: u64 = 120_000_000_000;

/// Sums of one load.
pub(crate) struct Row {
    pub(crate) way: &'static str,
    /// Percent of the capacity.
    pub(crate) percent: u32,
    pub(crate) offered: f64,
    pub(crate) admitted: Latencies,
    pub(crate) refused: Latencies,
    /// Refusals by reason.
    pub(crate) reasons: BTreeMap<String, u64>,
}

/// Latencies of one kind of answer.
pub(crate) struct Latencies {
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// The part of the page.
pub(crate) struct Overload {
    /// Requests per second.
    pub(crate) capacity: f64,
    pub(crate) run: Duration,
    pub(crate) rows: Vec<Row>,
}

/// Measures Berth as it is, with a declared wait, and behind Envoy.
pub(crate) async fn measure(arguments: &Arguments) -> Result<Overload> {
    let server = Server::berth(&arguments.berth, &[&TURNS], &[]).await?;
    let (http, api) = (server.http.context("an HTTP port")?, server.api.context("a control API")?);
    let artifact = fs_err::canonicalize(TURNS.artifact)?;
    let short = format!(
        "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: {SHORT_TURNS}}}\n\
         spec: {{model: {{format: onnx, uri: \"file:{}\"}}, limits: {{maxWait: {MAX_WAIT}}}}}\n",
        artifact.display()
    );
    apply(api, &short).await?;
    let turns = calibrate(http).await?;
    let (plain, short) = (request(TURNS.name, turns), request(SHORT_TURNS, turns));
    answers(http, &short).await?;
    let figures = load::run(http, &Request::Http(plain.clone()), CALLERS, arguments.seconds).await?;
    let run = load::run(http, &Request::Http(plain.clone()), 1, arguments.seconds).await?.p50;
    eprintln!("capacity {:.0}/s, a run {run:?} ({turns} turns)", figures.per_second);
    let envoy = |address, speaks| {
        let bin = arguments.envoy.as_deref();
        bin.map(|bin| hop::envoy(bin, address, speaks, Some(BREAKER))).transpose()
    };
    let proxy = envoy(http, Speaks::Http2)?;
    let mut ways = vec![("Berth", http, plain.clone()), ("Berth, maxWait 5ms", http, short)];
    if let Some((address, _)) = &proxy {
        answers(*address, &plain).await?;
        ways.push(("Envoy with a breaker, then Berth", *address, plain));
    }
    let triton = match arguments.triton.as_deref() {
        Some(bin) => Some(Server::triton_with(bin, &hosted()).await?),
        None => None,
    };
    let behind = triton.as_ref().and_then(|triton| triton.http);
    let guarded = match behind {
        Some(triton) => envoy(triton, Speaks::Http1)?,
        None => None,
    };
    if let Some(triton) = behind {
        let (plain, short) = (rows_of_one(TURNS.name, turns), rows_of_one(SHORT_TURNS, turns));
        answers(triton, &short).await?;
        ways.push(("Triton", triton, plain.clone()));
        ways.push(("Triton, queue policy 5 ms", triton, short));
        if let Some((address, _)) = &guarded {
            answers(*address, &plain).await?;
            ways.push(("Envoy with a breaker, then Triton", *address, plain));
        }
    }
    let mut rows = Vec::new();
    for percent in [80, 200] {
        for (way, address, request) in &ways {
            let rate = figures.per_second * f64::from(percent) / 100.0;
            let row = storm(way, percent, *address, request, rate, arguments.seconds).await?;
            eprintln!(
                "{way:32} {percent:>3} %: admitted {:.0}/s p99 {:?}, refused {:.0}/s p99 {:?} {:?}",
                row.admitted.per_second, row.admitted.p99, row.refused.per_second, row.refused.p99, row.reasons
            );
            rows.push(row);
        }
    }
    Ok(Overload { capacity: figures.per_second, run, rows })
}

/// Triton's models: as many runs at once as there are cores; one with an endless queue, which is what it does unless told otherwise, one
/// that refuses what has waited for [`MAX_WAIT`].
fn hosted() -> [Hosted; 2] {
    let config = |name, policy| {
        format!(
            "name: \"{name}\"\nbackend: \"python\"\nmax_batch_size: 1\ninput [{{name: \"{}\" data_type: TYPE_INT64 dims: [1]}}]\n\
             output [{{name: \"y\" data_type: TYPE_FP32 dims: [1]}}]\ndynamic_batching {{ {policy} }}\n\
             instance_group [{{kind: KIND_CPU count: 2}}]\n",
            TURNS.input
        )
    };
    let policy = "default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 5000 }";
    [(TURNS.name, ""), (SHORT_TURNS, policy)].map(|(name, policy)| Hosted {
        name,
        artifact: TURNS.artifact,
        config: config(name, policy),
    })
}

fn request(model: &str, turns: u64) -> Bytes {
    shaped(model, "[1]", turns)
}

/// The same for a server that wants a dimension for batches.
fn rows_of_one(model: &str, turns: u64) -> Bytes {
    shaped(model, "[1,1]", turns)
}

fn shaped(model: &str, shape: &str, turns: u64) -> Bytes {
    let body = format!(r#"{{"inputs":[{{"name":"n","datatype":"INT64","shape":{shape},"data":[{turns}]}}]}}"#);
    let head = format!(
        "POST /v2/models/{model}/infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into()
}

/// The turns that take about [`RUN`].
async fn calibrate(http: SocketAddr) -> Result<u64> {
    const TURNS_TIMED: u64 = 2_000;
    let mut connection = HttpConnection::open(http).await?;
    let mut times = Vec::new();
    for _ in 0..50 {
        let started = Instant::now();
        let (status, body) = connection.call(&request(TURNS.name, TURNS_TIMED)).await?;
        ensure!(status == 200, "status {status}: {}", String::from_utf8_lossy(&body));
        times.push(started.elapsed());
    }
    times.sort();
    let took = times[times.len() / 2].as_secs_f64();
    Ok(((RUN.as_secs_f64() / took * TURNS_TIMED as f64) as u64).max(1))
}

/// Waits until it answers.
async fn answers(address: SocketAddr, request: &[u8]) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Ok(mut connection) = HttpConnection::open(address).await
            && let Ok((200, _)) = connection.call(request).await
        {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{address} does not answer");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Answers as they come in.
struct Seen {
    admitted: Histogram<u64>,
    refused: Histogram<u64>,
    reasons: BTreeMap<String, u64>,
    idle: Vec<HttpConnection>,
    open: usize,
}

/// Sends requests at a rate for so many seconds, after a while of which nothing is counted.
async fn storm(
    way: &'static str,
    percent: u32,
    address: SocketAddr,
    request: &Bytes,
    rate: f64,
    seconds: u64,
) -> Result<Row> {
    let seen = Rc::new(RefCell::new(Seen {
        admitted: Histogram::new_with_max(MAX_LATENCY_NANOS, 3)?,
        refused: Histogram::new_with_max(MAX_LATENCY_NANOS, 3)?,
        reasons: BTreeMap::new(),
        idle: Vec::new(),
        open: 0,
    }));
    let tasks = LocalSet::new();
    let started = Instant::now();
    let (begin, end) = (started + WARMUP, started + WARMUP + Duration::from_secs(seconds));
    let sending = tasks.run_until(async {
        let (mut due, mut random) = (started, 0x2545_f491_4f6c_dd1d_u64);
        let mut offered = 0_u64;
        while due < end {
            tokio::time::sleep_until(due.into()).await;
            offered += u64::from(due >= begin);
            let (seen, request) = (Rc::clone(&seen), request.clone());
            tasks.spawn_local(async move {
                let answer = one(&seen, address, &request).await;
                if due >= begin {
                    seen.borrow_mut().count(answer, due.elapsed());
                }
            });
            due += Duration::from_secs_f64(pause(&mut random) / rate);
        }
        offered
    });
    let offered = sending.await;
    // What is still under way is answered, or was refused.
    tokio::time::timeout(Duration::from_secs(60), tasks).await.context("requests that are never answered")?;
    let seen = Rc::try_unwrap(seen).ok().context("a request is left")?.into_inner();
    let latencies = |times: &Histogram<u64>| Latencies {
        per_second: times.len() as f64 / seconds as f64,
        p50: Duration::from_nanos(times.value_at_quantile(0.5)),
        p99: Duration::from_nanos(times.value_at_quantile(0.99)),
    };
    ensure!(!seen.admitted.is_empty(), "no request was answered: {:?}", seen.reasons);
    Ok(Row {
        way,
        percent,
        offered: offered as f64 / seconds as f64,
        admitted: latencies(&seen.admitted),
        refused: latencies(&seen.refused),
        reasons: seen.reasons,
    })
}

impl Seen {
    fn count(&mut self, answer: Result<(u16, Bytes)>, took: Duration) {
        let nanos = took.as_nanos().try_into().unwrap_or(u64::MAX);
        match answer {
            Ok((200, _)) => self.admitted.saturating_record(nanos),
            Ok((status, body)) => {
                self.refused.saturating_record(nanos);
                *self.reasons.entry(format!("{status} {}", reason(&body))).or_default() += 1;
            }
            Err(_) => *self.reasons.entry("connection broke".to_owned()).or_default() += 1,
        }
    }
}

/// The reason in the body of an error, or its first words.
fn reason(body: &[u8]) -> String {
    let json = serde_json::from_slice::<serde_json::Value>(body).ok();
    match json.as_ref().and_then(|json| json["reason"].as_str()) {
        Some(reason) => reason.to_owned(),
        None => String::from_utf8_lossy(body).split_whitespace().take(3).collect::<Vec<_>>().join(" "),
    }
}

/// One request, over a connection that nobody uses.
async fn one(seen: &RefCell<Seen>, address: SocketAddr, request: &[u8]) -> Result<(u16, Bytes)> {
    let mut connection = loop {
        let idle = seen.borrow_mut().idle.pop();
        if let Some(idle) = idle {
            break idle;
        }
        if seen.borrow().open < CONNECTIONS {
            seen.borrow_mut().open += 1;
            break HttpConnection::open(address).await?;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let answer = connection.call(request).await?;
    seen.borrow_mut().idle.push(connection);
    Ok(answer)
}

/// The next pause of a random arrival, in units of the mean (xorshift, and the inverse of the exponential distribution).
fn pause(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let uniform = ((*state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -uniform.ln()
}
