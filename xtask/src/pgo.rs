//! `cargo xtask pgo`: counts what requests run, for the optimizer (profile-guided optimization).
//!
//! ```text
//! berth that counts ──▶ berth-bench sends requests ──▶ counts of each process ──▶ packaging/pgo/RUST.profdata
//! ```
//! Releases are built with these counts: the code that requests run is laid out together and inlined, which the processor's caches notice.
//! The counts lie in the repository, as those of Go programs do (`default.pgo`), so a release needs neither a second build nor more tools.
//!
//! A function is found by its name and its shape. One that has changed since is compiled as if it had never been counted, so the counts
//! may be older than the code. Another version of Rust names all functions anew, and is built without counts until it has its own. Another
//! version of a crate does so with its own functions and those of all crates above it: `RUST.lock` says of which `Cargo.lock` the counts are.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    debian,
    dist::sha256,
    run::{run as execute, run_quiet, step},
    setup,
    test::{build, cargo},
    workspace::Workspace,
};

/// The parts of `berth-bench` that are counted: requests over each protocol, with tokens, through another node, through the executor,
/// and loads of models.
const TRAINING: [&[&str]; 2] = [&["throughput", "auth", "miss", "executor"], &["cluster", "hop", "stream"]];

/// Seconds per measurement: some ten thousand requests.
const SECONDS: &str = "1";

/// Functions that ran less often are left out: what starts and stops is compiled as it was, and the file is a fifth as large.
const LEAST_COUNT: u64 = 10_000;

/// Where cargo reads flags that may have spaces.
const FLAGS: &str = "CARGO_ENCODED_RUSTFLAGS";

/// The folder of the counts, one file for each version of Rust.
const COUNTS: &str = "packaging/pgo";

/// Cargo for what is shipped: optimized with the counts. All packages are named whose programs are measured: of another choice cargo would
/// compile the dependencies with other features, under names that the counts do not have. The same goes for examples, which bring the
/// dependencies of tests: they are built by themselves.
pub(crate) fn shipped(workspace: &Workspace) -> Result<Command> {
    let mut cargo = optimized(workspace)?;
    name_packages(&mut cargo);
    Ok(cargo)
}

/// The same without the choice of packages.
pub(crate) fn optimized(workspace: &Workspace) -> Result<Command> {
    let mut cargo = cargo(workspace);
    cargo.args(["build", "--profile", "release-lto"]);
    let rust = rust(workspace)?;
    let counts = counts(workspace, &rust);
    if counts.exists() {
        if fs_err::read_to_string(counts.with_extension("lock")).ok() != Some(lock(workspace)?) {
            eprintln!(
                "Cargo.lock has changed since the counts were made, and few may be used: `cargo xtask pgo` makes new ones"
            );
        }
        // Cargo compiles anew where this file has changed: rustc names it among what it has read.
        let used = format!("-Cprofile-use={}", counts.display());
        // Functions that have changed since are no news.
        cargo.env(FLAGS, flags(&[&used, "-Cllvm-args=-no-pgo-warn-mismatch"]));
    } else {
        eprintln!("no counts for Rust {rust}: built without, which is slower; `cargo xtask pgo` makes them");
    }
    Ok(cargo)
}

fn name_packages(cargo: &mut Command) {
    for package in ["berth-cli", "berth-bench", "berth-functions"] {
        cargo.args(["--package", package]);
    }
}

/// Makes the counts for the Rust at hand.
pub(crate) fn make(workspace: &Workspace) -> Result<()> {
    let merger = llvm_profdata(workspace)?;
    let engine = setup::engine_and_models(workspace)?.engine;
    debian::ensure(&[debian::ETCD])?;
    let target = workspace.target("pgo");
    let raw = target.join("counts");
    if raw.exists() {
        fs_err::remove_dir_all(&raw)?;
    }
    step("building a berth that counts");
    let mut counting = cargo(workspace);
    counting.args(["build", "--profile", "release-lto", "--bin", "berth", "--target-dir"]).arg(&target);
    name_packages(&mut counting);
    // Counting is added before optimization over all crates, which can be left out, and with it 7 minutes.
    counting.env(FLAGS, flags(&["-Cprofile-generate", "-Clto=off", "-Clinker-plugin-lto=no"]));
    // Programs that run while Berth is built count as well.
    execute(counting.env("LLVM_PROFILE_FILE", "/dev/null"))?;
    step("building the sender of requests");
    execute(build(workspace).args(["--bin", "berth-bench"]))?;
    step("counting");
    for parts in TRAINING {
        let mut bench = Command::new(workspace.target("debug").join("berth-bench"));
        bench.current_dir(workspace.root()).arg("--berth").arg(target.join("release-lto/berth"));
        bench.args(["--seconds", SECONDS]).args(parts);
        bench.env("ORT_DYLIB_PATH", &engine).env("LLVM_PROFILE_FILE", raw.join("%p.profraw"));
        run_quiet(&mut bench)?;
    }
    let out = counts(workspace, &rust(workspace)?);
    merge(&merger, &raw, &target, &out)?;
    fs_err::write(out.with_extension("lock"), lock(workspace)?)?;
    println!("{} {:.1} MB", out.display(), fs_err::metadata(&out)?.len() as f64 / 1e6);
    Ok(())
}

