//! Memory of a controller that leads, one that stands by, and a gateway, with 100,000 deployments in the store.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::fleet::{Fleet, Plan};
use crate::{Arguments, memory, payload::TABULAR};

/// Deployments in all, and in one request.
pub(crate) const COUNT: usize = 100_000;
const CHUNK: usize = 1_000;

/// One of each.
const NODES: [Plan<'_>; 3] = [
    Plan { name: "one", roles: "controller", more: &[] },
    Plan { name: "two", roles: "controller", more: &[] },
    Plan { name: "gate", roles: "gateway", more: &[] },
];

/// Bytes of one process: empty, and with all deployments.
pub(crate) struct Resident {
    pub(crate) what: &'static str,
    pub(crate) empty: u64,
    pub(crate) full: u64,
}

pub(crate) async fn measure(arguments: &Arguments) -> Result<Vec<Resident>> {
    let fleet = Fleet::start(arguments, &NODES).await?;
    let leader = fleet.leader(&fleet.ask("/v1/nodes").await?).context("somebody leads")?;
    let what = |name: &str| match name {
        "gate" => "gateway",
        name if name == leader => "controller that leads",
        _ => "controller that stands by",
    };
    let resident = |fleet: &Fleet| -> Result<Vec<u64>> {
        fleet.nodes.iter().map(|node| node.process.as_ref().context("it runs")?.resident()).collect()
    };
    let empty = resident(&fleet)?;
    for from in (0..COUNT).step_by(CHUNK) {
        memory::register(fleet.nodes[0].api, TABULAR.artifact.as_ref(), from..from + CHUNK).await?;
    }
    // What the work itself took is given back within seconds.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let full = resident(&fleet)?;
    let rows = fleet.nodes.iter().zip(empty).zip(full);
    Ok(rows.map(|((node, empty), full)| Resident { what: what(node.name), empty, full }).collect())
}
