//! The log of a build: a bounded file, and its last lines in memory.

use std::{
    io::{self, Write as _},
    path::Path,
    sync::{Mutex, PoisonError},
};

use fs_err::File;

/// The largest log. A build that says more is a loop; its end is kept in memory.
const LARGEST: usize = 4 << 20;

/// Bytes of the end that stand in a status.
const TAIL: usize = 3_000;

/// The log of one build.
#[derive(Debug)]
pub struct BuildLog(Mutex<State>);

#[derive(Debug)]
struct State {
    file: File,
    written: usize,
    tail: Vec<u8>,
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
        Ok(Self(Mutex::new(State { file: File::create(path)?, written: 0, tail: Vec::new() })))
    }

    /// Adds bytes of a program.
    pub fn add(&self, bytes: &[u8]) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.written < LARGEST {
            let cut = &bytes[..bytes.len().min(LARGEST - state.written)];
            state.written += cut.len();
            // A full disk fails the build elsewhere.
            let _ = state.file.write_all(cut);
            if state.written == LARGEST {
                let _ = state.file.write_all(b"\n... the rest is left out\n");
            }
        }
        state.tail.extend_from_slice(bytes);
        if state.tail.len() > 2 * TAIL {
            let surplus = state.tail.len() - TAIL;
            state.tail.drain(..surplus);
        }
    }

    /// Adds a line of ours.
    pub fn line(&self, text: &str) {
        self.add(format!("{text}\n").as_bytes());
    }

    /// The last lines, without the colours of terminals.
    #[must_use]
    pub fn tail(&self) -> String {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&state.tail);
        let mut plain = String::with_capacity(text.len());
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match c {
                // An escape sequence ends with a letter.
                '\u{1b}' => drop(chars.by_ref().find(char::is_ascii_alphabetic)),
                '\r' => {}
                c if c == '\n' || c == '\t' || !c.is_control() => plain.push(c),
                _ => {}
            }
        }
        let surplus = plain.chars().count().saturating_sub(TAIL);
        plain.chars().skip(surplus).collect()
    }
}
