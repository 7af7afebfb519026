//! `cargo xtask pgo`: records what requests run, for the optimizer (profile-guided optimization).
//!
//! ```text
//! instrumented berth ──▶ berth-bench sends requests ──▶ counts of each process ──▶ packaging/pgo/RUST-HOST.profdata
//!                                                                           └────▶ packaging/pgo/RUST-HOST.names
//! ```
//! Releases are built with this profile: the code that requests run is laid out together and inlined, which the processor's caches notice.
//! The profile lies in the repository, as those of Go programs do (`default.pgo`), so a release needs neither a second build nor more tools.
//!
//! A function is found by its symbol and the shape of its code. One that has changed since is compiled as if it had never been recorded,
//! so a profile may be older than the code. The symbol holds the compiler, and the versions and features of the function's crate and of all
//! crates below it, Berth's own version among them; that of a function which is not exported also holds the number of its codegen unit. Where
//! these have changed, much of the profile is of no use, and nothing says so: [`Profile::check`] looks for the symbols in the binary.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    debian,
    run::{run as execute, run_quiet, step},
    setup,
    test::{build, cargo},
    toolchain::Toolchain,
    workspace::Workspace,
};

/// The package whose program is shipped.
pub(crate) const SHIPPED: [&str; 2] = ["--package", "berth-cli"];

/// The parts of `berth-bench` that are recorded: requests over each protocol, with tokens, through another node, through the executor,
/// and loads of models.
const TRAINING: [&[&str]; 2] = [&["throughput", "auth", "miss", "executor"], &["cluster", "hop", "stream"]];

/// Seconds per measurement: some ten thousand requests.
const SECONDS: &str = "1";

/// Functions that ran less often are left out: what starts and stops is compiled as it was, and the file is a fifth as large.
const MIN_COUNT: u64 = 10_000;

/// Number of functions that [`Profile::check`] looks for: those that ran most often.
const CHECKED: usize = 500;

/// Share of them that the binary must have, as a percentage. It had 57 where the profile fitted, the others being inlined, and 8 where not.
const MIN_FOUND: usize = 30;

/// Variable of flags for rustc, separated by [`SEPARATOR`]. It takes the place of `RUSTFLAGS` and of `rustflags` in cargo's configuration.
const ENCODED_FLAGS: &str = "CARGO_ENCODED_RUSTFLAGS";

/// Folder for the counts of processes that are told of no file: trials of sandboxes are started without an environment.
const STRAYS: &str = "strays";

const SEPARATOR: &str = "\x1f";

/// Cargo for what is shipped and measured, with a profile. The caller chooses packages. An example is built by itself: it brings the
/// dependencies of tests, whose features change the symbols of all that is built in the same command.
pub(crate) fn release_build(workspace: &Workspace, profile: Option<&Profile>) -> Result<Command> {
    let mut cargo = release(workspace)?;
    if let Some(profile) = profile {
        // Cargo compiles anew where this file has changed: rustc names it among what it has read.
        let used = format!("-Cprofile-use={}", profile.data.display());
        // Functions that have changed since are expected.
        cargo.env(ENCODED_FLAGS, with_flags(&[&used, "-Cllvm-args=-no-pgo-warn-mismatch"]));
    }
    Ok(cargo)
}

fn release(workspace: &Workspace) -> Result<Command> {
    ensure!(
        std::env::var_os("CARGO_BUILD_TARGET").is_none(),
        "releases are built for this machine: unset CARGO_BUILD_TARGET"
    );
    let mut cargo = cargo(workspace);
    // A wrapper is part of the symbols.
    cargo.args(["build", "--locked", "--profile", "release-lto"]).env_remove("RUSTC_WORKSPACE_WRAPPER");
    Ok(cargo)
}

/// A record of what requests run, for one version of Rust on one kind of machine.
pub(crate) struct Profile {
    /// The counts, as LLVM reads them.
    data: PathBuf,
    /// Symbols of the functions that ran most often, a line each.
    names: PathBuf,
}

impl Profile {
    /// The profile for the installed Rust.
    ///
    /// # Errors
    /// None has been recorded.
    pub(crate) fn installed(workspace: &Workspace) -> Result<Self> {
        let rust = Toolchain::installed(workspace)?;
        let profile = Self::of(workspace, &rust);
        ensure!(
            profile.data.exists() && profile.names.exists(),
            "no profile has been recorded for Rust {} on {}: record one with `cargo xtask pgo` (half an hour), or build without, which \
             is slower: --without-profile",
            rust.release,
            rust.host
        );
        Ok(profile)
    }

    fn of(workspace: &Workspace, rust: &Toolchain) -> Self {
        let file = |kind| workspace.path(&format!("packaging/pgo/{}-{}.{kind}", rust.release, rust.host));
        Self { data: file("profdata"), names: file("names") }
    }

