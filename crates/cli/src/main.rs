//! `berth`: the one binary. It parses the command line, then either starts a server ([`up`]) or asks one
//! ([`commands`]).
//!
//! ```text
//! args ──▶ up ──────▶ telemetry, store, control, worker, mesh in one process
//!     └──▶ commands ─▶ client ─▶ control API      (files: manifests from disk; infer: the data plane)
//! ```

mod allocator;
mod args;
mod client;
mod commands;
mod failure;
mod files;
#[cfg(test)]
mod reference;
mod telemetry;
mod terminal;
mod up;

use std::{io::Write, process::ExitCode};

use clap::Parser;

use crate::failure::Failure;

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    match commands::run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report(&failure);
            failure.exit_code()
        }
    }
}

/// Tells a person on standard error; there is nobody to tell if that fails.
fn report(failure: &Failure) {
    if matches!(failure, Failure::ReaderGone) {
        return;
    }
    let text = failure.to_string();
    let prefix = if text.starts_with("error:") { "" } else { "error: " };
    let _ = writeln!(std::io::stderr(), "{prefix}{text}");
}
