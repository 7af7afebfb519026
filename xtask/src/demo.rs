//! `cargo xtask demo`: the main job on the example models, as a new user would do it by hand; on one machine, or with
//! `cluster` as three nodes over etcd, with `gitops` from a commit on, with `functions` from `etcdctl put` on.

mod cluster;
mod fleet;
mod functions;
mod gitops;

use std::{
    io::{BufRead, BufReader, IsTerminal as _},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};

use crate::{
    run::{run as execute, step, styled},
    setup,
    test::build,
    workspace::Workspace,
};

/// The system to show, and how to leave it.
#[derive(Args)]
pub(crate) struct Options {
    /// Stop at the end instead of leaving the server running for you to try.
    #[arg(long, global = true)]
    exit: bool,
    #[command(subcommand)]
    system: Option<System>,
}

/// Systems of more than one machine.
#[derive(Subcommand)]
enum System {
    /// Three nodes and a three-member etcd: any gateway takes any request; one node is killed, one drained, under load.
    Cluster,
    /// From a Git commit to two workers that answer: a model card, a registry, a new version, a bad commit, secrets.
    Gitops,
    /// From `etcdctl put` to an answer: builds, an update, a mistake, the way back, the same by `berth apply`.
    Functions,
}

/// Commands of the demo, each with a line that explains it.
const TOUR: &[(&str, &[&str])] = &[
    ("Two models are kept loaded, three are loaded by their first request.", &["get", "deployments", "-o", "wide"]),
    ("Ask the iris model, over REST ...", &["infer", "iris", "-f", "examples/models/artifacts/iris.json"]),
    (
        "... and over gRPC, with latency figures.",
        &[
            "infer",
            "iris",
            "--grpc",
            "-f",
            "examples/models/artifacts/iris.json",
            "--repeat",
            "2000",
            "--concurrency",
            "8",
        ],
    ),
    ("Text goes in, a label comes out.", &["infer", "sentiment", "-f", "examples/models/artifacts/sentiment.json"]),
    (
        "This one is not loaded: the request waits for it.",
        &["infer", "digits-mlp", "-f", "examples/models/artifacts/digits-mlp.json"],
    ),
    ("Why is it where it is?", &["explain", "digits-mlp"]),
    ("Declare another deployment through the API.", &["apply", "-f", "examples/update/flowers-v1.yaml"]),
    ("", &["wait", "deployment/flowers", "--for=Available", "--timeout=60s"]),
    ("What would an update of it change? Nothing is touched yet.", &["plan", "-f", "examples/update/flowers-v2.yaml"]),
    (
        "Apply it: the new version is loaded beside the old one, checked, then it takes over.",
        &["apply", "-f", "examples/update/flowers-v2.yaml"],
    ),
    ("", &["wait", "deployment/flowers", "--for=Available", "--timeout=60s"]),
    ("", &["infer", "flowers", "-f", "examples/models/artifacts/iris.json"]),
    ("", &["describe", "deployment", "flowers"]),
    ("All of it is on record.", &["get", "events"]),
];

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let made = setup::engine_and_models(workspace)?;
    step("building berth");
    execute(&mut build(workspace))?;
    match options.system {
        Some(System::Cluster) => return cluster::run(workspace, &made.engine, options.exit),
        Some(System::Gitops) => return gitops::run(workspace, &made.engine, options.exit),
        Some(System::Functions) => return functions::run(workspace, &made.engine, options.exit),
        None => {}
    }
    let demo = Demo::start(workspace, made.engine)?;
    for (says, arguments) in TOUR {
        if !says.is_empty() {
            step(says);
        }
        demo.berth(arguments)?;
    }
    demo.farewell(options)
}

/// A running server and how to talk to it.
struct Demo<'a> {
    workspace: &'a Workspace,
    berth: PathBuf,
    server: Child,
    http: u16,
    api: u16,
}

impl<'a> Demo<'a> {
    fn start(workspace: &'a Workspace, engine: PathBuf) -> Result<Self> {
        let berth = workspace.target("debug").join("berth");
        let (http, api) = (free_port(8080)?, free_port(8081)?);
        let data = workspace.cache("demo");
        if data.exists() {
            fs_err::remove_dir_all(&data)?;
        }
        step("berth up: the folder's models are loaded and checked");
        let mut command = Command::new(&berth);
        command
            .current_dir(workspace.root())
            .args(["up", "examples/models", "--log", "warn", "--log-format", "text", "--data"])
            .arg(&data)
            .args(["--http", &format!("127.0.0.1:{http}"), "--api", &format!("127.0.0.1:{api}")])
            .env("ORT_DYLIB_PATH", engine)
            .stdin(Stdio::null());
        show(&command);
        let server = command.spawn().context("cannot start berth")?;
        let demo = Self { workspace, berth, server, http, api };
        // Its own client waits for it: first until the API answers, then until the models do.
        for name in ["iris", "sentiment"] {
            demo.berth(&["wait", &format!("deployment/{name}"), "--for=Available", "--timeout=60s"])?;
        }
        Ok(demo)
    }

    fn berth(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.berth);
        command
            .current_dir(self.workspace.root())
            .args(arguments)
            .env("BERTH_API", format!("http://127.0.0.1:{}", self.api))
            .env("BERTH_HTTP", format!("http://127.0.0.1:{}", self.http));
        show(&command);
        execute(&mut command)
    }

    fn farewell(mut self, options: &Options) -> Result<()> {
        step("What to try next");
        println!("  export BERTH_API=http://127.0.0.1:{} BERTH_HTTP=http://127.0.0.1:{}", self.api, self.http);
        println!("  export PATH={}:$PATH", self.workspace.target("debug").display());
        println!("  berth top                                  # live view");
        println!("  berth describe deployment iris             # spec, status, replicas, events");
        println!("  curl -s http://127.0.0.1:{}/v2/models/iris  # any Open Inference Protocol client works", self.http);
        println!("  edit examples/models/iris.yaml             # the running server follows the folder");
        println!("  docs/manifest.md, docs/cli.md, docs/api.md # everything that can be said");
        if !options.exit && std::io::stdin().is_terminal() {
            println!("\nThe server is running; press Enter to stop it.");
            let mut line = String::new();
            BufReader::new(std::io::stdin()).read_line(&mut line)?;
        }
        execute(Command::new("kill").args(["-TERM", &self.server.id().to_string()]))?;
        let status = self.server.wait()?;
        if !status.success() {
            bail!("berth ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Demo<'_> {
    /// A demo that fails half-way leaves no server behind.
    fn drop(&mut self) {
        if matches!(self.server.try_wait(), Ok(None)) {
            self.server.kill().ok();
            self.server.wait().ok();
        }
    }
}

fn show(command: &Command) {
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    eprintln!("{}", styled("2", &format!("$ berth {}", arguments.join(" "))));
}

/// The usual port where it is free, otherwise any.
fn free_port(usual: u16) -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", usual)).or_else(|_| TcpListener::bind(("127.0.0.1", 0)))?;
    Ok(listener.local_addr()?.port())
}
