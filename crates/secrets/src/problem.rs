//! Problems of a file of secrets, with their positions. Never quotes a value, which may be the secret.

use std::fmt;

use berth_spec::manifest::node::Position;

/// One thing that is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, as the caller names it.
    pub file: String,
    /// From 1; 0 where it is about the whole file.
    pub line: u32,
    /// In characters, from 1; 0 where it is about the whole file.
    pub column: u32,
    /// The field, written `secrets.s3_access.secret_access_key`; empty for the file itself.
    pub path: String,
    /// Description of the problem.
    pub message: String,
    /// Remedy, as an imperative.
    pub remedy: String,
}

impl fmt::Display for Problem {
    /// In one line: `worker-a-secrets.yaml:7:12: secrets.s3.region: message; remedy`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        write!(f, ": {}; {}", self.message, self.remedy)
    }
}

/// Collects the problems of one file.
#[derive(Debug)]
pub(crate) struct Problems {
    file: String,
    found: Vec<Problem>,
}

impl Problems {
    pub(crate) fn of(file: &str) -> Self {
        Self { file: file.to_owned(), found: Vec::new() }
    }

    pub(crate) fn add(
        &mut self,
        at: Position,
        path: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (file, path) = (self.file.clone(), path.into());
        let (message, remedy) = (message.into(), remedy.into());
        self.found.push(Problem { file, line: at.line, column: at.column, path, message, remedy });
    }

    /// `value` if nothing was found.
    pub(crate) fn or<T>(mut self, value: T) -> Result<T, Vec<Problem>> {
        if self.found.is_empty() {
            return Ok(value);
        }
        self.found.sort_by_key(|problem| (problem.line, problem.column));
        Err(self.found)
    }

    pub(crate) const fn none(&self) -> bool {
        self.found.is_empty()
    }
}
