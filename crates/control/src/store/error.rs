//! Errors of the store.

use std::{path::PathBuf, time::Duration};

use berth_spec::Class;

use super::{MAX_BYTES, MAX_OPS, Rev};

/// Reason why a store operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process has the store open.
    #[error(
        "another berth uses the data directory {}: stop it first, or give this one its own with --data",
        .0.display()
    )]
    InUse(PathBuf),
    /// The file was written by a version of Berth that this one does not understand.
    #[error("the store {} has format {found}, this berth reads {known}: use the berth version that wrote it", path.display())]
    Format {
        /// Path of the store's file.
        path: PathBuf,
        /// Format version of the file.
        found: u64,
        /// Newest supported version.
        known: u64,
    },
    /// A transaction is beyond [`MAX_OPS`] or [`MAX_BYTES`].
    #[error(
        "a transaction of {ops} operations and {bytes} bytes is beyond {MAX_OPS} operations or {MAX_BYTES} bytes: write less at once"
    )]
    TooLarge {
        /// Operations, or comparisons if they are more.
        ops: usize,
        /// Bytes of the keys and values that it writes.
        bytes: usize,
    },
    /// A transaction writes a key twice.
    #[error("a transaction writes the key {0:?} twice")]
    DuplicateKey(String),
    /// The history that a watch asked for is gone.
    #[error("the history before {oldest} is gone: list again and watch from there")]
    Compacted {
        /// The oldest rev that can be watched from.
        oldest: Rev,
    },
    /// More writers than the queue holds.
    #[error("the store is busy: try again in {} ms", retry_in.as_millis())]
    Busy {
        /// A guess of when it is worth trying again.
        retry_in: Duration,
    },
    /// The store was closed, or its writer has ended.
    #[error("the store is closed")]
    Closed,
    /// No endpoint of the store answers.
    #[error(
        "etcd does not answer at {endpoints}: {reason}; check that it runs, that a majority of its members can reach each other, and the address given with --store"
    )]
    Unreachable {
        /// Endpoints that were tried, with commas between.
        endpoints: String,
        /// Error of the attempt that was made last.
        reason: String,
    },
    /// Outcome unknown: the answer was lost, and the current content does not show if the transaction was committed.
    #[error("unknown if etcd committed a transaction ({reason}): read the current state before a retry")]
    Uncertain {
        /// Error of the attempt whose answer was lost.
        reason: String,
    },
    /// Full: the store takes no writes until space is freed.
    #[error(
        "etcd at {endpoint} is full and takes no writes: compact it (etcdctl compact REVISION), then etcdctl defrag and etcdctl alarm disarm; a larger --quota-backend-bytes makes it last longer"
    )]
    Full {
        /// Endpoint that reported it, `HOST:PORT`; all of them, with commas between, where it could be any.
        endpoint: String,
    },
    /// The store does not let us in, or not there.
    #[error("etcd at {endpoint} refuses: {reason}; {remedy}")]
    Refused {
        /// Endpoint that reported it, `HOST:PORT`; all of them, with commas between, where it could be any.
        endpoint: String,
        /// Message of the endpoint.
        reason: String,
        /// Action for the operator, by the message.
        remedy: &'static str,
    },
    /// The store is not the one that it was: its history went backwards, or it is another cluster.
    #[error(
        "etcd at {endpoint} is not what it was: {reason}; if it was restored from a backup or replaced, restart every controller, else remove the endpoint from --store"
    )]
    Replaced {
        /// Endpoint that reported it, `HOST:PORT`; all of them, with commas between, where it could be any.
        endpoint: String,
        /// The two facts that do not go together, in words.
        reason: String,
    },
    /// The writer's term of leadership is over: another leads, or may.
    #[error("this node is no longer the leader: ask the leader (`berth get nodes` names it)")]
    Deposed,
    /// The disk or the file failed.
    #[error("the store failed: {0}")]
    Failed(String),
    /// A value is not what its key says.
    #[error("the value of {key:?} cannot be read: {reason}; restore it from a backup, or delete the key")]
    Corrupt {
        /// Key of the entry that cannot be read.
        key: String,
        /// Error of its parser, or the form that it has.
        reason: String,
    },
}

impl StoreError {
    /// Class of the error, which decides what to do next.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::InUse(_)
            | Self::Format { .. }
            | Self::Corrupt { .. }
            | Self::Full { .. }
            | Self::Refused { .. }
            | Self::Replaced { .. } => Class::Stalled,
            Self::TooLarge { .. } => Class::TooLarge,
            Self::Compacted { .. } => Class::Conflict,
            Self::Busy { retry_in } => Class::Waiting { retry_in: *retry_in },
            Self::Closed | Self::Unreachable { .. } | Self::Uncertain { .. } | Self::Deposed => {
                Class::Waiting { retry_in: Duration::from_secs(1) }
            }
            Self::DuplicateKey(_) | Self::Failed(_) => Class::Internal,
        }
    }
}
