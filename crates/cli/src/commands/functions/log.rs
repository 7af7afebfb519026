//! `berth logs function/NAME`: the log of the last build, then the end of the output; followed with `-f`.
//!
//! The server answers with the last lines of both parts. Where lines were before them, the first line of a part counts those: so
//! every line has a number, and a follower knows which ones are new.

use std::time::Duration;

use berth_spec::DeploymentName;
use reqwest::Method;
use serde_json::json;

use super::super::{
    namespace::path_in,
    output::{Form, yaml},
    resource::{Resource, not_found},
};
use crate::{client::Client, failure::Failure, terminal};

/// Interval at which a followed log is read again: it seems immediate.
const FOLLOW: Duration = Duration::from_millis(500);

/// Line between the log of the build and the output.
const OUTPUT: &str = "--- output of the function ---";

/// Beginning of the first line of a part that lines were before; their number follows.
const LEFT_OUT: &str = "... earlier lines left out: ";

/// Lines that somebody wants to see.
pub(in crate::commands) struct LogWanted {
    /// Keep printing what is added.
    pub(in crate::commands) follow: bool,
    /// Number of lines of each part to begin with.
    pub(in crate::commands) tail: usize,
    /// Form of a line.
    pub(in crate::commands) form: Form,
}

/// Prints the log of a function.
pub(in crate::commands) async fn print_log(
    client: &Client,
    name: &DeploymentName,
    wanted: &LogWanted,
) -> Result<(), Failure> {
    let mut printer = Printer { form: wanted.form, last: None };
    let (mut build, mut output) = (NumberedLines::default(), NumberedLines::default());
    let mut begun = false;
    loop {
        let text = read(client, name).await?;
        let (now_build, now_output) = parts(&text);
        // The rest of a line may be on its way.
        let now_output = if wanted.follow { whole_lines(now_output) } else { now_output };
        let (now_build, now_output) = (NumberedLines::of(now_build), NumberedLines::of(now_output));
        let mut shown = String::new();
        for (part, before, now) in [(LogPart::Build, &build, &now_build), (LogPart::Output, &output, &now_output)] {
            let mut new = now.new_after(before);
            if !begun {
                // Of each: a version that talks a lot does not hide why the next one was not built.
                new = new.min(wanted.tail);
                shown.push_str(&printer.left_out(part, now.end() - new));
            }
            for (at, line) in now.lines.iter().enumerate().skip(now.lines.len() - new) {
                shown.push_str(&printer.line(part, now.before + at, line)?);
            }
        }
        if !shown.is_empty() {
            terminal::print(&shown)?;
        }
        if !wanted.follow {
            return Ok(());
        }
        (build, output, begun) = (now_build, now_output, true);
        tokio::time::sleep(FOLLOW).await;
    }
}

