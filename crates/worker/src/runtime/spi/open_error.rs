//! The reason why a runtime cannot be used.

use std::time::Duration;

use super::address::InvalidAddress;

/// The reason why a runtime cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its address.
    #[error(transparent)]
    Address(#[from] InvalidAddress),
    /// A thread for it.
    #[error("cannot start a thread for runtime {0}: {1}")]
    Thread(String, std::io::Error),
    /// Its program.
    #[error("cannot start runtime {0}: {1}")]
    Program(String, std::io::Error),
    /// Its program ends again and again.
    #[error("the program of runtime {name} ended again and again before it was ready{words}")]
    Dies {
        /// Its name.
        name: String,
        /// Its last lines, with what introduces them.
        words: String,
    },
    /// Too late.
    #[error("runtime {name} at {address} was not ready within {} s: {why}", after.as_secs())]
    NotReady {
        /// Its name.
        name: String,
        /// The addresses at which it was looked for.
        address: String,
        /// The time that was waited.
        after: Duration,
        /// Its last answer.
        why: String,
    },
}

impl OpenError {
    /// The same with the last lines that its program wrote.
    pub(super) fn with(self, words: &str) -> Self {
        match self {
            Self::NotReady { name, address, after, why } => {
                Self::NotReady { name, address, after, why: format!("{why}; it wrote last:\n{words}") }
            }
            Self::Dies { name, .. } => Self::Dies { name, words: format!("; it wrote last:\n{words}") },
            other => other,
        }
    }
}
