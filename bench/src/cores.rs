//! Cores: the load generator on one of its own, a server on the others.

use std::{process::Command, thread::available_parallelism};

use anyhow::{Context as _, Result, ensure};

use crate::server::Server;

/// A load generator and a server that share no core, until this is dropped.
///
/// Together they have more busy threads than a small machine has cores. The kernel may take a core from a busy thread at its next tick only
/// (4 ms), and the slowest percent of a server's answers then tells which of the threads waited for a tick.
pub(crate) struct SeparateCores<'a> {
    server: &'a Server,
    /// Number of cores.
    count: usize,
}

impl<'a> SeparateCores<'a> {
    /// `None`: the machine has one core.
    pub(crate) fn of(server: &'a Server) -> Result<Option<Self>> {
        let count = available_parallelism()?.get();
        if count < 2 {
            return Ok(None);
        }
        let separate = Self { server, count };
        pin(std::process::id(), "0")?;
        pin(server.id(), &format!("1-{}", count - 1))?;
        Ok(Some(separate))
    }
}

impl Drop for SeparateCores<'_> {
    fn drop(&mut self) {
        let all = format!("0-{}", self.count - 1);
        for process in [std::process::id(), self.server.id()] {
            if let Err(error) = pin(process, &all) {
                eprintln!("a process does not get its cores back: {error:#}");
            }
        }
    }
}

/// Lets all threads of a process run on these cores only.
fn pin(process: u32, cores: &str) -> Result<()> {
    let mut taskset = Command::new("taskset");
    let done = taskset.args(["--all-tasks", "--cpu-list", "--pid", cores, &process.to_string()]).output();
    let done = done.context("cannot start taskset, which util-linux has")?;
    ensure!(done.status.success(), "taskset: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}
