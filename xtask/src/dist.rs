//! `cargo xtask dist`: the binary to ship, stripped, and its symbols in a file beside it.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::{
    run::{run, run_quiet, step},
    test::cargo,
    workspace::Workspace,
};

/// Place of the binary.
#[derive(Args)]
pub(crate) struct Options {
    /// Write `berth` and `berth.debug` to this folder [default: target/dist].
    #[arg(long)]
    out: Option<PathBuf>,
}

pub(crate) fn make(workspace: &Workspace, options: &Options) -> Result<()> {
    step("building for release");
    run(cargo(workspace).args(["build", "--release", "--locked", "--bin", "berth"]))?;
    let out = options.out.clone().unwrap_or_else(|| workspace.target("dist"));
    fs_err::create_dir_all(&out)?;
    let (built, symbols, stripped) =
        (workspace.target("release").join("berth"), out.join("berth.debug"), out.join("berth"));
    let objcopy = objcopy(workspace)?;
    run_quiet(Command::new(&objcopy).arg("--only-keep-debug").args([&built, &symbols]))?;
    // Debuggers, perf and backtraces of Rust find the symbols by the link, in the folder of the binary.
    let link = format!("--add-gnu-debuglink={}", symbols.display());
    run_quiet(Command::new(&objcopy).args(["--strip-all", &link]).args([&built, &stripped]))?;
    for file in [&stripped, &symbols] {
        println!("{} {:.1} MB", file.display(), fs_err::metadata(file)?.len() as f64 / 1e6);
    }
    Ok(())
}

/// The objcopy that comes with Rust.
fn objcopy(workspace: &Workspace) -> Result<PathBuf> {
    let about = run_quiet(Command::new("rustc").arg("-vV").current_dir(workspace.root()))?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    let root = run_quiet(Command::new("rustc").args(["--print", "sysroot"]).current_dir(workspace.root()))?;
    Ok(PathBuf::from(root.trim()).join("lib/rustlib").join(host).join("bin/rust-objcopy"))
}
