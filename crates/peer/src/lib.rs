//! Nodes and how they talk: who is there, and a line to each.
//!
//! ```text
//!  pki ── Identity ──┬──▶ Members   SWIM over sealed UDP: who is alive, "ready" hints
//!                    │       │ table
//!                    ├──▶ Peers ── Peer::send ── N HTTP/2 lines over mutual TLS ──▶ another node's
//!                    └──▶ PeerListener ──▶ PeerHandler                              PeerListener
//! ```
//!
//! What it is not: nothing here knows models, routes or assignments. It says who answers, and carries bytes.

pub mod http2;
pub mod joining;
mod listener;
mod loops;
mod members;
pub mod membership;
mod peer;
mod peers;
pub mod pki;
pub mod port;
pub mod tls;

pub use self::{
    listener::{PeerHandler, PeerListener},
    loops::{EventLoops, LoopThreads},
    members::{Hint, MemberTable, Members, MembersWriter, Tier},
    peer::{Peer, PeerChannel, SendError},
    peers::{LinePolicy, Peers},
    pki::{Identity, PkiError},
    tls::Caller,
};

/// Any error, where the kind does not matter.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request to a peer, and of a [`PeerHandler`]'s answer.
pub type PeerBody = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, BoxError>;

/// The oldest and the newest protocol between nodes that this version speaks ([`berth_spec::Member::protocol`]).
pub const PROTOCOL: (u16, u16) = (1, 1);

/// The newest protocol that both speak, if there is one.
#[must_use]
pub fn common_protocol(ours: (u16, u16), theirs: (u16, u16)) -> Option<u16> {
    let newest = ours.1.min(theirs.1);
    (newest >= ours.0.max(theirs.0)).then_some(newest)
}

/// A body of these bytes, sent at once.
#[must_use]
pub fn full(bytes: impl Into<bytes::Bytes>) -> PeerBody {
    use http_body_util::BodyExt as _;
    http_body_util::Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_speak_the_newest_that_both_know() {
        for (ours, theirs, common) in [
            ((1, 1), (1, 1), Some(1)),
            ((1, 2), (2, 3), Some(2)),
            ((1, 5), (2, 3), Some(3)),
            ((1, 1), (2, 3), None),
            ((4, 5), (1, 3), None),
        ] {
            assert_eq!(common_protocol(ours, theirs), common, "{ours:?} {theirs:?}");
        }
    }
}
