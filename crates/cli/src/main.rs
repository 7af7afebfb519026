//! `berth`: the one binary. It parses the command line, then either starts a server ([`up`], [`node`]) or asks one
//! ([`commands`]).
//!
//! ```text
//! args, settings ──▶ up ────▶ telemetry, store, control, worker, mesh in one process
//!     ├──▶ node ────▶ the same as a part of a cluster
//!     └──▶ commands ─▶ client ─▶ control API      (files: manifests from disk; infer: the data plane)
//! ```

mod allocator;
mod args;
mod ca_key;
mod client;
mod commands;
mod contexts;
mod control_thread;
mod data;
mod descriptors;
mod failure;
mod files;
mod management;
mod modelmesh;
mod modelmesh_metrics;
mod node;
mod oidc;
mod privacy;
#[cfg(test)]
mod reference;
mod serve;
mod settings;
mod telemetry;
mod terminal;
mod up;

use std::{io::Write, process::ExitCode};

use clap_complete::CompleteEnv;

use crate::failure::Failure;

fn main() -> ExitCode {
    // A model's process begins here: nothing may have happened before.
    if let Some(code) = berth_sandbox::entered(berth_worker::runtime::process::own) {
        return code;
    }
    privacy::close();
    // A shell asks what could stand where: nothing else is done then.
    match CompleteEnv::with_factory(args::command).try_complete(std::env::args_os(), None) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        Err(error) => {
            report(&Failure::Usage(error.to_string()));
            return ExitCode::from(2);
        }
    }
    match settings::layers::parse(std::env::args_os()).and_then(commands::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report(&failure);
            match failure {
                Failure::Changes | Failure::ReaderGone => failure.exit_code(),
                _ if detailed() => ExitCode::FAILURE,
                _ => failure.exit_code(),
            }
        }
    }
}

/// True for a command line whose exit code 2 means that something would change: every failure is 1 then.
fn detailed() -> bool {
    std::env::args_os().any(|word| word == "--detailed-exitcode")
}

/// Tells a person on standard error; there is nobody to tell if that fails.
fn report(failure: &Failure) {
    if matches!(failure, Failure::ReaderGone | Failure::Changes) {
        return;
    }
    let text = failure.to_string();
    let prefix = if text.starts_with("error:") { "" } else { "error: " };
    let _ = writeln!(std::io::stderr(), "{prefix}{text}");
}
