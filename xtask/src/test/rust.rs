//! Builds the tests in Rust and runs their programs, several at a time.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
};

use serde_json::Value;

use super::{
    slowest::{self, Timed},
    stages::Stages,
    suites::Tools,
};

/// Test programs that run at once. They wait more than they compute, so there are more of them than cores; many more would
/// make tests wait for a core.
const AT_ONCE: usize = 3;

/// Programs that take longest beside the others, in that order: they simulate fleets, try thousands of inputs, or wait for stores.
const SLOWEST_FIRST: [&str; 8] =
    ["worker it", "sim it", "control it", "registry it", "peer it", "executor unit", "gitops it", "functions unit"];

/// Seed of the cases of property tests. It is the same one each time, so that a change is not refused for a fault that it did
/// not bring; another seed, or plain `cargo test`, looks at other cases.
const CASES: &str = "PROPTEST_RNG_SEED";

/// A test program that was built.
pub(crate) struct Program {
    name: String,
    path: PathBuf,
    /// The folder of its crate, where cargo would run it.
    folder: PathBuf,
    length: u64,
}

impl Program {
    /// Folder of its crate, and its kind: `mesh it`, `control unit`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Starts it as cargo does.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Reads the messages of `cargo test --no-run --message-format json`: first what takes longest, then the largest program, for it tends to.
pub(crate) fn programs(messages: &str) -> Vec<Program> {
    let mut found: Vec<Program> = messages.lines().filter_map(program).collect();
    let rank =
        |program: &Program| SLOWEST_FIRST.iter().position(|name| program.name == *name).unwrap_or(SLOWEST_FIRST.len());
    found.sort_by_key(|program| (rank(program), std::cmp::Reverse(program.length)));
    found
}

fn program(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["profile"]["test"].as_bool()?;
    let path = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?;
    let name = match message["target"]["kind"][0].as_str()? {
        "test" => format!("{package} {}", message["target"]["name"].as_str()?),
        "bin" => format!("{package} main"),
        _ => format!("{package} unit"),
    };
    let length = fs_err::metadata(&path).map_or(0, |about| about.len());
    Some(Program { name, path, folder, length })
}

/// Sets the environment of tests.
pub(crate) fn environment(command: &mut Command, tools: &Tools) {
    command.env("ORT_DYLIB_PATH", &tools.engine).env("BERTH_UV", &tools.uv);
    // A missing etcd, uv, git or SoftHSM fails the tests that need it: they were installed.
    command.env("BERTH_REQUIRE_ETCD", "1").env("BERTH_REQUIRE_TOOLS", "1");
    if std::env::var_os(CASES).is_none() {
        command.env(CASES, "1");
    }
}

/// Runs the programs; returns the time of each test.
pub(crate) fn run(stages: &Stages, programs: Vec<Program>, prepare: impl Fn(&mut Command) + Sync) -> Vec<Timed> {
    let (queue, times) = (Mutex::new(programs.into_iter()), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(program) = next else { break };
            let mut command = program.command();
            // Times of single tests are not stable in Rust yet; the variable allows them.
            command.args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
            prepare(&mut command);
            let ended = stages.run(&format!("tests: {}", program.name), &mut command, slowest::without_passed);
            let timed = slowest::of_libtest(&program.name, &ended.output);
            times.lock().unwrap_or_else(PoisonError::into_inner).extend(timed);
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    times.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_cargo() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/b/crates/plan/Cargo.toml","target":{"kind":["lib"],"name":"berth_plan"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/b/crates/plan/Cargo.toml","target":{"kind":["lib"],"name":"berth_plan"},"profile":{"test":true},"executable":"/t/berth_plan-1"}
{"reason":"compiler-artifact","manifest_path":"/b/crates/plan/Cargo.toml","target":{"kind":["test"],"name":"it"},"profile":{"test":true},"executable":"/t/it-1"}
{"reason":"compiler-artifact","manifest_path":"/b/crates/sim/Cargo.toml","target":{"kind":["test"],"name":"it"},"profile":{"test":true},"executable":"/t/it-2"}
{"reason":"compiler-artifact","manifest_path":"/b/crates/cli/Cargo.toml","target":{"kind":["bin"],"name":"berth"},"profile":{"test":false},"executable":"/t/berth"}
{"reason":"build-finished","success":true}"#;
        let found = programs(messages);
        let names: Vec<&str> = found.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["sim it", "plan unit", "plan it"]);
        assert_eq!(found[0].folder, Path::new("/b/crates/sim"));
    }
}