    /// Checks that a binary was built with it.
    ///
    /// # Errors
    /// The profile is of other symbols.
    pub(crate) fn check(&self, binary: &Path) -> Result<()> {
        let names = fs_err::read_to_string(&self.names)?.lines().count();
        let mut look = Command::new("grep");
        // Debug information is searched, too: it names what is inlined.
        look.args(["--text", "--only-matching", "--word-regexp", "--fixed-strings", "--file"]);
        let looked = look.arg(&self.names).arg(binary).env("LC_ALL", "C").output().context("cannot start grep")?;
        // 1: it has found nothing.
        ensure!(matches!(looked.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&looked.stderr));
        let found = String::from_utf8_lossy(&looked.stdout);
        let mut found: Vec<&str> = found.lines().collect();
        found.sort_unstable();
        found.dedup();
        ensure!(names > 0, "{} names no functions: record a profile with `cargo xtask pgo`", self.names.display());
        ensure!(
            found.len() * 100 >= names * MIN_FOUND,
            "{} was built with a profile of other symbols, and is slower for it: it has {} of the {names} functions that requests run most. Versions \
             or features of dependencies, or Berth's version, have changed: record a profile with `cargo xtask pgo` (half an hour), or \
             build without: --without-profile",
            binary.display(),
            found.len(),
        );
        Ok(())
    }
}

/// Records a profile for the installed Rust.
pub(crate) fn record(workspace: &Workspace) -> Result<()> {
    let rust = Toolchain::installed(workspace)?;
    let llvm_profdata = llvm_profdata(workspace, &rust)?;
    let target = workspace.target("pgo");
    let counts = target.join("counts");
    for folder in [&counts, &target.join(STRAYS)] {
        if folder.exists() {
            fs_err::remove_dir_all(folder)?;
        }
    }
    step("building an instrumented berth");
    let instrumented = build_instrumented(workspace, &target)?;
    step("building the load generator");
    execute(build(workspace).args(["--bin", "berth-bench"]))?;
    step("recording");
    train(workspace, &instrumented, &counts)?;
    let profile = Profile::of(workspace, &rust);
    merge(&llvm_profdata, &counts, &target, &profile)?;
    println!("{} {:.1} MB", profile.data.display(), fs_err::metadata(&profile.data)?.len() as f64 / 1e6);
    Ok(())
}

fn build_instrumented(workspace: &Workspace, target: &Path) -> Result<PathBuf> {
    let mut cargo = release(workspace)?;
    cargo.args(SHIPPED).args(["--bin", "berth", "--target-dir"]).arg(target);
    let generate = format!("-Cprofile-generate={}", target.join(STRAYS).display());
    // Code is instrumented before optimization over all crates, which can be left out.
    cargo.env(ENCODED_FLAGS, with_flags(&[&generate, "-Clto=off", "-Clinker-plugin-lto=no"]));
    // Build scripts and procedural macros are instrumented as well.
    execute(cargo.env("LLVM_PROFILE_FILE", "/dev/null"))?;
    Ok(target.join("release-lto/berth"))
}

/// Sends requests to an instrumented binary, whose processes write into the folder `counts` as they end.
fn train(workspace: &Workspace, berth: &Path, counts: &Path) -> Result<()> {
    let engine = setup::engine_and_models(workspace)?.engine;
    debian::ensure(&[debian::ETCD])?;
    for (part, parts) in TRAINING.iter().enumerate() {
        let folder = counts.join(part.to_string());
        let mut bench = Command::new(workspace.target("debug").join("berth-bench"));
        bench.current_dir(workspace.root()).arg("--berth").arg(berth).args(["--seconds", SECONDS]).args(*parts);
        bench.env("ORT_DYLIB_PATH", &engine).env("LLVM_PROFILE_FILE", folder.join("%p.profraw"));
        run_quiet(&mut bench)?;
        ensure!(folder.exists(), "no process of `berth-bench {}` has written counts", parts.join(" "));
    }
    Ok(())
}

/// Adds up the counts of all processes.
fn merge(llvm_profdata: &Path, counts: &Path, scratch: &Path, profile: &Profile) -> Result<()> {
    let (all, often, data) = (scratch.join("all.txt"), scratch.join("often.txt"), scratch.join("often.profdata"));
    let folders = (0..TRAINING.len()).map(|part| counts.join(part.to_string()));
    run_quiet(Command::new(llvm_profdata).args(["merge", "--sparse", "--text", "-o"]).arg(&all).args(folders))?;
    let all = fs_err::read_to_string(&all)?;
    let recorded = Recorded::of(&all);
    fs_err::write(&often, recorded.text())?;
    run_quiet(Command::new(llvm_profdata).args(["merge", "--sparse", "-o"]).args([&data, &often]))?;
    // At the end, so that an interrupted run leaves the last profile.
    fs_err::create_dir_all(profile.data.parent().context("profiles lie in a folder")?)?;
    fs_err::write(&profile.names, recorded.names())?;
    fs_err::copy(&data, &profile.data)?;
    Ok(())
}

/// The functions that ran at least [`MIN_COUNT`] times, in the text of `llvm-profdata`.
struct Recorded<'a> {
    head: &'a str,
    functions: Vec<&'a str>,
}

impl<'a> Recorded<'a> {
    fn of(text: &'a str) -> Self {
        let head = text.lines().take_while(|line| line.starts_with(['#', ':'])).map(|line| line.len() + 1).sum();
        let (head, functions) = text.split_at(head);
        let functions = functions.split_inclusive("\n\n").filter(|function| max_count(function) >= MIN_COUNT);
        Self { head, functions: functions.collect() }
    }

