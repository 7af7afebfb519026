//! The reason why a runtime cannot be used.

use std::time::Duration;

use super::address::InvalidAddress;

/// The reason why a runtime cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The declared address is malformed.
    #[error(transparent)]
    Address(#[from] InvalidAddress),
    /// The system refuses a thread for the runtime of this name.
    #[error("cannot start a thread for runtime {0}: {1}")]
    Thread(String, std::io::Error),
    /// The program of the runtime of this name cannot be started.
    #[error("cannot start runtime {0}: {1}")]
    Program(String, std::io::Error),
    /// Its program ends again and again.
    #[error("the program of runtime {name} ended again and again before it was ready{words}")]
    Dies {
        /// Name of the runtime, as the operator declares it.
        name: String,
        /// Its last lines, with what introduces them.
        words: String,
    },
    /// The runtime did not say that it is ready within [`Settings::start`](super::Settings::start).
    #[error("runtime {name} at {address} was not ready within {} s: {why}", after.as_secs())]
    NotReady {
        /// Name of the runtime, as the operator declares it.
        name: String,
        /// The addresses at which it was looked for.
        address: String,
        /// The time that was waited.
        after: Duration,
        /// The last answer, or the reason why there was none.
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
