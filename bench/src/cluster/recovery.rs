//! Recovery of a cluster, seen by its clients: throughput and latency while a node dies, and the time until it is known, its
//! copies are restored, and another controller decides.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::json;
use tokio::task::JoinSet;

use super::fleet::{Fleet, Plan, get, onnx, until};
use crate::{
    Arguments,
    load::{HttpConnection, Request},
    payload::TABULAR,
};

/// Three nodes that do everything.
const NODES: [Plan<'_>; 3] = [
    Plan { name: "a", roles: "controller,worker,gateway", more: &["--memory", "1GiB"] },
    Plan { name: "b", roles: "controller,worker,gateway", more: &["--memory", "1GiB"] },
    Plan { name: "c", roles: "controller,worker,gateway", more: &["--memory", "1GiB"] },
];

/// Callers of the load.
const CALLERS: usize = 8;

/// Duration of the load before and after.
const LOAD_BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(5);

/// Effects of the failure of one node.
pub(crate) struct NodeFailure {
    pub(crate) who: &'static str,
    pub(crate) requests: usize,
    pub(crate) failed: usize,
    /// Requests per second: before, in the first second after, later.
    pub(crate) rate: [f64; 3],
    /// 99th percentile of the latency in the same times.
    pub(crate) p99: [Duration; 3],
    /// The slowest request of all.
    pub(crate) slowest: Duration,
    /// Each end that was waited for, and its time from the kill.
    pub(crate) recovery_times: Vec<(&'static str, Duration)>,
}

/// One request: when it was sent, how long it took, whether it was answered.
struct Seen {
    sent: Instant,
    latency: Duration,
    answered: bool,
}

pub(crate) async fn measure(arguments: &Arguments) -> Result<Vec<NodeFailure>> {
    Ok(vec![worker_dies(arguments).await?, leader_dies(arguments).await?])
}

/// A node that holds one of two copies and does not lead is killed.
async fn worker_dies(arguments: &Arguments) -> Result<NodeFailure> {
    let mut fleet = Fleet::start(arguments, &NODES).await?;
    let places = fleet.deploy(TABULAR.name, onnx(TABULAR.artifact.as_ref())?, 2, json!({})).await?;
    let leader = fleet.leader(&fleet.ask("/v1/nodes").await?).context("somebody leads")?;
    let victim = places.iter().find(|place| **place != leader).context("two copies, one leader")?.clone();
    let through = other(&fleet, &victim, &leader)?;
    let load = Load::start(through);
    tokio::time::sleep(LOAD_BEFORE).await;
    let killed = kill(&mut fleet, &victim)?;
    let known = until("the death to be known", || async {
        let view = fleet.ask(&format!("/v1/nodes/{victim}")).await?;
        Ok((view["status"]["health"] != "Alive").then(|| killed.elapsed()))
    });
    let known = known.await?;
    let restored = until("two copies", || async {
        let places = fleet.places(TABULAR.name).await?;
        Ok((places.iter().filter(|place| **place != victim).count() == 2).then(|| killed.elapsed()))
    });
    let restored = restored.await?;
    tokio::time::sleep(AFTER).await;
    Ok(load
        .end(killed)
        .await?
        .into_failure("a worker", vec![("known to be dead", known), ("second copy restored", restored)]))
}

/// The leader is killed.
async fn leader_dies(arguments: &Arguments) -> Result<NodeFailure> {
    let mut fleet = Fleet::start(arguments, &NODES).await?;
    fleet.deploy(TABULAR.name, onnx(TABULAR.artifact.as_ref())?, 2, json!({})).await?;
    let leader = fleet.leader(&fleet.ask("/v1/nodes").await?).context("somebody leads")?;
    let through = other(&fleet, &leader, &leader)?;
    let load = Load::start(through);
    tokio::time::sleep(LOAD_BEFORE).await;
    let killed = kill(&mut fleet, &leader)?;
    let survivor = fleet.nodes.iter().find(|node| node.process.is_some()).context("two live")?.api;
    let decides = until("another leader", || async {
        let view = get(survivor, "/v1/nodes").await?;
        Ok(fleet.leader(&view).filter(|name| *name != leader).map(|_| killed.elapsed()))
    });
    let decides = decides.await?;
    tokio::time::sleep(AFTER).await;
    Ok(load.end(killed).await?.into_failure("the leader", vec![("another one decides", decides)]))
}

/// A node through which to ask: not the victim, and rather not the leader.
fn other(fleet: &Fleet, victim: &str, leader: &str) -> Result<SocketAddr> {
    let lives = |name: &str| fleet.nodes.iter().find(|node| node.name != victim && node.name != name);
    Ok(lives(leader).or_else(|| lives("")).context("another node")?.http)
}

fn kill(fleet: &mut Fleet, name: &str) -> Result<Instant> {
    let node = fleet.nodes.iter_mut().find(|node| node.name == name).context("it runs")?;
    node.process = None;
    Ok(Instant::now())
}

struct Load {
    callers: JoinSet<Vec<Seen>>,
    stop: tokio::sync::watch::Sender<bool>,
}

impl Load {
    fn start(through: SocketAddr) -> Self {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            callers.spawn(call(through, stopped.clone()));
        }
        Self { callers, stop }
    }

    async fn end(mut self, killed: Instant) -> Result<Ended> {
        self.stop.send_replace(true);
        let mut seen = Vec::new();
        while let Some(caller) = self.callers.join_next().await {
            seen.extend(caller?);
        }
        Ok(Ended { seen, killed })
    }
}

async fn call(through: SocketAddr, stopped: tokio::sync::watch::Receiver<bool>) -> Vec<Seen> {
    let Request::Http(request) = TABULAR.json() else { return Vec::new() };
    let mut seen = Vec::new();
    let mut connection = None;
    while !*stopped.borrow() {
        let sent = Instant::now();
        let open = match connection.take() {
            Some(open) => Ok(open),
            None => HttpConnection::open(through).await,
        };
        let answered = match open {
            Ok(mut open) => {
                let answer = open.call(&request).await;
                let good = matches!(&answer, Ok((200, _)));
                connection = answer.is_ok().then_some(open);
                good
            }
            Err(_) => false,
        };
        seen.push(Seen { sent, latency: sent.elapsed(), answered });
    }
    seen
}

struct Ended {
    seen: Vec<Seen>,
    killed: Instant,
}

impl Ended {
    fn into_failure(self, who: &'static str, recovery_times: Vec<(&'static str, Duration)>) -> NodeFailure {
        let second = Duration::from_secs(1);
        let times = [
            (self.killed - LOAD_BEFORE + second, self.killed),
            (self.killed, self.killed + second),
            (self.killed + second, self.killed + AFTER),
        ];
        let within = |(from, to): (Instant, Instant)| {
            let mut latencies: Vec<Duration> =
                self.seen.iter().filter(|seen| (from..to).contains(&seen.sent)).map(|seen| seen.latency).collect();
            latencies.sort_unstable();
            let rate = latencies.len() as f64 / (to - from).as_secs_f64();
            (rate, latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default())
        };
        let figures = times.map(within);
        NodeFailure {
            who,
            requests: self.seen.len(),
            failed: self.seen.iter().filter(|seen| !seen.answered).count(),
            rate: figures.map(|(rate, _)| rate),
            p99: figures.map(|(_, p99)| p99),
            slowest: self.seen.iter().map(|seen| seen.latency).max().unwrap_or_default(),
            recovery_times,
        }
    }
}
