//! Why a piece of the worker's work failed.

use berth_spec::FailureCategory;

use crate::runtime::LoadError;

/// A piece of work that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What kind, which decides whether it is tried again.
    pub category: FailureCategory,
    /// For people: what went wrong and what to do.
    pub message: String,
}

impl Fault {
    /// A fault of `category`.
    #[must_use]
    pub fn new(category: FailureCategory, message: impl Into<String>) -> Self {
        Self { category, message: message.into() }
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

    /// A fault of ours.
    #[must_use]
    pub fn internal(what: impl std::fmt::Display) -> Self {
        Self::new(FailureCategory::Internal, format!("a fault inside Berth, please report it: {what}"))
    }
}

impl From<LoadError> for Fault {
    fn from(LoadError { category, message }: LoadError) -> Self {
        Self { category, message }
    }
}
