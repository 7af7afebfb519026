//! What an error means for whoever gets it. `wire` maps it to HTTP and gRPC status codes, in one place.

use std::time::Duration;

/// What to do next about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The caller sent something wrong; sending it again will not help.
    Invalid,
    /// What was sent can be read, but is not what it has to be: its fields have to change.
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
    /// The caller's deadline has passed.
    TimedOut,
    /// It will not come about until somebody changes something.
    Stalled,
    /// More than the server takes (a body, a batch, a header).
    TooLarge,
    /// The server does not do this.
    Unsupported,
    /// A fault of ours or of the model.
    Internal,
}
