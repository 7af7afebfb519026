//! An error in a manifest: its place, message and remedy. Data for the API, a picture for terminals.

use std::fmt;

use serde::Serialize;

use crate::Class;

/// An error in a manifest, with its place and remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestError {
    /// The file as the reader knows it: a path, `-` for standard input, or a name that the client gave.
    pub file: String,
    /// Counted from 1; 0 where the manifest did not come as text.
    pub line: u32,
    /// In characters, counted from 1; 0 where the manifest did not come as text.
    pub column: u32,
    /// The field, written `spec.replicas.min`; empty for the document itself.
    pub path: String,
    /// The error, without its place.
    pub message: String,
    /// The remedy, as an imperative; empty when the message says it all.
    pub remedy: String,
    /// The line it is on, for [`ManifestError::render`]; empty where the manifest did not come as text.
    #[serde(skip)]
    pub source_line: SourceLine,
}

impl ManifestError {
    /// The error class: the author has to change the manifest.
    #[must_use]
    pub const fn class(&self) -> Class {
        Class::Invalid
    }

    /// For terminals: the error, the line, a caret under the place, and the remedy. Several lines, no trailing newline.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = format!("error: {}", self.message);
        if !self.path.is_empty() {
            out.push_str(&format!(" ({})", self.path));
        }
        if self.line == 0 {
            out.push_str(&format!("\n  --> {}", self.file));
        } else {
            let margin = " ".repeat(self.line.to_string().len());
            out.push_str(&format!("\n{margin}--> {}:{}:{}", self.file, self.line, self.column));
            let SourceLine { shown, caret } = &self.source_line;
            if !shown.is_empty() {
                let blanks = " ".repeat(*caret);
                out.push_str(&format!("\n{margin} |\n{} | {shown}\n{margin} | {blanks}^", self.line));
            }
        }
        if !self.remedy.is_empty() {
            out.push_str(&format!("\n  help: {}", self.remedy));
        }
        out
    }
}

/// The part of a line around a column that fits a terminal: a line may be as long as its text, and have thousands of errors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceLine {
    shown: String,
    /// Characters of `shown` before the column.
    caret: usize,
}

impl SourceLine {
    /// The part of `line` around `column`, counted in characters from 1.
    #[must_use]
    pub fn around(line: &str, column: u32) -> Self {
        /// Characters shown: most lines whole, and no more than a usual terminal has columns.
        const WIDTH: usize = 100;
        let column = (column as usize).saturating_sub(1);
        let start = if column < WIDTH { 0 } else { column - WIDTH / 2 };
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        let shown: String = line.chars().skip(start).take(WIDTH).map(printable).collect();
        Self { shown: shown.trim_end().to_owned(), caret: column - start }
    }
}

impl fmt::Display for ManifestError {
    /// In one line: `iris.yaml:7:12: spec.replicas.min: message; remedy`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without a file's name a line says little: it is in the fields alone.
        let mut separator = "";
        if !self.file.is_empty() {
            f.write_str(&self.file)?;
            if self.line > 0 {
                write!(f, ":{}:{}", self.line, self.column)?;
            }
            separator = ": ";
        }
        if !self.path.is_empty() {
            write!(f, "{separator}{}", self.path)?;
            separator = ": ";
        }
        write!(f, "{separator}{}", self.message)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

impl std::error::Error for ManifestError {}
