//! `cargo xtask fuzz`: changed seeds for each parser that strangers reach, as many as asked for, on stable Rust.
//!
//! The targets are tests of the crates, named `fuzz_…` (`fuzz/mutator.rs`): `cargo xtask test` runs ten thousand cases of each. A new
//! target is such a test, seeds in `fuzz/corpus/TARGET`, and a row here.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;

use crate::{
    process::run_within,
    test::{cargo, programs},
    workspace::Workspace,
};

/// A target, the test program that has it, and the parser.
const TARGETS: [(&str, &str, &str); 23] = [
    ("http", "mesh it", "connections to the inference port: HTTP/1.1 and HTTP/2, heads and paths"),
    ("token", "wire it", "tokens of strangers, JWT among them"),
    ("jwks", "wire it", "keys of issuers"),
    ("oip_json", "mesh it", "requests in JSON"),
    ("plain", "mesh it", "requests in KServe's first protocol and in Triton's generate"),
    ("binary_body", "mesh it", "requests with binary tensors"),
    ("grpc_contents", "mesh it", "requests over gRPC"),
    ("wire_field", "mesh unit", "the model's name in messages of any service"),
    ("mmesh", "modelmesh unit", "registrations over ModelMesh's API"),
    ("manifest", "spec it", "manifests in YAML"),
    ("admission", "operator it", "what Kubernetes asks the operator's webhook"),
    ("conversion", "operator it", "objects that Kubernetes wants in another version"),
    ("webhook", "gitops unit", "signatures of webhooks"),
    ("jobs", "executor unit", "paths and headers of jobs at the executor"),
    ("function", "functions it", "objects of functions in etcd"),
    ("archive", "functions unit", "archives with the code of functions"),
    ("registry", "registry it", "model cards and settings of registries"),
    ("git_url", "git it", "places of Git repositories, tags and commits"),
    ("secrets", "secrets it", "files of secrets"),
    ("frame", "worker it", "frames of models' processes"),
    ("fleet", "wire it", "words of other nodes on their streams"),
    ("gossip", "peer it", "datagrams of gossip, once they are opened"),
    ("join", "peer it", "requests of nodes that join, and for a certificate"),
];

/// A million cases of the slowest target take about an hour.
const FUZZ_TIMEOUT: Duration = Duration::from_hours(6);

/// Targets and cases.
#[derive(Args)]
pub(crate) struct Options {
    /// Targets; all where none is named.
    target: Vec<String>,
    /// Changed seeds of each.
    #[arg(long, value_name = "N", default_value = "1000000")]
    cases: u64,
    /// Another number looks at other cases.
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if let Some(unknown) = options.target.iter().find(|name| TARGETS.iter().all(|(target, ..)| target != name)) {
        bail!("there is no target {unknown}; there are {}", TARGETS.map(|(target, ..)| target).join(", "));
    }
    let mut build = cargo(workspace);
    // The whole workspace, so that dependencies have the same features as in `cargo xtask test`, and are not compiled again.
    build.args(["test", "--quiet", "--workspace", "--lib", "--test", "it", "--no-run"]);
    let built = crate::run::run_quiet(build.args(["--message-format", "json-render-diagnostics"]))?;
    let programs = programs(&built);
    let mut failed = Vec::new();
    for (target, program, about) in TARGETS {
        if !options.target.is_empty() && !options.target.iter().any(|name| name == target) {
            continue;
        }
        let Some(program) = programs.iter().find(|one| one.name() == program) else {
            bail!("the test program {program} of {target} was not built");
        };
        let mut command = program.command();
        command.args([&format!("fuzz_{target}"), "--quiet", "--nocapture"]);
        command.env("BERTH_FUZZ_CASES", options.cases.to_string()).env("BERTH_FUZZ_SEED", options.seed.to_string());
        let began = Instant::now();
        let ended = run_within(FUZZ_TIMEOUT, &mut command).1;
        let word = if ended.is_ok() { "held" } else { "FAILED" };
        let (cases, seconds) = (options.cases, began.elapsed().as_secs_f64());
        println!("{target:14} {word:6} {cases:>9} cases {seconds:>7.1} s  {about}");
        failed.extend(ended.err().map(|_| target));
    }
    if !failed.is_empty() {
        bail!("these failed, their inputs are below target/fuzz: {}", failed.join(", "));
    }
    Ok(())
}
