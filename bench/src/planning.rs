//! Times of the planner: `plan_bench`, an example of the plan crate, prints one measure a line as JSON.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::Arguments;

/// One line of the example.
#[derive(Deserialize)]
struct Line {
    measure: String,
    /// Absent where a measure has none.
    #[serde(default)]
    workers: usize,
    deployments: usize,
    ms: Option<f64>,
}

/// One size.
pub(crate) struct Plan {
    pub(crate) workers: usize,
    pub(crate) deployments: usize,
    /// A full plan from nothing, milliseconds.
    pub(crate) full_ms: f64,
    /// A plan for one change, median, milliseconds.
    pub(crate) change_ms: f64,
    /// A plan for a request to a cold model, median, milliseconds.
    pub(crate) miss_ms: f64,
}

pub(crate) fn measure(arguments: &Arguments) -> Result<Vec<Plan>> {
    let program = arguments.plan_bench.as_ref().context("--plan-bench says where the example is")?;
    let output = Command::new(program).output()?;
    ensure!(output.status.success(), "{} ended with {}", program.display(), output.status);
    let text = String::from_utf8(output.stdout)?;
    let lines: Vec<Line> = text
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .context("a line of plan_bench")?;
    let find = |measure: &str, full: &Line| {
        let same = |line: &&Line| {
            line.measure == measure && (line.workers, line.deployments) == (full.workers, full.deployments)
        };
        lines.iter().find(same).and_then(|line| line.ms).with_context(|| format!("plan_bench has no {measure:?}"))
    };
    let sizes = lines.iter().filter(|line| line.measure == "full");
    sizes
        .map(|full| {
            Ok(Plan {
                workers: full.workers,
                deployments: full.deployments,
                full_ms: find("full", full)?,
                change_ms: find("one_change", full)?,
                miss_ms: find("miss", full)?,
            })
        })
        .collect()
}
