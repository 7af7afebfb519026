//! SARIF 2.1.0, as code scanners of Git hosts read it
//! (<https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html>).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{Problem, Report, settings::SETTINGS_FILE};

/// The report as one run of SARIF 2.1.0.
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
    // Scanners show nothing that is nowhere: what is wrong with the registry as a whole is in its settings.
    let file = if file.is_empty() { SETTINGS_FILE } else { file };
    let mut place = json!({"artifactLocation": {"uri": reference(file)}});
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
    json!({
        "ruleId": problem.rule,
        "level": problem.severity,
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
        "properties": {"step": problem.step.number(), "outcome": problem.outcome, "path": problem.path},
    })
}

/// A path as a relative reference of RFC 3986, where some characters mean something else.
fn reference(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_written_as_a_reference() {
        assert_eq!(reference("models/production/iris-1.yaml"), "models/production/iris-1.yaml");
        assert_eq!(reference("models/a b#?%:é.yaml"), "models/a%20b%23%3F%25%3A%C3%A9.yaml");
    }
}
