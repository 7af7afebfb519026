//! Terminal output: colours, tables that fit, and words for sizes and times.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_spec::{ByteSize, Time};
use berth_wire::api::Timestamp;
use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Table, presets};

/// True if standard output takes colours: a terminal, and no `NO_COLOR` (<https://no-color.org>).
pub(crate) fn colours() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes a result to standard output.
pub(crate) fn print(text: &str) -> io::Result<()> {
    write_lines(io::stdout().lock(), text)
}

/// Writes what is no part of the result to standard error.
pub(crate) fn print_aside(text: &str) -> io::Result<()> {
    write_lines(io::stderr().lock(), text)
}

fn write_lines(mut out: impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// A table without lines, as wide as the terminal allows.
#[derive(Debug)]
pub(crate) struct Rows {
    table: Table,
    colours: bool,
}

impl Rows {
    /// With the heads of the columns.
    pub(crate) fn new(heads: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(heads);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        Self { table, colours: colours() }
    }

    /// Adds a row; words that say how something is get their colour.
    pub(crate) fn add(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<Cell> = cells.into_iter().map(|text| self.cell(text)).collect();
        self.table.add_row(cells);
    }

    fn cell(&self, text: String) -> Cell {
        let colour = colour_of(&text).filter(|_| self.colours);
        let cell = Cell::new(harmless(text));
        match colour {
            Some(colour) => cell.fg(colour),
            None => cell,
        }
    }

    /// The text, every line ended.
    pub(crate) fn render(&self) -> String {
        self.render_inside(0)
    }

    /// The same for a block that is moved in by `indent` columns.
    pub(crate) fn render_inside(&self, indent: u16) -> String {
        let mut table = self.table.clone();
        if let Some(width) = table.width().filter(|_| indent > 0) {
            table.set_width(width.saturating_sub(indent));
        }
        fit(&mut table);
        table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

/// Least width at which a message is wrapped. Narrower columns are unreadable.
const LEGIBLE: u16 = 24;

/// Breaks the last column alone into lines, where messages are, and only where that leaves it legible: names and numbers in
/// pieces are of no use, and long lines the terminal breaks by itself.
fn fit(table: &mut Table) {
    let Some(width) = table.width() else { return };
    let widths = table.column_max_content_widths();
    let Some((_, others)) = widths.split_last() else { return };
    let taken = others.iter().fold(0_u16, |sum, width| sum.saturating_add(*width).saturating_add(2));
    if width.saturating_sub(taken) < LEGIBLE {
        table.set_content_arrangement(ContentArrangement::Disabled);
        return;
    }
    for column in table.column_iter_mut().take(others.len()) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
}

/// Green for well, yellow for on the way, red for somebody must look.
fn colour_of(text: &str) -> Option<Color> {
    match text.split(',').next().unwrap_or_default() {
        "Ready" if text != "Ready" => Some(Color::Yellow),
        "Available" | "Ready" | "True" | "created" | "configured" | "Holds" => Some(Color::Green),
        "Progressing" | "Degraded" | "Queued" | "Fetching" | "Preparing" | "Loading" | "Validating" | "Draining"
        | "Restarting" | "Terminating" | "Joining" | "Warning" | "Unknown" | "Detached" | "Drained" | "Leaving"
        | "Suspect" => Some(Color::Yellow),
        "Failed" | "ScheduleFailed" | "Lost" | "False" | "Rejected" => Some(Color::Red),
        _ => None,
    }
}

/// Text whose control characters no terminal obeys: names and messages come from others. Lines stay lines.
fn harmless(text: String) -> String {
    let is_obeyed = |c: char| c.is_control() && c != '\n';
    if !text.contains(is_obeyed) {
        return text;
    }
    let shown = |c| match c {
        '\t' => ' ',
        c if is_obeyed(c) => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Bytes for people: `1.5GiB`.
pub(crate) fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// Now, by the machine's clock.
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Age in its two largest units: `3m20s`; `-` for never.
pub(crate) fn age(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| short(now().since(at.0)))
}

/// A length of time in its two largest units.
pub(crate) fn short(length: Duration) -> String {
    let seconds = length.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, m) => format!("{m}m{}s", seconds % 60),
        (0, h, m) => format!("{h}h{m}m"),
        (d, h, _) => format!("{d}d{h}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_short() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (200, "3m20s"), (3_661, "1h1m"), (90_000, "1d1h")] {
            assert_eq!(short(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_terminal_obeys_no_text_of_others() {
        assert_eq!(harmless("iris\nü".to_owned()), "iris\nü");
        assert_eq!(harmless("a\tb\u{1b}[31m\r\u{9b}".to_owned()), "a b\u{fffd}[31m\u{fffd}\u{fffd}");
    }

    #[test]
    fn only_messages_are_broken_into_lines() {
        let message = "no worker has room for it now, and none is to be expected before others leave";
        for (width, shown) in [
            (50, "NAME  MESSAGE\niris  no worker has room for it now, and none is\n      to be expected before others leave\n".to_owned()),
            // A terminal that is too narrow for that breaks the line where it ends.
            (20, format!("NAME  MESSAGE\niris  {message}\n")),
        ] {
            let mut rows = Rows::new(&["NAME", "MESSAGE"]);
            rows.table.set_width(width);
            rows.add(["iris".to_owned(), message.to_owned()]);
            assert_eq!(rows.render(), shown, "{width}");
            rows.table.set_width(width + 2);
            assert_eq!(rows.render_inside(2), shown, "{width} and 2");
        }
    }

    #[test]
    fn tables_have_no_trailing_blanks() {
        let mut rows = Rows::new(&["NAME", "PHASE"]);
        rows.add(["iris".to_owned(), "Ready".to_owned()]);
        assert_eq!(rows.render(), "NAME  PHASE\niris  Ready\n");
    }
}