async fn read(client: &Client, name: &DeploymentName) -> Result<String, Failure> {
    let path = [path_in(Resource::Functions, name), vec!["log"]].concat();
    match client.send(client.request(Method::GET, &path, &[])).await {
        Err(Failure::NotFound(_)) => Err(not_found(client, Resource::Functions, name.as_str()).await),
        answer => answer?.text().await.map_err(|e| Failure::doing("the log broke off", e)),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogPart {
    Build,
    Output,
}

/// The log of the build, and the output after it.
fn parts(text: &str) -> (&str, &str) {
    let heading = format!("{OUTPUT}\n");
    if let Some(output) = text.strip_prefix(&heading) {
        return ("", output);
    }
    match text.find(&format!("\n{heading}")) {
        Some(at) => (&text[..=at], &text[at + 1 + heading.len()..]),
        None => (text, ""),
    }
}

fn whole_lines(text: &str) -> &str {
    &text[..text.rfind('\n').map_or(0, |at| at + 1)]
}

/// Numbered lines of a part.
#[derive(Debug, Default, PartialEq, Eq)]
struct NumberedLines {
    /// Lines before them.
    before: usize,
    lines: Vec<String>,
}

impl NumberedLines {
    fn of(text: &str) -> Self {
        let first = text.lines().next().unwrap_or_default();
        let before = first.strip_prefix(LEFT_OUT).and_then(|number| number.parse::<u32>().ok());
        let lines = text.lines().skip(usize::from(before.is_some())).map(plain).collect();
        Self { before: before.and_then(|before| usize::try_from(before).ok()).unwrap_or_default(), lines }
    }

    /// Number of the line after the last one.
    fn end(&self) -> usize {
        self.before + self.lines.len()
    }

    /// The number of lines at the end that came after those of an earlier look. Where these are no continuation, another build or
    /// another version has begun, and all of them are new.
    fn new_after(&self, earlier: &Self) -> usize {
        let from = self.before.max(earlier.before);
        let known = earlier.end();
        let continues = known <= self.end()
            && (from..known).all(|number| self.lines[number - self.before] == earlier.lines[number - earlier.before]);
        if continues { self.end() - known.max(self.before) } else { self.lines.len() }
    }
}

/// A line without what terminals obey: a program prints what it likes.
fn plain(line: &str) -> String {
    line.chars().filter(|c| *c == '\t' || !c.is_control()).collect()
}

/// Writes lines in a form.
struct Printer {
    form: Form,
    /// Part of the line before.
    last: Option<LogPart>,
}

impl Printer {
    fn line(&mut self, part: LogPart, number: usize, text: &str) -> Result<String, Failure> {
        let word = if part == LogPart::Build { "build" } else { "output" };
        let object = || json!({"part": word, "number": number, "text": text});
        Ok(match self.form {
            Form::Json => format!("{}\n", object()),
            Form::Yaml => format!("---\n{}", yaml(&object())?),
            _ => format!("{}{text}\n", self.heading(part)),
        })
    }

    /// A line for people about lines that are not shown.
    fn left_out(&mut self, part: LogPart, count: usize) -> String {
        match self.form {
            Form::Json | Form::Yaml => String::new(),
            _ if count == 0 => String::new(),
            _ => format!("{}{LEFT_OUT}{count}\n", self.heading(part)),
        }
    }

    /// A line that begins another part than the one before.
    fn heading(&mut self, part: LogPart) -> String {
        match (self.last.replace(part), part) {
            (None | Some(LogPart::Build), LogPart::Output) => format!("{OUTPUT}\n"),
            (Some(LogPart::Output), LogPart::Build) => "--- build ---\n".to_owned(),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(before: usize, text: &str) -> NumberedLines {
        NumberedLines { before, lines: text.split_whitespace().map(str::to_owned).collect() }
    }

    #[test]
    fn a_log_has_two_parts() {
        for (text, shown) in [
            ("", ("", "")),
            ("a\nb\n", ("a\nb\n", "")),
            ("a\n--- output of the function ---\nb\nc", ("a\n", "b\nc")),
            ("--- output of the function ---\nb\n", ("", "b\n")),
        ] {
            assert_eq!(parts(text), shown, "{text:?}");
        }
        assert_eq!((whole_lines("b\nc"), whole_lines("c")), ("b\n", ""));
        assert_eq!(NumberedLines::of("... earlier lines left out: 7\na\nb\n"), lines(7, "a b"));
        assert_eq!(NumberedLines::of("a \u{1b}[31mb\tc\n").lines, ["a [31mb\tc"]);
    }

    #[test]
    fn a_follower_repeats_and_loses_nothing() {
        for (earlier, now, new) in [
            (lines(0, ""), lines(0, "a b"), 2),
            (lines(0, "a b"), lines(0, "a b"), 0),
            (lines(0, "a b"), lines(0, "a b c"), 1),
            // The beginning was cut off meanwhile.
            (lines(0, "a b c"), lines(1, "b c d e"), 2),
            (lines(3, "x x x"), lines(5, "x x x"), 2),
            // More came than is kept.
            (lines(0, "a b"), lines(9, "j k"), 2),
            // Another build, and another version with the same first line.
            (lines(0, "a b c"), lines(0, "a"), 1),
            (lines(0, "a b"), lines(0, "a c d"), 3),
            (lines(5, "a b"), lines(0, "a b"), 2),
        ] {
            assert_eq!(now.new_after(&earlier), new, "{earlier:?} {now:?}");
        }
    }

    #[test]
    fn parts_are_told_apart_in_every_form() {
        let mut printer = Printer { form: Form::Table, last: None };
        let mut line = |part, text: &str| printer.line(part, 4, text).expect("a line");
        assert_eq!(line(LogPart::Build, "a"), "a\n");
        assert_eq!(line(LogPart::Output, "b"), "--- output of the function ---\nb\n");
        assert_eq!(line(LogPart::Output, "c"), "c\n");
        assert_eq!(line(LogPart::Build, "d"), "--- build ---\nd\n");
        assert_eq!(
            printer.left_out(LogPart::Output, 3),
            "--- output of the function ---\n... earlier lines left out: 3\n"
        );
        assert_eq!(printer.left_out(LogPart::Output, 0), "");
        let mut printer = Printer { form: Form::Json, last: None };
        let text = printer.line(LogPart::Output, 4, "b").expect("a line");
        let object: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((object, text.lines().count()), (json!({"part": "output", "number": 4, "text": "b"}), 1));
    }
}
