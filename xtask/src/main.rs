//! `cargo xtask`: set-up and developer tasks. Run without arguments for the list.
//!
//! Everything that a task needs beyond Rust and Python it installs itself into `.cache/` below the repository
//! (downloads are kept by pip and uv in their own caches outside the checkout).

#![expect(clippy::print_stdout, reason = "tasks talk to people")]

mod bench;
mod check;
mod debian;
mod demo;
mod deny;
mod dist;
mod docs;
mod fuzz;
mod go;
mod kubernetes;
mod pgo;
mod process;
mod python;
mod run;
mod setup;
mod test;
mod toolchain;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Set-up and developer tasks of Berth", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build Berth, start it with example models, send requests, and print what to try next.
    Demo(demo::Options),
    /// Check the format, lint and test the crates that have changed since main.
    Check(check::Options),
    /// Install what the tests need, and run all of them: what CI runs.
    Test(test::Options),
    /// Run changed seeds through each parser that strangers reach.
    Fuzz(fuzz::Options),
    /// Measure Berth beside its peers in one run and write docs/benchmarks.md.
    Bench(bench::Options),
    /// Record what requests run, for the optimizer: releases are built with this profile (profile-guided optimization).
    Pgo,
    /// Build for release: a stripped binary, with its symbols in a file beside it.
    Dist(dist::Options),
    /// Make the documentation as a site, in target/site.
    Docs(docs::Options),
    /// Install the engine and etcd, and make the example models, nothing else.
    Setup,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let workspace = Workspace::here();
    let done = match arguments.task {
        Task::Demo(options) => demo::run(&workspace, &options),
        Task::Check(options) => check::run(&workspace, &options),
        Task::Test(options) => test::run(&workspace, &options),
        Task::Fuzz(options) => fuzz::run(&workspace, &options),
        Task::Bench(options) => bench::run(&workspace, &options),
        Task::Pgo => pgo::record(&workspace),
        Task::Dist(options) => dist::make(&workspace, &options),
        Task::Docs(options) => docs::run_task(&workspace, &options),
        Task::Setup => {
            setup::engine_and_models(&workspace).and_then(|_| debian::ensure(&[debian::ETCD, debian::ETCDCTL]))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
