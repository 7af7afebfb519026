//! Report as text for people.

use crate::{Audience, Problem, Report};

/// Use of colours in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// Coloured, for terminals.
    On,
    /// No escape sequences: for files and pipes.
    Off,
}

/// Problems shown. As many as fit on one or two screens.
const MAX_PROBLEMS: usize = 40;

/// The report with the line and a caret for every problem, and the [`summary`] at its end.
#[must_use]
pub fn text(report: &Report, colours: Colours) -> String {
    format!("{}{}\n", problems(report, colours), summary(report))
}

/// The problems, each with its line and a caret, and an empty line after it.
#[must_use]
pub fn problems(report: &Report, colours: Colours) -> String {
    let mut out = String::new();
    for problem in report.problems.iter().take(MAX_PROBLEMS) {
        out.push_str(&paint(&printable(&problem.render()), problem, colours));
        if let Some(by) = &problem.commit {
            let by_whom =
                format!("\n  by: {} <{}> in {} ({})", by.author.name, by.author.email, by.oid.short(), by.subject);
            out.push_str(&printable(&by_whom));
        }
        if !problem.manifest.is_empty() {
            out.push_str(&printable(&format!("\n  for: {}", problem.manifest)));
        }
        out.push_str("\n\n");
    }
    let more = report.problems.len().saturating_sub(MAX_PROBLEMS) + report.counts.omitted;
    if more > 0 {
        out.push_str(&format!("… and {more} more\n\n"));
    }
    out
}

/// One line: what is made of it, and what was looked at.
#[must_use]
pub fn summary(report: &Report) -> String {
    let counts = report.counts;
    let (errors, warnings) = (report.errors().count(), report.warnings().count());
    let seen = format!(
        "{}, {}, {}",
        plural(counts.manifests, "manifest"),
        plural(counts.workers, "worker"),
        if report.offline { "cards not looked at (offline)".to_owned() } else { plural(counts.cards, "model card") }
    );
    let which = report.commit.as_ref().map_or_else(String::new, |commit| format!(" {}", commit.oid.short()));
    if report.is_accepted() {
        let also = if warnings == 0 { String::new() } else { format!("; {}", plural(warnings, "warning")) };
        return format!("accepted{which}: {seen}{also}");
    }
    let tell: Vec<&str> = report
        .audience()
        .into_iter()
        .map(|audience| match audience {
            Audience::Ops => "operations",
            Audience::Ml => "the owners of the model",
        })
        .collect();
    let again = if report.is_transient() { "; it may pass later as it is" } else { "" };
    format!(
        "rejected{which}: {}: {}, {}; {seen}; for {}{again}",
        report.outcome.words(),
        plural(errors, "error"),
        plural(warnings, "warning"),
        tell.join(" and ")
    )
}

/// Names of files and words of commits are their authors': no control sequence of theirs reaches a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn paint(text: &str, problem: &Problem, colours: Colours) -> String {
    let (word, code) = if problem.is_error() { ("error:", "31") } else { ("warning:", "33") };
    match colours {
        Colours::On => text.replacen(word, &format!("\u{1b}[1;{code}m{word}\u{1b}[0m"), 1),
        Colours::Off => text.to_owned(),
    }
}
