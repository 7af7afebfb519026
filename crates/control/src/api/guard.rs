//! Keeps pages of other sites from using the API through the browser of somebody who may.
//!
//! The API on loopback asks for no token, so whoever reaches it may declare models; a page that the operator happens to
//! look at must not be among them. Two ways in are closed: a request that another site's page sends (it says so in
//! `Sec-Fetch-Site` or `Origin`), and a name of an attacker that resolves to 127.0.0.1 ("DNS rebinding": then the `Host`
//! is that name). Programs other than browsers send neither header and notice nothing.

use std::net::{IpAddr, SocketAddr};

use axum::{
    extract::Request,
    http::{HeaderMap, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::error::ApiError;

/// What the listener's address says about who may ask.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guard {
    /// Only this machine can reach it, by names that mean this machine.
    loopback: bool,
}

impl Guard {
    pub(super) fn of(address: SocketAddr) -> Self {
        Self { loopback: address.ip().is_loopback() }
    }

    /// Lets the request through or refuses it.
    pub(super) async fn check(self, request: Request, next: Next) -> Response {
        match self.refusal(request.uri(), request.headers()) {
            None => next.run(request).await,
            Some(refusal) => refusal.into_response(),
        }
    }

    fn refusal(self, uri: &Uri, headers: &HeaderMap) -> Option<ApiError> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // HTTP/2 has it in the URI, HTTP/1 in the header.
        let host = uri.authority().map(Authority::as_str).or_else(|| text(header::HOST.as_str())).unwrap_or_default();
        if self.loopback && !names_this_machine(host) {
            return Some(ApiError::forbidden(format!(
                "the host {host:?} is not this machine: the API listens on loopback, call it by localhost or 127.0.0.1"
            )));
        }
        let elsewhere = matches!(text("sec-fetch-site"), Some("cross-site" | "same-site"));
        let origin =
            text(header::ORIGIN.as_str()).map(|origin| origin.split_once("://").map_or(origin, |(_, rest)| rest));
        (elsewhere || origin.is_some_and(|origin| !origin.eq_ignore_ascii_case(host)))
            .then(|| ApiError::forbidden("requests from pages of other sites are refused: call the API from a program"))
    }
}

/// Whether a `Host` (perhaps with a port) can only mean this machine. An empty one comes from programs of old.
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
        guard.refusal(&Uri::from_static("/v1/apply"), &headers.collect()).is_some()
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
