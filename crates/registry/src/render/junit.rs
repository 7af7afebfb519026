//! JUnit XML, as test runners of CI systems read it: one case per step, failed by its errors.

use std::fmt::Write as _;

use crate::{Problem, Report, Step};

const STEPS: [(Step, &str); 6] = [
    (Step::Structure, "structure"),
    (Step::Manifests, "manifests"),
    (Step::References, "references"),
    (Step::Cards, "cards"),
    (Step::Compatibility, "compatibility"),
    (Step::Workers, "workers"),
];

/// The report as one JUnit suite: a case for each step.
#[must_use]
pub fn junit(report: &Report) -> String {
    let of = |step: Step, error: bool| report.problems.iter().filter(move |p| p.step == step && p.is_error() == error);
    let failed = STEPS.iter().filter(|(step, _)| of(*step, true).next().is_some()).count();
    // A registry whose structure is wrong is not looked at any further.
    let stopped = of(Step::Structure, true).next().is_some();
    let skips = |step: Step| {
        (stopped && step != Step::Structure) || (report.offline && matches!(step, Step::Cards | Step::Compatibility))
    };
    let skipped = STEPS.iter().filter(|(step, _)| skips(*step)).count();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites tests=\"{all}\" failures=\"{failed}\" errors=\"0\" \
         skipped=\"{skipped}\">\n<testsuite name=\"berth registry\" tests=\"{all}\" failures=\"{failed}\" errors=\"0\" \
         skipped=\"{skipped}\">\n",
        all = STEPS.len()
    );
    for (step, name) in STEPS {
        out.push_str(&format!("<testcase classname=\"registry\" name=\"{} {name}\">\n", step.number()));
        let errors: Vec<&Problem> = of(step, true).collect();
        if !errors.is_empty() {
            let all: String = errors.iter().map(|problem| format!("{problem}\n")).collect();
            let first = escape(&errors[0].message);
            let _ = writeln!(
                out,
                "<failure message=\"{first}\" type=\"{}\">{}</failure>",
                errors[0].outcome.name(),
                escape(&all)
            );
        } else if skips(step) {
            out.push_str("<skipped/>\n");
        }
        let warnings: String = of(step, false).map(|problem| format!("warning: {problem}\n")).collect();
        if !warnings.is_empty() {
            let _ = writeln!(out, "<system-out>{}</system-out>", escape(&warnings));
        }
        out.push_str("</testcase>\n");
    }
    out.push_str("</testsuite>\n</testsuites>\n");
    out
}

/// For XML 1.0, which has no control characters but tab and newlines.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
