//! Names in a client's certificate, once TLS has verified it.
//!
//! A port that asks for certificates puts an `Arc<ClientCertificate>` into the extensions of every request of a
//! connection whose client showed one. Who the client is and what it may do follows from the names elsewhere.

use std::{fmt, net::IpAddr};

/// Certificate of a client, verified against the CA of the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Subject alternative names, in the order of the certificate. Names of other kinds are left out.
    pub sans: Vec<SubjectName>,
    /// Distinguished name of the subject, for people: `CN=ada, O=Example`.
    pub subject: String,
    /// SHA-256 of the certificate in hexadecimal digits, which tells two with the same names apart.
    pub fingerprint: String,
}

/// A subject alternative name (RFC 5280), of the kinds that are read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubjectName {
    /// DNS name, as written.
    Dns(String),
    /// URI, such as `spiffe://example.org/billing`.
    Uri(String),
    /// E-mail address.
    Email(String),
    /// IP address, of version 4 or 6.
    Ip(IpAddr),
}

impl fmt::Display for SubjectName {
    /// The kind and the name, as OpenSSL writes them in its configuration: `DNS:a.example.org`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => write!(f, "DNS:{name}"),
            Self::Uri(name) => write!(f, "URI:{name}"),
            Self::Email(name) => write!(f, "email:{name}"),
            Self::Ip(address) => write!(f, "IP:{address}"),
        }
    }
}
