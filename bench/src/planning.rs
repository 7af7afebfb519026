//! How long the planner takes: `plan_bench`, an example of the plan crate, prints one JSON object a line.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::Arguments;

/// One line of the example.
#[derive(Deserialize)]
pub(crate) struct Plan {
    pub(crate) workers: usize,
    pub(crate) deployments: usize,
    /// A full plan from nothing, milliseconds.
    pub(crate) full_ms: f64,
    /// A plan for one change, median, milliseconds.
    pub(crate) change_ms: f64,
}

pub(crate) fn measure(arguments: &Arguments) -> Result<Vec<Plan>> {
    let program = arguments.plan_bench.as_ref().context("--plan-bench says where the example is")?;
    let output = Command::new(program).output()?;
    ensure!(output.status.success(), "{} ended with {}", program.display(), output.status);
    let text = String::from_utf8(output.stdout)?;
    text.lines().filter(|line| line.starts_with('{')).map(|line| Ok(serde_json::from_str(line)?)).collect()
}
