//! `cargo xtask demo cluster`: three nodes and a three-member etcd on one machine, on ports of their own. What an operator
//! would do by hand: make certificates, start nodes, declare models, look, kill a node under load, drain one.

use std::{
    io::{BufRead as _, BufReader, IsTerminal as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{free_port, show};
use crate::{
    debian,
    run::{run as execute, run_quiet, step},
    workspace::Workspace,
};

/// The names of the nodes; each is in a zone of its own.
const NODES: [&str; 3] = ["a", "b", "c"];

/// How long any part may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is sent while things go wrong: long enough to see it through.
const REQUESTS: &str = "60000";

/// Starts everything, shows it, stops it.
pub(super) fn run(workspace: &Workspace, engine: &Path, exit: bool) -> Result<()> {
    debian::ensure(&[debian::ETCD])?;
    let mut demo = Demo::start(workspace, engine)?;
    demo.declare()?;
    demo.kill_one()?;
    demo.drain_one()?;
    step("All of it is on record.");
    demo.berth(&["get", "events"])?;
    demo.farewell(exit)
}

/// A program of the demo; it ends with the demo.
struct Process {
    child: Child,
}

impl Process {
    fn spawn(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).spawn();
        Ok(Self { child: child.with_context(|| format!("cannot start {}", command.get_program().display()))? })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// One node and where it answers.
struct Node {
    name: &'static str,
    http: u16,
    api: u16,
    gossip: u16,
    peer: u16,
    process: Option<Process>,
}

struct Demo<'a> {
    workspace: &'a Workspace,
    berth: PathBuf,
    engine: PathBuf,
    folder: PathBuf,
    store: String,
    nodes: Vec<Node>,
    _etcd: Vec<Process>,
}

impl<'a> Demo<'a> {
    fn start(workspace: &'a Workspace, engine: &Path) -> Result<Self> {
        let folder = workspace.cache("demo-cluster");
        if folder.exists() {
            fs_err::remove_dir_all(&folder)?;
        }
        fs_err::create_dir_all(&folder)?;
        step("a store: three members of etcd");
        let (etcd, store) = etcd(&folder)?;
        let nodes = NODES.iter().map(|name| {
            let [http, api, gossip, peer] = [free_port(0)?, free_port(0)?, free_port(0)?, free_port(0)?];
            Ok(Node { name, http, api, gossip, peer, process: None })
        });
        let mut demo = Self {
            workspace,
            berth: workspace.target("debug").join("berth"),
            engine: engine.to_owned(),
            folder,
            store,
            nodes: nodes.collect::<Result<_>>()?,
            _etcd: etcd,
        };
        step("a certificate authority for the cluster, and a certificate for every node");
        let pki = demo.folder.join("pki");
        demo.berth(&["pki", "init", &pki.to_string_lossy()])?;
        for name in NODES {
            demo.berth(&["pki", "issue", &pki.to_string_lossy(), name])?;
        }
        step("three nodes");
        for node in 0..demo.nodes.len() {
            demo.start_node(node)?;
        }
        demo.until_nodes_are_ready()?;
        Ok(demo)
    }

    fn start_node(&mut self, index: usize) -> Result<()> {
        let loopback = |port: u16| format!("127.0.0.1:{port}");
        let join: Vec<_> = self.nodes.iter().map(|node| loopback(node.gossip)).collect();
        let node = &self.nodes[index];
        let mut command = Command::new(&self.berth);
        command
            .current_dir(self.workspace.root())
            .args(["node", "--name", node.name, "--store", &self.store, "--join", &join.join(",")])
            .args(["--pki", &self.folder.join("pki").join(node.name).to_string_lossy()])
            .args(["--data", &self.folder.join(node.name).to_string_lossy()])
            .args(["--labels", &format!("zone={}", node.name), "--memory", "1GiB", "--log", "error"])
            .args(["--http", &loopback(node.http), "--api", &loopback(node.api)])
            .args(["--gossip", &loopback(node.gossip), "--peer", &loopback(node.peer)])
            .env("ORT_DYLIB_PATH", &self.engine)
            .stderr(fs_err::File::create(self.folder.join(format!("{}.log", node.name)))?.into_parts().0);
        show(&command);
        self.nodes[index].process = Some(Process::spawn(&mut command)?);
        Ok(())
    }

    /// A client command; the control API of every node is told, any that lives answers.
    fn command(&self, arguments: &[&str]) -> Command {
        let apis: Vec<_> = self.nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.api)).collect();
        let mut command = Command::new(&self.berth);
        command.current_dir(self.workspace.root()).args(arguments).env("BERTH_API", apis.join(","));
        command
    }

    fn berth(&self, arguments: &[&str]) -> Result<()> {
        let mut command = self.command(arguments);
        show(&command);
        execute(&mut command)
    }

    /// Sends requests through one node's gateway.
    fn infer(&self, node: usize, model: &str, more: &[&str]) -> Command {
        let input = format!("examples/models/artifacts/{}.json", if model == "digits-mlp" { model } else { "iris" });
        let mut command = self.command(&["infer", model, "-f", &input]);
        command.args(more).env("BERTH_HTTP", format!("http://127.0.0.1:{}", self.nodes[node].http));
        show(&command);
        command
    }

    fn declare(&self) -> Result<()> {
        step("Any node answers for all; one of them leads.");
        self.berth(&["get", "nodes", "-o", "wide"])?;
        step("Declare models once, through any node.");
        self.berth(&["apply", "-f", "examples/cluster"])?;
        for name in ["iris", "flowers"] {
            self.berth(&["wait", &format!("deployment/{name}"), "--for=Available", "--timeout=60s"])?;
        }
        self.berth(&["get", "replicas"])?;
        step("Two copies, in two zones. Why there?");
        self.berth(&["explain", "iris"])?;
        step("Every gateway takes every request; one without a copy forwards to a node that has one.");
        for node in 0..self.nodes.len() {
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
        let holders = run_quiet(&mut self.command(&["get", "replicas"]))?;
        let holds = |node: &Node| holders.lines().any(|line| line.starts_with("iris@") && line.contains(node.name));
        let victim = (1..self.nodes.len()).find(|index| holds(&self.nodes[*index])).unwrap_or(1);
        self.under_load("iris", |demo| {
            eprintln!("$ kill -9   # node {}", demo.nodes[victim].name);
            demo.nodes[victim].process = None;
            Ok(())
        })?;
        self.berth(&["get", "nodes"])?;
        self.berth(&["get", "replicas"])?;
        step("It comes back.");
        self.start_node(victim)?;
        self.until_nodes_are_ready()
    }

    fn drain_one(&mut self) -> Result<()> {
        step("Drain a node under load: its models are copied elsewhere first, then they leave it.");
        let node = format!("node/{}", NODES[2]);
        self.under_load("flowers", |demo| demo.berth(&["drain", &node, "--timeout", "60s"]))?;
        self.berth(&["get", "nodes"])?;
        self.berth(&["uncordon", &node])
    }

    fn until_nodes_are_ready(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let ready = run_quiet(&mut self.command(&["get", "nodes"])).is_ok_and(|table| {
                table.lines().filter(|line| line.split_whitespace().any(|word| word == "Ready")).count() == NODES.len()
            });
            if ready {
                return Ok(());
            }
            for node in &mut self.nodes {
                let ended = node.process.as_mut().map(|process| process.child.try_wait()).transpose()?.flatten();
                if let Some(status) = ended {
                    let log = fs_err::read_to_string(self.folder.join(format!("{}.log", node.name)))?;
                    bail!("node {} ended with {status}:\n{log}", node.name);
                }
            }
            ensure!(Instant::now() < end, "the nodes were not ready within {} s", PATIENCE.as_secs());
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn farewell(mut self, exit: bool) -> Result<()> {
        step("What to try next");
        #[expect(clippy::print_stdout, reason = "for people to copy")]
        {
            println!("  export BERTH_API=http://127.0.0.1:{}", self.nodes[0].api);
            println!("  export BERTH_HTTP=http://127.0.0.1:{}", self.nodes[0].http);
            println!("  export PATH={}:$PATH", self.workspace.target("debug").display());
            println!("  berth get nodes -o wide      # the capacity table");
            println!("  berth explain digits-mlp     # why here, why not there");
            println!("  docs/cluster.md              # how to run one for real");
        }
        if !exit && std::io::stdin().is_terminal() {
            eprintln!("\nThe cluster is running; press Enter to stop it.");
            BufReader::new(std::io::stdin()).read_line(&mut String::new())?;
        }
        for node in &mut self.nodes {
            let Some(mut process) = node.process.take() else { continue };
            execute(Command::new("kill").args(["-TERM", &process.child.id().to_string()]))?;
            let status = process.child.wait()?;
            ensure!(status.success(), "node {} ended with {status}", node.name);
        }
        Ok(())
    }
}

/// Three members on loopback. They do not sync to disk: it is a demo.
fn etcd(folder: &Path) -> Result<(Vec<Process>, String)> {
    let ports: Vec<(u16, u16)> = (0..3).map(|_| Ok((free_port(0)?, free_port(0)?))).collect::<Result<_>>()?;
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let initial: Vec<_> = ports.iter().enumerate().map(|(n, (_, peer))| format!("e{n}={}", url(*peer))).collect();
    let mut members = Vec::new();
    for (n, (client, peer)) in ports.iter().enumerate() {
        let mut command = Command::new("etcd");
        command
            .args(["--name", &format!("e{n}"), "--data-dir"])
            .arg(folder.join(format!("etcd{n}")))
            .args(["--listen-client-urls", &url(*client), "--advertise-client-urls", &url(*client)])
            .args(["--listen-peer-urls", &url(*peer), "--initial-advertise-peer-urls", &url(*peer)])
            .args(["--initial-cluster", &initial.join(","), "--unsafe-no-fsync", "--log-level", "error"])
            .args(["--logger", "zap", "--heartbeat-interval", "100", "--election-timeout", "1000"])
            .stdout(Stdio::null())
            .stderr(fs_err::File::create(folder.join(format!("etcd{n}.log")))?.into_parts().0);
        members.push(Process::spawn(&mut command)?);
    }
    let endpoints: Vec<_> = ports.iter().map(|(client, _)| format!("127.0.0.1:{client}")).collect();
    Ok((members, format!("etcd://{}", endpoints.join(","))))
}