/// Adds up the counts of all processes.
fn merge(merger: &Path, raw: &Path, scratch: &Path, out: &Path) -> Result<()> {
    let (all, often) = (scratch.join("all.txt"), scratch.join("often.txt"));
    run_quiet(Command::new(merger).args(["merge", "--sparse", "--text", "-o"]).args([&all, &raw.to_owned()]))?;
    fs_err::write(&often, counted_often(&fs_err::read_to_string(&all)?))?;
    fs_err::create_dir_all(out.parent().context("counts lie in a folder")?)?;
    run_quiet(Command::new(merger).args(["merge", "--sparse", "-o"]).arg(out).arg(&often))?;
    Ok(())
}

/// The counts, in the text of `llvm-profdata`, without the functions none of whose blocks ran [`LEAST_COUNT`] times.
fn counted_often(text: &str) -> String {
    let head = text.lines().take_while(|line| line.starts_with(['#', ':'])).map(|line| line.len() + 1).sum();
    let (head, functions) = text.split_at(head);
    let often = functions.split_inclusive("\n\n").filter(|function| most(function) >= LEAST_COUNT);
    std::iter::once(head).chain(often).collect()
}

/// The count of the block that ran most often.
fn most(function: &str) -> u64 {
    let counts = function.split_once("# Counter Values:\n").map_or("", |(_, counts)| counts);
    counts.lines().map_while(|count| count.parse().ok()).max().unwrap_or(0)
}

fn counts(workspace: &Workspace, rust: &str) -> PathBuf {
    workspace.path(COUNTS).join(format!("{rust}.profdata"))
}

/// The digest of `Cargo.lock`.
fn lock(workspace: &Workspace) -> Result<String> {
    Ok(format!("{}\n", sha256(&fs_err::read(workspace.path("Cargo.lock"))?)))
}

/// Flags for rustc, after those of the environment.
fn flags(more: &[&str]) -> String {
    let given = std::env::var_os("RUSTFLAGS").unwrap_or_default();
    given.to_string_lossy().split_whitespace().chain(more.iter().copied()).collect::<Vec<_>>().join("\x1f")
}

/// The version of Rust at hand: `1.95.0`.
fn rust(workspace: &Workspace) -> Result<String> {
    let said = run_quiet(Command::new("rustc").current_dir(workspace.root()).arg("-vV"))?;
    let release = said.lines().find_map(|line| line.strip_prefix("release: "));
    Ok(release.context("rustc -vV names no release")?.to_owned())
}

/// The program that reads counts, of the same LLVM as the compiler.
fn llvm_profdata(workspace: &Workspace) -> Result<PathBuf> {
    let rustc = |what| run_quiet(Command::new("rustc").current_dir(workspace.root()).args(["--print", what]));
    let host = rustc("host-tuple")?;
    let program = Path::new(rustc("sysroot")?.trim()).join("lib/rustlib").join(host.trim()).join("bin/llvm-profdata");
    if !program.exists() {
        step("installing llvm-tools");
        execute(Command::new("rustup").current_dir(workspace.root()).args(["component", "add", "llvm-tools"]))?;
    }
    ensure!(program.exists(), "there is no {}, which the component llvm-tools of rustup has", program.display());
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_ran_seldom_are_left_out() {
        let head = "# IR level Instrumentation Flag\n:ir\n";
        let function = |name: &str, counts: &str| {
            format!(
                "{name}\n# Func Hash:\n7\n# Num Counters:\n2\n# Counter Values:\n{counts}\n# Num Value Kinds:\n1\n5000\n\n"
            )
        };
        let (often, seldom) = (function("often", "1\n10000"), function("seldom", "9999\n9998"));
        assert_eq!(counted_often(&format!("{head}{seldom}{often}{seldom}")), format!("{head}{often}"));
    }
}
