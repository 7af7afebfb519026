//! The keys of an issuer over HTTP: its discovery document (OpenID Connect Discovery 1.0), then the keys that it names.

use std::{path::PathBuf, time::Duration};

use berth_wire::access::KeySet;
use reqwest::{Certificate, Client, redirect::Policy};
use serde::Deserialize;
use url::{Host, Url};

/// Limit for one answer: keys are small, and an issuer that takes longer is asked again by the schedule.
const PATIENCE: Duration = Duration::from_secs(10);

/// Largest answer in bytes. Large providers send some ten thousand.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The address of an issuer's keys.
#[derive(Debug, Clone)]
pub(crate) struct IssuerAddress {
    url: String,
    insecure: bool,
    /// CA certificates that its certificate comes from (PEM); empty: the system's.
    pub(crate) authorities: Vec<u8>,
}

/// Keys as an issuer publishes them.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) keys: KeySet,
    /// Time for which the issuer says that they are fresh.
    pub(crate) max_age: Option<Duration>,
}

/// The parts of a discovery document that are needed.
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl IssuerAddress {
    /// Checks the address and reads the CA. Blocking.
    pub(crate) fn new(url: &str, ca: Option<PathBuf>, insecure: bool) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{url:?} is not an issuer's address: write https://HOST/PATH, as the claim iss of its tokens has it"
            )
        };
        let parsed = Url::parse(url).map_err(|_| wrong())?;
        if parsed.query().is_some() || parsed.fragment().is_some() || !parsed.username().is_empty() {
            return Err(wrong());
        }
        safe(&parsed, insecure)?;
        let authorities = match ca {
            Some(ca) => {
                let text = fs_err::read(&ca).map_err(|error| error.to_string())?;
                let found = Certificate::from_pem_bundle(&text).is_ok_and(|found| !found.is_empty());
                found.then_some(text).ok_or_else(|| format!("{}: holds no certificate in PEM", ca.display()))?
            }
            None => Vec::new(),
        };
        Ok(Self { url: url.to_owned(), insecure, authorities })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// An HTTP client that trusts the authorities of this issuer and follows no redirects.
    pub(crate) fn client(&self) -> Result<Client, String> {
        // Keys must come from where the discovery document says, not from where somebody on the way sends us.
        let mut client = Client::builder().redirect(Policy::none()).timeout(PATIENCE);
        if !self.authorities.is_empty() {
            let authorities = Certificate::from_pem_bundle(&self.authorities).map_err(|error| error.to_string())?;
            client = client.tls_certs_only(authorities);
        }
        if Url::parse(&self.url).is_ok_and(|url| is_loopback(&url)) {
            client = client.no_proxy();
        }
        client.build().map_err(|error| format!("TLS cannot be set up: {error}"))
    }

    /// Fetches the keys.
    ///
    /// # Errors
    /// For people: the step that failed, and why.
    pub(crate) async fn fetch(&self, client: &Client) -> Result<Fetched, String> {
        let document = format!("{}/.well-known/openid-configuration", self.url.trim_end_matches('/'));
        let (text, _) = get(client, &document).await?;
        let discovery: Discovery =
            serde_json::from_slice(&text).map_err(|error| format!("{document} is no discovery document: {error}"))?;
        if discovery.issuer != self.url {
            return Err(format!(
                "{document} is of the issuer {:?}: write its url so in the access file, letter for letter",
                discovery.issuer
            ));
        }
        let keys = Url::parse(&discovery.jwks_uri).map_err(|error| format!("{document}: jwks_uri: {error}"))?;
        safe(&keys, self.insecure).map_err(|error| format!("{document}: jwks_uri: {error}"))?;
        let (text, max_age) = get(client, keys.as_str()).await?;
        let keys = KeySet::parse(&text).map_err(|error| format!("{}: {error}", discovery.jwks_uri))?;
        Ok(Fetched { keys, max_age })
    }
}

/// Refuses addresses whose answers others could change.
fn safe(url: &Url, insecure: bool) -> Result<(), String> {
    match url.scheme() {
        "https" if url.has_host() => Ok(()),
        "http" if insecure || is_loopback(url) => Ok(()),
        _ => Err(format!("{url} is not https://: whoever is between could let anybody in. --insecure allows http://")),
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

async fn get(client: &Client, url: &str) -> Result<(Vec<u8>, Option<Duration>), String> {
    let failed = |error: reqwest::Error| format!("{url}: {}", reason(&error));
    let mut response = client.get(url).header("accept", "application/json").send().await.map_err(failed)?;
    if !response.status().is_success() {
        return Err(format!("{url} answered {}", response.status()));
    }
    let said = response.headers().get("cache-control").and_then(|value| value.to_str().ok()).and_then(max_age);
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(format!("{url}: the answer is larger than {MAX_ANSWER_BYTES} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok((body, said))
}

fn max_age(directives: &str) -> Option<Duration> {
    let seconds = directives.split(',').find_map(|one| one.trim().strip_prefix("max-age="));
    seconds?.parse().ok().map(Duration::from_secs)
}

/// The cause, not the chain: `error sending request` says nothing.
fn reason(error: &reqwest::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(next) = deepest.source() {
        deepest = next;
    }
    if error.is_timeout() { format!("no answer within {} s", PATIENCE.as_secs()) } else { deepest.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_is_read_from_its_header() {
        for (text, seconds) in [("public, max-age=600", Some(600)), ("no-store", None), ("max-age=x", None)] {
            assert_eq!(max_age(text).map(|age| age.as_secs()), seconds, "{text}");
        }
    }
}
