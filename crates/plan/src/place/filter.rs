//! Hard constraints: why a worker cannot take a replica.

use std::fmt;

use berth_spec::{ByteSize, Time};

/// Why a worker cannot take a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// It has no runtime for the format.
    NoRuntime {
        /// The format.
        format: &'static str,
    },
    /// It lacks a label that the selector requires.
    Label {
        /// The label's key.
        key: String,
        /// The value it must have.
        value: String,
    },
    /// There is too little memory, even after evicting what may be evicted.
    Memory {
        /// What one replica takes.
        need: ByteSize,
        /// What nobody claims.
        free: ByteSize,
        /// What may be evicted for it.
        evictable: ByteSize,
        /// All that models may take there.
        total: ByteSize,
    },
    /// It cannot be reached.
    Lost,
    /// Nothing new is put there.
    Cordoned,
    /// It holds another replica of the same revision.
    Holds,
    /// Loading failed there, or failed elsewhere for a reason that is the same everywhere.
    FailedHere {
        /// When it may be tried again.
        until: Time,
        /// What went wrong.
        message: String,
    },
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRuntime { format } => write!(f, "has no runtime for {format}"),
            Self::Label { key, value } => write!(f, "lacks the label {key}={value}"),
            Self::Memory { need, free, evictable, total } => {
                write!(f, "needs {need}, has {free} free and {evictable} that may be evicted, of {total}")
            }
            Self::Lost => f.write_str("cannot be reached"),
            Self::Cordoned => f.write_str("is cordoned"),
            Self::Holds => f.write_str("holds a replica already"),
            Self::FailedHere { until, message } => write!(f, "failed to load it: {message}; tried again after {until}"),
        }
    }
}
