//! Error classes: the meaning of an error for the caller. `wire` maps them to HTTP and gRPC status codes, in one place.

use std::time::Duration;

/// The next step after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The caller sent something wrong; sending it again will not help.
    Invalid,
    /// Readable content with wrong values: its fields have to change.
    Unprocessable,
    /// No such thing.
    NotFound,
    /// Somebody else changed it first, or it is owned elsewhere: read again, then decide.
    Conflict,
    /// Not now; try again after this long.
    Waiting {
        /// A guess of when it is worth trying again.
        retry_in: Duration,
    },
    /// The caller, or all callers together, used more than they may; try again after this long.
    Limited {
        /// The time after which the limit lets the next one in.
        retry_in: Duration,
    },
    /// The caller's deadline has passed.
    TimedOut,
    /// Blocked until somebody changes something.
    Stalled,
    /// More than the server takes (a body, a batch, a header).
    TooLarge,
    /// The server does not do this.
    Unsupported,
    /// A fault of ours or of the model.
    Internal,
}