    fn text(&self) -> String {
        std::iter::once(self.head).chain(self.functions.iter().copied()).collect()
    }

    /// Symbols of the [`CHECKED`] functions that ran most often, by name.
    fn names(&self) -> String {
        let mut functions = self.functions.clone();
        functions.sort_by_key(|function| std::cmp::Reverse(max_count(function)));
        let names = functions.iter().filter_map(|function| function.lines().next());
        // What is not exported is named after its codegen unit as well, before a `;`.
        let mut names: Vec<_> = names.filter(|name| !name.contains(';')).take(CHECKED).collect();
        names.sort_unstable();
        names.iter().flat_map(|name| [*name, "\n"]).collect()
    }
}

/// The count of the block that ran most often.
fn max_count(function: &str) -> u64 {
    let counts = function.split_once("# Counter Values:\n").map_or("", |(_, counts)| counts);
    counts.lines().map_while(|count| count.parse().ok()).max().unwrap_or(0)
}

/// The environment's flags for rustc, and more.
fn with_flags(more: &[&str]) -> String {
    joined(std::env::var_os(ENCODED_FLAGS).as_deref(), std::env::var_os("RUSTFLAGS").as_deref(), more)
}

fn joined(encoded: Option<&OsStr>, plain: Option<&OsStr>, more: &[&str]) -> String {
    let text = |flags: &OsStr| flags.to_string_lossy().into_owned();
    let given = match (encoded.map(text), plain.map(text)) {
        (Some(encoded), _) => encoded.split(SEPARATOR).map(str::to_owned).collect(),
        (None, Some(plain)) => plain.split_whitespace().map(str::to_owned).collect(),
        (None, None) => Vec::new(),
    };
    let given = given.iter().map(String::as_str).filter(|flag| !flag.is_empty());
    given.chain(more.iter().copied()).collect::<Vec<_>>().join(SEPARATOR)
}

/// LLVM's program for profiles, of the same LLVM as the compiler.
fn llvm_profdata(workspace: &Workspace, rust: &Toolchain) -> Result<PathBuf> {
    let program = rust.tools.join("llvm-profdata");
    if !program.exists() {
        step("installing llvm-tools");
        let mut rustup = Command::new("rustup");
        let installed = execute(rustup.current_dir(workspace.root()).args(["component", "add", "llvm-tools"]));
        installed.with_context(|| {
            format!("there is no {}: install llvm-profdata of the compiler's LLVM there", program.display())
        })?;
    }
    ensure!(program.exists(), "there is no {}, which rustup's component llvm-tools has", program.display());
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, counts: &str) -> String {
        format!(
            "{name}\n# Func Hash:\n7\n# Num Counters:\n2\n# Counter Values:\n{counts}\n# Num Value Kinds:\n1\n5000\n\n"
        )
    }

    #[test]
    fn functions_that_ran_seldom_are_left_out() {
        let head = "# IR level Instrumentation Flag\n:ir\n";
        let (often, seldom) = (function("often", "1\n10000"), function("seldom", "9999\n9998"));
        let (own, most) = (function("unit.1;own", "40000"), function("most", "30000"));
        let text = format!("{head}{seldom}{often}{seldom}{own}{most}");
        let recorded = Recorded::of(&text);
        assert_eq!(recorded.text(), format!("{head}{often}{own}{most}"));
        assert_eq!(recorded.names(), "most\noften\n", "those that every build names alike");
    }

    #[test]
    fn flags_of_the_environment_stay() {
        let join = |encoded: Option<&str>, plain: Option<&str>| {
            joined(encoded.map(OsStr::new), plain.map(OsStr::new), &["-Cmore"]).replace(SEPARATOR, "|")
        };
        assert_eq!(join(None, None), "-Cmore");
        assert_eq!(join(None, Some(" -Ca  -Cb ")), "-Ca|-Cb|-Cmore");
        assert_eq!(join(Some("-Ca=b c\u{1f}-Cd"), Some("-Cunread")), "-Ca=b c|-Cd|-Cmore");
        assert_eq!(join(Some(""), Some("-Cunread")), "-Cmore", "cargo reads it where it is empty, too");
    }

    #[test]
    fn a_binary_of_other_symbols_is_found_out() {
        let folder = std::env::temp_dir().join(format!("xtask-pgo-{}", std::process::id()));
        fs_err::create_dir_all(&folder).expect("a folder");
        let profile = Profile { data: folder.join("data"), names: folder.join("names") };
        let binary = folder.join("binary");
        fs_err::write(&profile.names, "one\ntwo\nthree\nfour\n").expect("written");
        for (symbols, fits) in [("\0one\0two\0one\0", true), ("\0one\0one\0twofold\0", false), ("\0five\0", false)] {
            fs_err::write(&binary, symbols).expect("written");
            assert_eq!(profile.check(&binary).is_ok(), fits, "{symbols:?}");
        }
        fs_err::remove_dir_all(&folder).expect("removed");
    }
}
