//! SARIF 2.1.0, as code scanners of Git hosts read it
//! (<https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html>).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{Problem, Report};

/// The report as one run.
#[must_use]
pub fn sarif(report: &Report) -> Value {
    let rules: BTreeSet<&str> = report.problems.iter().map(|problem| problem.rule).collect();
    let rules: Vec<Value> = rules.into_iter().map(|rule| json!({"id": rule})).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "berth registry",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "results": report.problems.iter().map(result).collect::<Vec<_>>(),
            "properties": {"outcome": report.outcome},
        }],
    })
}

fn result(problem: &Problem) -> Value {
    // A scanner shows files of its own repository only: a problem of a card is at the manifest that names it.
    let (file, line) = if problem.manifest.is_empty() { (&problem.file, problem.line) } else { (&problem.manifest, 0) };
    let mut place = json!({"artifactLocation": {"uri": file}});
    if line > 0 {
        place["region"] = json!({"startLine": line, "startColumn": problem.column.max(1)});
    }
    let mut text = problem.message.clone();
    if !problem.manifest.is_empty() {
        text = format!("{}:{}: {text}", problem.file, problem.line);
    }
    if !problem.remedy.is_empty() {
        text.push_str(&format!("; {}", problem.remedy));
    }
    let mut result = json!({
        "ruleId": problem.rule,
        "level": problem.severity,
        "message": {"text": text},
        "properties": {"step": problem.step.number(), "outcome": problem.outcome, "path": problem.path},
    });
    if !file.is_empty() {
        result["locations"] = json!([{"physicalLocation": place}]);
    }
    result
}
