//! Nodes over a three-member etcd on one machine, on ports of their own: what `demo cluster` and `demo gitops` are told with.

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
    run::{run as execute, run_quiet, step},
    workspace::Workspace,
};

/// Time that any part may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A program of the demo; it ends with the demo.
pub(super) struct Process {
    pub(super) child: Child,
}

impl Process {
    pub(super) fn spawn(command: &mut Command) -> Result<Self> {
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
pub(super) struct Node {
    pub(super) name: &'static str,
    pub(super) http: u16,
    api: u16,
    gossip: u16,
    peer: u16,
    pub(super) process: Option<Process>,
}

/// The nodes, their store, their certificates.
pub(super) struct Fleet<'a> {
    pub(super) workspace: &'a Workspace,
    berth: PathBuf,
    engine: PathBuf,
    pub(super) folder: PathBuf,
    store: String,
    pub(super) nodes: Vec<Node>,
    _etcd: Vec<Process>,
}

impl<'a> Fleet<'a> {
    /// Starts the store and makes certificates; nodes are started by [`start_node`](Self::start_node).
    pub(super) fn prepare(
        workspace: &'a Workspace,
        engine: &Path,
        cache: &str,
        names: &[&'static str],
    ) -> Result<Self> {
        let folder = workspace.cache(cache);
        if folder.exists() {
            fs_err::remove_dir_all(&folder)?;
        }
        fs_err::create_dir_all(&folder)?;
        step("a store: three members of etcd");
        let (etcd, store) = etcd(&folder)?;
        let nodes = names.iter().map(|name| {
            let [http, api, gossip, peer] = [free_port(0)?, free_port(0)?, free_port(0)?, free_port(0)?];
            Ok(Node { name, http, api, gossip, peer, process: None })
        });
        let fleet = Self {
            workspace,
            berth: workspace.target("debug").join("berth"),
            engine: engine.to_owned(),
            folder,
            store,
            nodes: nodes.collect::<Result<_>>()?,
            _etcd: etcd,
        };
        step("a certificate authority for the cluster, and a certificate for every node");
        let pki = fleet.folder.join("pki");
        fleet.berth(&["pki", "init", &pki.to_string_lossy()])?;
        for name in names {
            fleet.berth(&["pki", "issue", &pki.to_string_lossy(), name])?;
        }
        Ok(fleet)
    }

    /// Starts a node; `more` are arguments beside the usual ones.
    pub(super) fn start_node(&mut self, index: usize, more: &[&str]) -> Result<()> {
        let loopback = |port: u16| format!("127.0.0.1:{port}");
        let join: Vec<_> = self.nodes.iter().map(|node| loopback(node.gossip)).collect();
        let node = &self.nodes[index];
        let mut command = Command::new(&self.berth);
        command
            .current_dir(self.workspace.root())
            .args(["node", "--name", node.name, "--store", &self.store, "--join", &join.join(",")])
            .args(["--pki", &self.folder.join("pki").join(node.name).to_string_lossy()])
            .args(["--data", &self.folder.join(node.name).to_string_lossy()])
            .args(["--http", &loopback(node.http), "--api", &loopback(node.api)])
            .args(["--gossip", &loopback(node.gossip), "--peer", &loopback(node.peer)])
            .args(more)
            .env("ORT_DYLIB_PATH", &self.engine)
            .stderr(fs_err::File::create(self.folder.join(format!("{}.log", node.name)))?.into_parts().0);
        show(&command);
        self.nodes[index].process = Some(Process::spawn(&mut command)?);
        Ok(())
    }

    /// A client command; the control API of every node is told, any that lives answers.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let apis: Vec<_> = self.nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.api)).collect();
        let mut command = Command::new(&self.berth);
        command.current_dir(self.workspace.root()).args(arguments).env("BERTH_API", apis.join(","));
        command
    }

    /// Runs a client command and shows both.
    pub(super) fn berth(&self, arguments: &[&str]) -> Result<()> {
        let mut command = self.command(arguments);
        show(&command);
        execute(&mut command)
    }

    /// Waits until every node is ready.
    pub(super) fn until_ready(&mut self) -> Result<()> {
        let (end, wanted) = (Instant::now() + PATIENCE, self.nodes.len());
        loop {
            let ready = run_quiet(&mut self.command(&["get", "nodes"])).is_ok_and(|table| {
                table.lines().filter(|line| line.split_whitespace().any(|word| word == "Ready")).count() == wanted
            });
            if ready {
                return Ok(());
            }
            self.all_alive()?;
            ensure!(Instant::now() < end, "the nodes were not ready within {} s", PATIENCE.as_secs());
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Fails with the log of a node that has ended.
    pub(super) fn all_alive(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            let ended = node.process.as_mut().map(|process| process.child.try_wait()).transpose()?.flatten();
            if let Some(status) = ended {
                let log = fs_err::read_to_string(self.folder.join(format!("{}.log", node.name)))?;
                bail!("node {} ended with {status}:\n{log}", node.name);
            }
        }
        Ok(())
    }

    /// Says what to try next, waits for people, stops all nodes.
    pub(super) fn farewell(mut self, exit: bool, hints: &[&str]) -> Result<()> {
        step("What to try next");
        #[expect(clippy::print_stdout, reason = "for people to copy")]
        {
            println!("  export BERTH_API=http://127.0.0.1:{}", self.nodes[0].api);
            println!("  export BERTH_HTTP=http://127.0.0.1:{}", self.nodes[0].http);
            println!("  export PATH={}:$PATH", self.workspace.target("debug").display());
            hints.iter().for_each(|hint| println!("  {hint}"));
        }
        if !exit && std::io::stdin().is_terminal() {
            eprintln!("\nThe nodes are running; press Enter to stop them.");
            BufReader::new(std::io::stdin()).read_line(&mut String::new())?;
        }
        let running = self.nodes.iter_mut().filter_map(|node| Some((node.name, node.process.take()?)));
        let mut running: Vec<_> = running.collect();
        for (_, process) in &running {
            execute(Command::new("kill").args(["-TERM", &process.child.id().to_string()]))?;
        }
        for (name, process) in &mut running {
            let status = process.child.wait()?;
            ensure!(status.success(), "node {name} ended with {status}");
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
