//! Failures of a command, and their exit codes.

use std::{io, process::ExitCode};

/// Shown by `berth help`.
pub(crate) const EXIT_CODES: &str = "Exit codes:
  0  done
  1  failed
  2  wrong usage
  3  not found
  4  invalid input
  5  timed out";

/// Failure of a command. The text names the object and the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Something went wrong that is not the caller's fault, or the server refused.
    #[error("{0}")]
    Failed(String),
    /// The server refuses for want of a role: something else may be allowed.
    #[error("{0}")]
    Forbidden(String),
    /// A command line or a setting that is wrong. The text says what to write instead.
    #[error("{0}")]
    Usage(String),
    /// Something that a command names is not there: an object, a context, a file.
    #[error("{0}")]
    NotFound(String),
    /// A manifest or a request is wrong. Already has `error:` in its lines where there are several.
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    TimedOut(String),
    /// Somebody else wrote in between, or took the name.
    #[error("{0}")]
    Conflict(String),
    /// Something would change, for `--detailed-exitcode`: an answer, not worth a word.
    #[error("something would change")]
    Changes,
    /// Whoever read our output has gone (`berth get … | head`): not worth a word.
    #[error("the reader of the output has gone")]
    ReaderGone,
}

impl Failure {
    /// Exit code of the failure; see [`EXIT_CODES`].
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::ReaderGone => 0,
            Self::Failed(_) | Self::Forbidden(_) | Self::Conflict(_) => 1,
            Self::Usage(_) | Self::Changes => 2,
            Self::NotFound(_) => 3,
            Self::Invalid(_) => 4,
            Self::TimedOut(_) => 5,
        })
    }

    /// The same failure in other words.
    pub(crate) fn with(self, words: impl FnOnce(&str) -> String) -> Self {
        match self {
            Self::Failed(text) => Self::Failed(words(&text)),
            Self::Forbidden(text) => Self::Forbidden(words(&text)),
            Self::Usage(text) => Self::Usage(words(&text)),
            Self::NotFound(text) => Self::NotFound(words(&text)),
            Self::Invalid(text) => Self::Invalid(words(&text)),
            Self::TimedOut(text) => Self::TimedOut(words(&text)),
            Self::Conflict(text) => Self::Conflict(words(&text)),
            Self::Changes => Self::Changes,
            Self::ReaderGone => Self::ReaderGone,
        }
    }

    /// Something broke; `error` with what was being done in front.
    pub(crate) fn doing(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{what}: {error}"))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ReaderGone,
            io::ErrorKind::NotFound => Self::NotFound(about(&error, "there is no")),
            io::ErrorKind::PermissionDenied => Self::Failed(about(&error, "permission denied:")),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Names the path with which something is wrong, instead of the call that failed.
fn about(error: &io::Error, wrong: &str) -> String {
    let text = error.to_string();
    match text.split('`').nth(1) {
        Some(path) if !path.is_empty() => format!("{wrong} {path}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_named_that_is_missing_or_closed() {
        let error = fs_err::read("/nowhere/at all").expect_err("it is not there");
        assert_eq!(Failure::from(error).to_string(), "there is no /nowhere/at all");
        let error = io::Error::new(io::ErrorKind::PermissionDenied, "failed to open file `/of/others`: refused");
        assert_eq!(Failure::from(error).to_string(), "permission denied: /of/others");
    }
}
