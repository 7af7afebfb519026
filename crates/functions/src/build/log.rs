//! The log of a build, or the output of a function: a bounded file, and its last lines in memory.

use std::{
    io::{self, Read as _, Write as _},
    iter::Peekable,
    path::Path,
    str::Chars,
    sync::{Mutex, PoisonError},
};

use fs_err::File;

/// The largest log. A build that says more is a loop; its end is kept in memory.
const MAX_LOG_BYTES: usize = 4 << 20;

/// Characters of the end that stand in a status.
const TAIL: usize = 3_000;

/// Bytes of the end that people read.
const TAIL_BYTES: usize = 64 << 10;

/// Beginning of the first line where only the end is given; the number of the lines before it follows. `berth logs -f` knows by
/// it which lines are new.
const LEFT_OUT: &str = "... earlier lines left out: ";

/// The log of one build.
#[derive(Debug)]
pub struct BuildLog(Mutex<State>);

#[derive(Debug)]
struct State {
    file: File,
    written: usize,
    tail: Vec<u8>,
    /// Lines before `tail`.
    before: usize,
}

impl BuildLog {
    /// Begins a log; the earlier one of the same function goes.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        // A reader of the earlier log goes on reading that one.
        if path.exists() {
            fs_err::remove_file(path)?;
        }
        Ok(Self(Mutex::new(State { file: File::create(path)?, written: 0, tail: Vec::new(), before: 0 })))
    }

    /// Adds bytes of a program.
    pub fn add(&self, bytes: &[u8]) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.written < MAX_LOG_BYTES {
            let cut = &bytes[..bytes.len().min(MAX_LOG_BYTES - state.written)];
            state.written += cut.len();
            // A full disk fails the build elsewhere.
            let _ = state.file.write_all(cut);
            if state.written == MAX_LOG_BYTES {
                let _ = state.file.write_all(b"\n... the rest is left out\n");
            }
        }
        state.tail.extend_from_slice(bytes);
        if state.tail.len() > 2 * TAIL_BYTES {
            let from = beginning(&state.tail);
            state.before += lines(&state.tail[..from]);
            state.tail.drain(..from);
        }
    }

    /// Adds a line of ours.
    pub fn line(&self, text: &str) {
        self.add(format!("{text}\n").as_bytes());
    }

    /// The last characters, without what terminals obey.
    #[must_use]
    pub fn tail(&self) -> String {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = state.tail.len().saturating_sub(2 * TAIL);
        let text = plain(&String::from_utf8_lossy(&state.tail[from..]));
        let surplus = text.chars().count().saturating_sub(TAIL);
        text.chars().skip(surplus).collect()
    }

    /// The last 64 KiB, from the beginning of a line, without what terminals obey.
    #[must_use]
    pub fn end(&self) -> String {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ending(&state.tail, state.before)
    }
}

/// The whole lines at the end of a log file; empty where there is none. Blocks.
pub(crate) fn end_of_file(path: &Path) -> String {
    let mut bytes = Vec::new();
    // A build that has not begun has no log.
    let _ = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    ending(&bytes[..whole], 0)
}

/// Adds text to a log file that nobody writes any more. Blocks.
pub(crate) fn append_to_log(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs_err::OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// The end of a log after a line that counts those before it.
fn ending(bytes: &[u8], before: usize) -> String {
    let from = beginning(bytes);
    let before = before + lines(&bytes[..from]);
    let text = plain(&String::from_utf8_lossy(&bytes[from..]));
    if before == 0 { text } else { format!("{LEFT_OUT}{before}\n{text}") }
}

/// The place at which the last lines begin that are kept.
fn beginning(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(TAIL_BYTES);
    if from == 0 {
        return 0;
    }
    let line = bytes[from..].iter().position(|byte| *byte == b'\n').map(|at| from + at + 1);
    // A line that is longer than all that is kept is cut.
    line.filter(|at| *at < bytes.len()).unwrap_or(from)
}

/// Lines that end in these bytes.
fn lines(bytes: &[u8]) -> usize {
    bytes.split(|byte| *byte == b'\n').count() - 1
}

/// Text without control characters and the sequences that terminals obey. No line is joined with the next one.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => skip_sequence(&mut chars),
            c if c == '\n' || c == '\t' || !c.is_control() => plain.push(c),
            _ => {}
        }
    }
    plain
}

/// Skips the rest of an escape sequence (ECMA-48).
fn skip_sequence(chars: &mut Peekable<Chars<'_>>) {
    let in_line = |c: &char| *c != '\n';
    match chars.next_if(in_line) {
        // Colours and moves end with a letter or a sign.
        Some('[') => while chars.next_if(in_line).is_some_and(|c| !('\u{40}'..='\u{7e}').contains(&c)) {},
        // Titles and links end with a bell, or with another sequence.
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(c) = chars.next_if(in_line) {
                if c == '\u{7}' {
                    return;
                }
                if c == '\u{1b}' {
                    let _ = chars.next_if_eq(&'\\');
                    return;
                }
            }
        }
        // Character sets have one more character.
        Some(' '..='/') => {
            let _ = chars.next_if(in_line);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_not_told_anything() {
        for (text, shown) in [
            ("a\tb\r\nc\n", "a\tb\nc\n"),
            ("\u{1b}[1;31mred\u{1b}[0m\n", "red\n"),
            ("\u{1b}]0;title\u{7}x\u{1b}]8;;http://h\u{1b}\\y", "xy"),
            ("\u{1b}(Bx\u{1b}cy\u{9b}z\u{1b}", "xyz"),
            ("cut \u{1b}[3\nnext", "cut \nnext"),
        ] {
            assert_eq!(plain(text), shown, "{text:?}");
        }
    }

    #[test]
    fn the_end_is_cut_between_lines_and_counts_those_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let log = BuildLog::create(&path).expect("a log");
        log.line("first");
        assert_eq!((log.end(), end_of_file(&path)), ("first\n".to_owned(), "first\n".to_owned()));
        for number in 1..20_000 {
            log.line(&format!("line {number}"));
        }
        for text in [log.end(), end_of_file(&path)] {
            let (head, rest) = text.split_once('\n').expect("lines");
            let before: usize = head.strip_prefix(LEFT_OUT).expect("a count").parse().expect("a number");
            assert!(rest.starts_with(&format!("line {before}\n")), "{before}: {}", &rest[..20]);
            assert!(rest.ends_with("line 19999\n") && rest.len() <= TAIL_BYTES && rest.len() > TAIL_BYTES - 20);
        }
        append_to_log(&path, "more\nhalf").expect("appended");
        assert!(end_of_file(&path).ends_with("line 19999\nmore\n"), "half a line waits");
    }
}
