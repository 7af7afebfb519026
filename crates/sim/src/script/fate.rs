//! Faults of nodes in a story.

use std::collections::BTreeSet;

use berth_plan::fixture;
use berth_spec::WorkerId;

use super::options::Options;
use crate::{
    cluster::Cluster,
    net::{Cut, Ways},
    store::{Quorum, STORE},
};

pub(super) fn inject(cluster: &mut Cluster, verb: &str, subject: &str, options: &Options<'_>) -> Result<(), String> {
    let nodes = || group(cluster, subject);
    match verb {
        "crash" => nodes().iter().for_each(|node| cluster.crash(node)),
        "power-off" => nodes().iter().for_each(|node| cluster.cut_power(node)),
        "return" => nodes().iter().for_each(|node| cluster.restart(node)),
        "stop" => nodes().iter().for_each(|node| cluster.stop(node)),
        "reconnect" => nodes().iter().for_each(|node| cluster.reconnect(node)),
        "dies" => {
            let (worker, away) = (options.text("on").ok_or("on= is missing")?, options.time("for")?);
            cluster.dies_there(&fixture::worker_id(worker), &fixture::name(subject), away);
        }
        "pause" => {
            let lasts = options.time("for")?;
            nodes().iter().for_each(|node| cluster.pause(node, lasts));
        }
        "slow" | "well" => {
            let nodes = nodes();
            for node in &nodes {
                if verb == "slow" { cluster.slow_down(node) } else { cluster.heal_machine(node) }
            }
        }
        "roll-all" => cluster.roll_all(),
        "store" => {
            cluster.store.quorum = match subject {
                "lost" => Quorum::Lost,
                "slow" => Quorum::Slow(options.time("by")?),
                "well" => Quorum::Whole,
                other => return Err(format!("the store cannot be {other:?}: lost, slow or well")),
            };
        }
        "partition" => {
            let side = |key| -> BTreeSet<WorkerId> {
                options.list(key).iter().flat_map(|name| group(cluster, name)).collect()
            };
            let ways = if options.has("one-way") { Ways::OneWay } else { Ways::Both };
            let cut = Cut { from: side("left"), to: side("right"), ways };
            cluster.cut(subject, cut);
        }
        "heal" => cluster.heal(subject),
        _ => return Err("no such command".to_owned()),
    }
    Ok(())
}

/// A node, `store`, `leader`, several with commas between, or those whose names begin alike: `w*`.
fn group(cluster: &Cluster, names: &str) -> BTreeSet<WorkerId> {
    let one = |name: &str| -> BTreeSet<WorkerId> {
        match name.strip_suffix('*') {
            Some(begin) => cluster.processes.keys().filter(|node| node.as_str().starts_with(begin)).cloned().collect(),
            None if name == "leader" => cluster.leader().cloned().into_iter().collect(),
            None if name == STORE => [fixture::worker_id(STORE)].into(),
            None => [fixture::worker_id(name)].into(),
        }
    };
    names.split(',').flat_map(one).collect()
}
