//! The reason why a piece of the worker's work failed.

use berth_spec::{ByteSize, Failure, FailureCategory, shortened};

use crate::runtime::LoadError;

/// A piece of work that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// The kind of failure, which decides if it is tried again.
    pub category: FailureCategory,
    /// For people: what went wrong and what to do.
    pub message: String,
    /// The output of another program: a traceback, the words of an installer. Bounded.
    pub trace: Option<Box<str>>,
    /// The memory that was counted for the model, where that is more than there is. See [`LoadError::needs`].
    pub needs: Option<ByteSize>,
}

impl Fault {
    /// A fault of `category`. Of more than [`Failure::MAX_MESSAGE`] bytes the beginning is kept.
    #[must_use]
    pub fn new(category: FailureCategory, message: impl Into<String>) -> Self {
        Self { category, message: shortened(message.into(), Failure::MAX_MESSAGE), trace: None, needs: None }
    }

    /// With what somebody else's program said; of too much the end is kept.
    #[must_use]
    pub fn with_trace(self, trace: &str) -> Self {
        Self { trace: bounded_trace(trace), ..self }
    }

    /// A fault of the disk below the worker's data folder.
    #[must_use]
    pub fn disk(error: &std::io::Error) -> Self {
        let remedy = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                "the disk is full: free some space, or lower --cache"
            }
            _ => "check the disk and the permissions of the data folder (--data)",
        };
        Self::new(FailureCategory::Disk, format!("{error}: {remedy}"))
    }

    /// A fault of Berth itself, which people are asked to report.
    #[must_use]
    pub fn internal(what: impl std::fmt::Display) -> Self {
        Self::new(FailureCategory::Internal, format!("a fault inside Berth, please report it: {what}"))
    }
}

impl From<LoadError> for Fault {
    fn from(LoadError { category, message, trace, needs }: LoadError) -> Self {
        let trace = trace.as_deref().and_then(bounded_trace);
        Self { category, message, trace, needs }
    }
}

/// At most [`Failure::MAX_TRACE`] bytes of a trace, from its end, where the cause is; nothing of an empty one.
#[must_use]
pub fn bounded_trace(trace: &str) -> Option<Box<str>> {
    let trace = trace.trim_end();
    let surplus = trace.len().saturating_sub(Failure::MAX_TRACE);
    let start = (surplus..=trace.len()).find(|&at| trace.is_char_boundary(at)).unwrap_or(0);
    (!trace.is_empty()).then(|| trace[start..].into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_message_the_beginning_is_kept() {
        let long = "é".repeat(Failure::MAX_MESSAGE);
        let loaded = LoadError::new(FailureCategory::Code, long.clone());
        for fault in [Fault::new(FailureCategory::Code, long), loaded.into()] {
            assert!(fault.message.len() <= Failure::MAX_MESSAGE && fault.message.starts_with("éé"));
        }
    }

    #[test]
    fn of_a_long_trace_the_end_is_kept() {
        let long = format!("{}ValueError: no\n", "é".repeat(Failure::MAX_TRACE));
        let kept = bounded_trace(&long).expect("something");
        assert!(kept.len() <= Failure::MAX_TRACE && kept.ends_with("ValueError: no"));
        assert_eq!(bounded_trace(" \n"), None);
        assert_eq!(bounded_trace("short").as_deref(), Some("short"));
    }
}
