//! Reads certificates: the node that they name and their validity.

use std::{
    fmt::Write as _,
    net::IpAddr,
    path::Path,
    time::{Duration, SystemTime},
};

use berth_spec::{Roles, WorkerId};
use rustls::{
    crypto::WebPkiSupportedAlgorithms,
    pki_types::{CertificateDer, TrustAnchor, UnixTime},
};
use webpki::{EndEntityCert, Error, KeyUsage};
use x509_parser::{extensions::GeneralName, parse_x509_certificate, time::ASN1Time};

use super::{DOMAIN, PkiError, ROLE_DOMAIN};

/// Optional prefix of a node's name in its certificate.
const PREFIX: &str = "node-";

/// True if the certificate named `certificate` is valid for the node `node`: the same name, or that name after
/// `node-`. So `berth pki issue DIR node-a` serves a node called `a` and one called `node-a`.
#[must_use]
pub fn certifies(certificate: &WorkerId, node: &WorkerId) -> bool {
    certificate == node || certificate.as_str().strip_prefix(PREFIX) == Some(node.as_str())
}

/// Facts of a node's certificate: who it is for, until when, and the number that its CA gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCertificate {
    /// The node: the first DNS name that ends in [`DOMAIN`], without that.
    pub name: WorkerId,
    /// The roles: the DNS names that end in [`ROLE_DOMAIN`].
    pub roles: Roles,
    /// Its other DNS names and addresses.
    pub hosts: Vec<String>,
    /// Number that its CA gave it, in lower-case hexadecimal digits without leading zeros.
    pub serial: String,
    /// Beginning of its validity, in seconds since the Unix epoch.
    pub from: u64,
    /// End of its validity, in seconds since the Unix epoch.
    pub until: u64,
}

impl NodeCertificate {
    /// Length of its validity.
    #[must_use]
    pub const fn life(&self) -> Duration {
        Duration::from_secs(self.until.saturating_sub(self.from))
    }

    /// Reads a certificate; `None` if it names no node.
    #[must_use]
    pub fn read(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = parse_x509_certificate(certificate).ok()?;
        let names = parsed.subject_alternative_name().ok().flatten()?;
        let (mut name, mut roles, mut hosts) = (None, Roles::NONE, Vec::new());
        for general in &names.value.general_names {
            match general {
                GeneralName::DNSName(dns) => match (dns.strip_suffix(DOMAIN), dns.strip_suffix(ROLE_DOMAIN)) {
                    (Some(node), _) => name = name.or_else(|| WorkerId::new(node).ok()),
                    (None, Some(role)) => roles = roles.union(role.parse().unwrap_or(Roles::NONE)),
                    (None, None) => hosts.push((*dns).to_owned()),
                },
                GeneralName::IPAddress(bytes) => hosts.extend(address(bytes).map(|address| address.to_string())),
                _ => {}
            }
        }
        let seconds = |time: ASN1Time| u64::try_from(time.timestamp()).unwrap_or_default();
        let validity = parsed.validity();
        Some(Self {
            name: name?,
            roles,
            hosts,
            serial: serial(parsed.raw_serial()),
            from: seconds(validity.not_before),
            until: seconds(validity.not_after),
        })
    }
}

/// A serial number as certificates are compared by it: lower-case hexadecimal digits without leading zeros.
fn serial(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Formatting into a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits.trim_start_matches('0').to_owned()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match *bytes {
        [a, b, c, d] => Some(IpAddr::from([a, b, c, d])),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

/// Checks that a chain leads to one of `anchors` now, and may be used at both ends of a connection.
pub(super) fn check(
    file: &Path,
    chain: &[CertificateDer<'static>],
    anchors: &[TrustAnchor<'static>],
    algorithms: WebPkiSupportedAlgorithms,
) -> Result<(), PkiError> {
    let wrong = |reason: String| PkiError::unusable(file, reason);
    let Some((own, between)) = chain.split_first() else {
        return Err(wrong("holds no certificate: expected PEM with BEGIN CERTIFICATE".to_owned()));
    };
    let parsed = EndEntityCert::try_from(own).map_err(|error| wrong(format!("is no certificate ({error})")))?;
    let now = UnixTime::now();
    for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
        parsed
            .verify_for_usage(algorithms.all, anchors, between, now, usage, None, None)
            .map_err(|error| wrong(reason(&error, now)))?;
    }
    Ok(())
}

/// End of the validity of a chain that is valid now, found by checking it for a day in the far future.
pub(super) fn ends(
    chain: &[CertificateDer<'static>],
    anchors: &[TrustAnchor<'static>],
    algorithms: WebPkiSupportedAlgorithms,
) -> Option<SystemTime> {
    const FAR: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1 << 38));
    let (own, between) = chain.split_first()?;
    let parsed = EndEntityCert::try_from(own).ok()?;
    match parsed.verify_for_usage(algorithms.all, anchors, between, FAR, KeyUsage::server_auth(), None, None) {
        Err(Error::CertExpired { not_after, .. }) => {
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(not_after.as_secs()))
        }
        _ => None,
    }
}

fn reason(error: &Error, now: UnixTime) -> String {
    let ago = |a: UnixTime, b: UnixTime| shown(Duration::from_secs(a.as_secs().saturating_sub(b.as_secs())));
    match error {
        Error::CertExpired { not_after, .. } => {
            format!("expired {} ago: issue a new one with `berth pki issue`", ago(now, *not_after))
        }
        Error::CertNotValidYet { not_before, .. } => {
            format!("is not valid before {} from now: set this machine's clock, or wait", ago(*not_before, now))
        }
        Error::UnknownIssuer | Error::InvalidSignatureForPublicKey => {
            "was not issued by a CA in ca.pem: take both from the same `berth pki issue`".to_owned()
        }
        Error::RequiredEkuNotFoundContext(_) => {
            "is not for both ends of a connection: it needs the usages serverAuth and clientAuth".to_owned()
        }
        other => format!("does not hold ({other})"),
    }
}

fn shown(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_name_certifies() {
        let name = |text: &str| WorkerId::new(text).expect("a name");
        for (certificate, node, may) in [
            ("a", "a", true),
            ("node-a", "a", true),
            ("node-a", "node-a", true),
            ("node-node-a", "node-a", true),
            ("a", "node-a", false),
            ("node-a", "b", false),
            ("node-node-a", "a", false),
            ("node-a", "node-node-a", false),
            ("my-node-a", "a", false),
            ("nodea", "a", false),
            ("node-a.b", "a", false),
        ] {
            assert_eq!(certifies(&name(certificate), &name(node)), may, "{certificate} for {node}");
        }
    }
}
