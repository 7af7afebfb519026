//! Requests at a steady rate, whether earlier ones were answered or not: gRPC calls of a kilobyte that the model server sends back.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Result;
use bytes::Bytes;
use tokio::task::JoinSet;

use super::name;
use crate::load::{GrpcStream, grpc_connection};

/// Bytes of a message.
const MESSAGE: usize = 1_024;

/// Connections, as of so many clients.
const CONNECTIONS: usize = 8;

/// The longest that a call may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Popularity after Zipf with exponent 1 over a shuffled order.
pub(crate) struct Popularity {
    order: Vec<usize>,
    sums: Vec<f64>,
    rng: SplitMix64,
}

impl Popularity {
    pub(crate) fn new(count: usize, seed: u64) -> Self {
        let mut rng = SplitMix64(seed);
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            order.swap(at, (rng.draw() * (at + 1) as f64) as usize);
        }
        let mut sum = 0.0;
        let sums = (1..=count).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Self { order, sums: sums.collect(), rng }
    }

    pub(crate) fn draw(&mut self) -> usize {
        let all = self.sums.last().copied().unwrap_or_default();
        let point = self.rng.draw() * all;
        let rank = self.sums.partition_point(|sum| *sum < point);
        self.order[rank.min(self.order.len() - 1)]
    }
}

/// Numbers from 0 to 1, after SplitMix64.
struct SplitMix64(u64);

impl SplitMix64 {
    fn draw(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
    }
}

/// Latencies from the moment at which a call should have been sent, in order.
#[derive(Default)]
pub(crate) struct Seen {
    latencies: Vec<Duration>,
    /// The part of them that are hits, from the front.
    hits: usize,
    pub(crate) failed: usize,
    pub(crate) reasons: Vec<String>,
}

impl Seen {
    /// Takes the longest latencies for those of so many misses.
    pub(crate) fn split(&mut self, misses: usize) {
        self.latencies.sort();
        self.hits = self.latencies.len().saturating_sub(misses);
    }

    /// p50 and p99 of hits, then of misses.
    pub(crate) fn quantiles(&self) -> [(Duration, Duration); 2] {
        let (hits, misses) = self.latencies.split_at(self.hits);
        [hits, misses].map(|all| {
            let at = |share: f64| all.get((all.len() as f64 * share) as usize).copied().unwrap_or_default();
            (at(0.5), at(0.99))
        })
    }

    pub(crate) fn answered(&self) -> usize {
        self.latencies.len()
    }
}

/// Sends a request for each of these models, so many per second.
pub(crate) async fn send(address: SocketAddr, models: &[usize], rate: f64) -> Result<Seen> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(grpc_connection(address).await?);
    }
    let message = message();
    let (mut seen, mut calls) = (Seen::default(), JoinSet::new());
    let begin = Instant::now();
    for (number, model) in models.iter().enumerate() {
        let due = begin + Duration::from_secs_f64(number as f64 / rate);
        tokio::time::sleep_until(due.into()).await;
        let (connection, message, model) = (connections[number % CONNECTIONS].clone(), message.clone(), name(*model));
        calls.spawn(async move {
            let called = call(connection, address, &model, message);
            let done = tokio::time::timeout(PATIENCE, called).await;
            (due.elapsed(), done.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {PATIENCE:?}"))))
        });
        while let Some(done) = calls.try_join_next() {
            let (latency, result) = done?;
            seen.take(latency, result);
        }
    }
    while let Some(done) = calls.join_next().await {
        let (latency, result) = done?;
        seen.take(latency, result);
    }
    Ok(seen)
}

impl Seen {
    fn take(&mut self, latency: Duration, result: Result<()>) {
        match result {
            Ok(()) => self.latencies.push(latency),
            Err(error) => {
                self.failed += 1;
                if self.reasons.len() < 3 {
                    eprintln!("failed: {error:#}");
                    self.reasons.push(format!("{error:#}"));
                }
            }
        }
    }
}

async fn call(
    connection: h2::client::SendRequest<Bytes>,
    address: SocketAddr,
    model: &str,
    message: Bytes,
) -> Result<()> {
    let mut stream = GrpcStream::open(connection, address, "/bench.Echo/Say", &[("mm-model-id", model)]).await?;
    stream.send(message, true)?;
    stream.finish().await
}

/// A message with its frame.
fn message() -> Bytes {
    super::cost::framed(MESSAGE)
}
