//! Log of refused callers: one line a minute for each kind of reason, because a refused node tries again each second, and
//! strangers come from any number of addresses.

use std::{io, net::SocketAddr};

use rustls::{CertificateError, Error};
use tokio::time::Instant;

use crate::{port::Damped, tls};

/// Kinds of reasons. One that strangers cause silences no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A node that has no certificate yet.
    Joining,
    /// The handshake did not end in time.
    Slow,
    /// No certificate.
    Anonymous,
    /// No TLS, or a connection that was given up.
    Handshake,
    /// A certificate of another CA, or one that is none.
    Foreign,
    /// A certificate of the cluster's CA that has expired.
    Expired,
    /// A certificate of the cluster's CA that was revoked.
    Revoked,
    /// A certificate of the cluster's CA without a name or roles.
    Nameless,
}

/// The number of kinds, the last of which is [`Kind::Nameless`].
const KINDS: usize = Kind::Nameless as usize + 1;

/// The reason for which a caller was refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) kind: Kind,
    pub(super) reason: String,
}

impl Refusal {
    pub(super) fn new(kind: Kind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }

    /// The reason of a handshake that failed.
    pub(super) fn of(error: &io::Error) -> Self {
        let kind = match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. })) => {
                Kind::Expired
            }
            Some(Error::InvalidCertificate(CertificateError::Revoked)) => Kind::Revoked,
            Some(Error::InvalidCertificate(_)) => Kind::Foreign,
            Some(Error::NoCertificatesPresented) => Kind::Anonymous,
            _ => Kind::Handshake,
        };
        Self::new(kind, tls::explain(error))
    }
}

/// Damps the log lines, by kind.
#[derive(Default)]
pub(super) struct Refusals([Damped; KINDS]);

impl Refusals {
    /// Says in the log that a connection was refused, unless the like was said a moment ago.
    pub(super) fn tell(&self, from: SocketAddr, Refusal { kind, reason }: &Refusal) {
        match self.news(*kind, Instant::now()) {
            Some(times) => {
                tracing::warn!(event = "peer_refused", %from, reason, times, "refused a connection to the peer port");
            }
            None => tracing::debug!(event = "peer_refused_again", %from, reason),
        }
    }

    /// The number of refusals of this kind since the last line, if it is time for one.
    fn news(&self, kind: Kind, now: Instant) -> Option<u64> {
        self.0[kind as usize].tell(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_kind_of_reason_is_told_once_a_minute_and_hides_no_other() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        // Each of them may come from an address of its own.
        let told: Vec<_> = (0..10_000).filter_map(|_| refusals.news(Kind::Handshake, now)).collect();
        assert_eq!(told, [1]);
        assert_eq!(refusals.news(Kind::Expired, now), Some(1), "that is something else");
        assert_eq!(refusals.news(Kind::Handshake, now + Duration::from_secs(60)), Some(10_000));
    }

    #[test]
    fn handshakes_fail_for_reasons_of_several_kinds() {
        let tls = |error: Error| io::Error::other(error);
        for (error, kind) in [
            (tls(Error::InvalidCertificate(CertificateError::Expired)), Kind::Expired),
            (tls(Error::InvalidCertificate(CertificateError::Revoked)), Kind::Revoked),
            (tls(Error::InvalidCertificate(CertificateError::UnknownIssuer)), Kind::Foreign),
            (tls(Error::InvalidCertificate(CertificateError::BadEncoding)), Kind::Foreign),
            (tls(Error::NoCertificatesPresented), Kind::Anonymous),
            (io::ErrorKind::UnexpectedEof.into(), Kind::Handshake),
        ] {
            assert_eq!(Refusal::of(&error).kind, kind, "{error}");
        }
    }
}
