//! The verdict of a validation, and what the brain keeps of commits.

use std::sync::Arc;

use berth_git::CommitInfo;
use berth_registry::Desired;

use crate::refusal::Refusal;

/// A valid commit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) info: CommitInfo,
    pub(crate) desired: Arc<Desired>,
}

/// A commit that is refused, and what of it still counts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RefusedCommit {
    pub(crate) info: CommitInfo,
    pub(crate) refusal: Refusal,
    /// The deployments that it wants without a replica; `None`: its own files are not valid.
    pub(crate) idle: Option<Vec<String>>,
}

/// The verdict of a validation, as the brain has to act on it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// A valid commit.
    Good(Box<Candidate>),
    /// A commit that differs from the last one only in files that controllers write.
    OwnOnly,
    /// A commit with errors: the last good one stays.
    Refused(Box<RefusedCommit>),
    /// A commit that could not be validated.
    Failed(FollowError),
}

/// The reason of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FollowError {
    /// The message for people, with the cause.
    pub(crate) message: String,
    /// True if it may succeed later without anybody acting.
    pub(crate) passing: bool,
}
