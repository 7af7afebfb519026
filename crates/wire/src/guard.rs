//! Keeps pages of other sites from changing things through the browser of somebody who may.
//!
//! Ports on loopback ask for no token, so whoever reaches them may declare, load and unload models; a page that the
//! operator happens to look at must not be among them. Two ways in are closed: a request that another site's page sends
//! (it says so in `Sec-Fetch-Site` or `Origin`), and a name of an attacker that resolves to 127.0.0.1 ("DNS rebinding":
//! then the `Host` is that name). Programs other than browsers send neither header and notice nothing.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, Uri, header, uri::Authority};

/// Reason for refusing a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// A name that is not this machine's, though only this machine can reach the port.
    #[error("the host {0:?} is not this machine: this port listens on loopback, call it by localhost or 127.0.0.1")]
    Host(String),
    /// A page of another site sent it.
    #[error("requests from pages of other sites are refused: call it from a program")]
    Page,
}

/// Rules derived from the listener's address.
#[derive(Debug, Clone, Copy)]
pub struct Guard {
    /// Only this machine can reach it, by names that mean this machine.
    loopback: bool,
}

impl Guard {
    /// Of a port that listens here.
    #[must_use]
    pub fn of(address: SocketAddr) -> Self {
        Self { loopback: address.ip().is_loopback() }
    }

    /// Lets a request through or says why not.
    ///
    /// # Errors
    /// A browser sent it for another site, or could have.
    pub fn check(self, uri: &Uri, headers: &HeaderMap) -> Result<(), Foreign> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // HTTP/2 has it in the URI, HTTP/1 in the header.
        let host = uri.authority().map(Authority::as_str).or_else(|| text(header::HOST.as_str())).unwrap_or_default();
        if self.loopback && !names_this_machine(host) {
            return Err(Foreign::Host(host.to_owned()));
        }
        let elsewhere = matches!(text("sec-fetch-site"), Some("cross-site" | "same-site"));
        let origin =
            text(header::ORIGIN.as_str()).map(|origin| origin.split_once("://").map_or(origin, |(_, rest)| rest));
        let foreign = elsewhere || origin.is_some_and(|origin| !origin.eq_ignore_ascii_case(host));
        if foreign { Err(Foreign::Page) } else { Ok(()) }
    }
}

/// True if a `Host` (with or without a port) can only mean this machine. Old programs send an empty one.
fn names_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name.is_empty()
        || name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(address: &str, headers: &[(&'static str, &'static str)]) -> bool {
        let guard = Guard::of(address.parse().expect("an address"));
        let headers = headers.iter().map(|(name, value)| {
            (name.parse::<header::HeaderName>().expect("a name"), value.parse().expect("a value"))
        });
        guard.check(&Uri::from_static("/v1/apply"), &headers.collect()).is_err()
    }

    #[test]
    fn programs_pass() {
        for host in ["localhost:8081", "127.0.0.1:8081", "[::1]:8081", "LOCALHOST", "berth.localhost:8081"] {
            assert!(!refused("127.0.0.1:8081", &[("host", host)]), "{host}");
        }
        assert!(!refused("127.0.0.1:8081", &[]));
        assert!(!refused("10.0.0.5:8081", &[("host", "berth.example.com:8081")]));
    }

    #[test]
    fn pages_of_other_sites_do_not() {
        let host = ("host", "localhost:8081");
        assert!(refused("127.0.0.1:8081", &[("host", "evil.example:8081")]), "rebinding");
        assert!(refused("127.0.0.1:8081", &[("host", "localhost.evil.example")]));
        assert!(refused("127.0.0.1:8081", &[host, ("origin", "https://evil.example")]));
        assert!(refused("127.0.0.1:8081", &[host, ("origin", "null")]));
        assert!(refused("127.0.0.1:8081", &[host, ("sec-fetch-site", "cross-site")]));
        assert!(refused("10.0.0.5:8081", &[("host", "10.0.0.5:8081"), ("origin", "https://evil.example")]));
        assert!(!refused(
            "127.0.0.1:8081",
            &[host, ("origin", "http://localhost:8081"), ("sec-fetch-site", "same-origin")]
        ));
        assert!(!refused("127.0.0.1:8081", &[host, ("sec-fetch-site", "none")]), "typed into the address bar");
    }
}
