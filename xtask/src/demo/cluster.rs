//! `cargo xtask demo cluster`: three nodes and a three-member etcd on one machine, on ports of their own. What an operator
//! would do by hand: make certificates, start nodes, declare models, look, kill a node under load, drain one.

use std::{path::Path, process::Command, thread, time::Duration};

use anyhow::{Result, ensure};

use super::{
    fleet::{Fleet, Node, Process},
    show,
};
use crate::{
    debian,
    run::{run as execute, run_quiet, step},
    workspace::Workspace,
};

/// The names of the nodes; each is in a zone of its own.
const NODES: [&str; 3] = ["a", "b", "c"];

/// Load while things go wrong: long enough to see it through.
const REQUESTS: &str = "60000";

/// Starts everything, shows it, stops it.
pub(super) fn run(workspace: &Workspace, engine: &Path, exit: bool) -> Result<()> {
    debian::ensure(&[debian::ETCD])?;
    let mut demo = Demo::start(workspace, engine)?;
    demo.declare()?;
    demo.kill_one()?;
    demo.drain_one()?;
    step("All of it is on record.");
    demo.fleet.berth(&["get", "events"])?;
    let hints = [
        "berth get nodes -o wide      # the capacity table",
        "berth explain digits-mlp     # why here, why not there",
        "docs/cluster.md              # how to run one for real",
    ];
    demo.fleet.farewell(exit, &hints)
}

struct Demo<'a> {
    fleet: Fleet<'a>,
}

impl<'a> Demo<'a> {
    fn start(workspace: &'a Workspace, engine: &Path) -> Result<Self> {
        let mut demo = Self { fleet: Fleet::prepare(workspace, engine, "demo-cluster", &NODES)? };
        step("three nodes");
        for node in 0..NODES.len() {
            demo.start_node(node)?;
        }
        demo.fleet.until_ready()?;
        Ok(demo)
    }

    fn start_node(&mut self, index: usize) -> Result<()> {
        let zone = format!("zone={}", NODES[index]);
        self.fleet.start_node(index, &["--labels", &zone, "--memory", "1GiB", "--log", "error"])
    }

    /// Sends requests through one node's gateway.
    fn infer(&self, node: usize, model: &str, more: &[&str]) -> Command {
        let input = format!("examples/models/artifacts/{}.json", if model == "digits-mlp" { model } else { "iris" });
        let mut command = self.fleet.command(&["infer", model, "-f", &input]);
        command.args(more).env("BERTH_HTTP", format!("http://127.0.0.1:{}", self.fleet.nodes[node].http));
        show(&command);
        command
    }

    fn declare(&self) -> Result<()> {
        step("Any node answers for all; one of them leads.");
        self.fleet.berth(&["get", "nodes", "-o", "wide"])?;
        step("Declare models once, through any node.");
        self.fleet.berth(&["apply", "-f", "examples/cluster"])?;
        for name in ["iris", "flowers"] {
            self.fleet.berth(&["wait", &format!("deployment/{name}"), "--for=Available", "--timeout=60s"])?;
        }
        self.fleet.berth(&["get", "replicas"])?;
        step("Two copies, in two zones. Why there?");
        self.fleet.berth(&["explain", "iris"])?;
        step("Every gateway takes every request; one without a copy forwards to a node that has one.");
        for node in 0..self.fleet.nodes.len() {
            execute(&mut self.infer(node, "iris", &[]))?;
        }
        step("This one is loaded nowhere: the request waits while one node loads it, once.");
        execute(&mut self.infer(2, "digits-mlp", &[]))
    }

    /// Sends requests through node `a` while `happen` happens; none may be lost.
    fn under_load(&mut self, model: &str, happen: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let mut load = Process::spawn(&mut self.infer(0, model, &["--repeat", REQUESTS, "--concurrency", "4"]))?;
        thread::sleep(Duration::from_millis(500));
        happen(self)?;
        ensure!(load.child.wait()?.success(), "requests were lost");
        Ok(())
    }

    fn kill_one(&mut self) -> Result<()> {
        step("kill -9 for a node that holds a copy, while requests for it come in through node a.");
        let holders = run_quiet(&mut self.fleet.command(&["get", "replicas"]))?;
        let holds = |node: &Node| holders.lines().any(|line| line.starts_with("iris@") && line.contains(node.name));
        let victim = (1..self.fleet.nodes.len()).find(|index| holds(&self.fleet.nodes[*index])).unwrap_or(1);
        self.under_load("iris", |demo| {
            eprintln!("$ kill -9   # node {}", demo.fleet.nodes[victim].name);
            demo.fleet.nodes[victim].process = None;
            Ok(())
        })?;
        self.fleet.berth(&["get", "nodes"])?;
        self.fleet.berth(&["get", "replicas"])?;
        step("It comes back.");
        self.start_node(victim)?;
        self.fleet.until_ready()
    }

    fn drain_one(&mut self) -> Result<()> {
        step("Drain a node under load: its models are copied elsewhere first, then they leave it.");
        let node = format!("node/{}", NODES[2]);
        self.under_load("flowers", |demo| demo.fleet.berth(&["drain", &node, "--timeout", "60s"]))?;
        self.fleet.berth(&["get", "nodes"])?;
        self.fleet.berth(&["uncordon", &node])
    }
}
