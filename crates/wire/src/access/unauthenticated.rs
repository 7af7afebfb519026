//! Reasons for which the sender of a request is not known.

use std::time::Duration;

/// Reason for refusing a request whose sender is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unauthenticated {
    /// Neither token nor certificate.
    #[error("a token is needed: send it as \"Authorization: Bearer TOKEN\"; `berth token create` makes one")]
    Missing,
    /// The header is not a bearer token, is given twice, or is too long.
    #[error("the header Authorization is malformed: send one, \"Bearer TOKEN\"")]
    Malformed,
    /// One text for all of them, so that nobody learns which tokens there were.
    #[error("the token is unknown, has expired or was revoked; `berth token create` makes a new one")]
    Unknown,
    /// Tokens are not known to this node yet.
    #[error("this node has not been told yet which tokens there are; try again in a second")]
    Untold,
    /// The keys that would verify the token are being asked for.
    #[error("the keys of the token's issuer are not known here yet; try again in a second")]
    IssuerUntold,
    /// Token whose end has come.
    #[error("the token has expired: get a new one from its issuer")]
    Expired,
    /// Token whose time has not come.
    #[error("the token is not valid yet: compare the clocks")]
    Early,
    /// Token without an end, or with times that are none.
    #[error("the token has no valid time of expiry: its issuer must set the claim \"exp\"")]
    Timeless,
    /// Token that was made for another service.
    #[error(
        "the token is for another audience: get one from its issuer for an audience that the server's --access-file names"
    )]
    Audience,
    /// The claim that names its holder is missing, or no name.
    #[error("the token lacks the claim that names its holder, which the server's --access-file chooses")]
    Nameless,
}

impl Unauthenticated {
    /// Pause before another attempt, where waiting helps.
    #[must_use]
    pub const fn retry_in(self) -> Option<Duration> {
        match self {
            Self::Untold | Self::IssuerUntold => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}
