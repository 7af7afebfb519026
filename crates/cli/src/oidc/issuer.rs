//! The endpoints of an issuer, and its answers.

use std::{path::Path, time::Duration};

use berth_spec::Secret;
use reqwest::{Certificate, Client, Response, StatusCode, redirect::Policy};
use serde::{Deserialize, de::DeserializeOwned};
use url::{Host, Url, form_urlencoded};

use crate::failure::Failure;

/// Limit for one answer: a person waits at the terminal, and an issuer that logs somebody in may ask another system.
const PATIENCE: Duration = Duration::from_secs(15);

/// Largest answer in bytes: tokens with many groups take some ten thousand.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The longest text of an issuer that a person is shown.
const MAX_SHOWN_CHARS: usize = 300;

/// An issuer, and this program as its client.
pub(super) struct Issuer {
    client: Client,
    client_id: String,
    client_secret: Option<Secret>,
    pub(super) device: Option<Url>,
    pub(super) token: Url,
}

/// The parts of a discovery document that are needed (OpenID Connect Discovery 1.0, RFC 8628 section 4).
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    token_endpoint: String,
    device_authorization_endpoint: Option<String>,
}

/// The answer of the token endpoint, if it has tokens.
#[derive(Deserialize)]
pub(super) struct Tokens {
    pub(super) access_token: String,
    pub(super) id_token: Option<String>,
    pub(super) refresh_token: Option<String>,
    /// Seconds for which the access token holds: a number, or with some issuers its digits.
    expires_in: Option<serde_json::Value>,
}

impl Tokens {
    /// Seconds for which the access token holds, if the issuer said so.
    pub(super) fn lasts(&self) -> Option<u64> {
        let said = self.expires_in.as_ref()?;
        said.as_u64().or_else(|| said.as_str()?.parse().ok())
    }
}

/// An error by the words of OAuth 2.0 (RFC 6749, section 5.2).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    pub(super) error: String,
    error_description: Option<String>,
}

impl Refusal {
    #[cfg(test)]
    pub(super) fn of(error: &str) -> Self {
        Self { error: error.to_owned(), error_description: None }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let described = self.error_description.iter().map(|text| format!(": {text}"));
        shown(&std::iter::once(self.error.clone()).chain(described).collect::<String>())
    }
}

/// The reason why an endpoint gave nothing.
#[derive(Debug)]
pub(super) enum IssuerError {
    /// A refusal by the issuer.
    Refused(Refusal),
    /// No answer. Asking again may help.
    Away(String),
    /// An agreement in words that are none of the protocol's.
    Unreadable(String),
}

impl IssuerError {
    /// As the failure of a command.
    pub(super) fn failure(self, what: &str) -> Failure {
        match self {
            Self::Refused(refusal) => Failure::Failed(format!("{what}: the issuer says {}", refusal.text())),
            Self::Away(why) | Self::Unreadable(why) => Failure::doing(what, why),
        }
    }
}

impl Issuer {
    /// Reads where its endpoints are.
    ///
    /// # Errors
    /// The address is none, or others could change its answers; the issuer cannot be reached, or is another one.
    pub(super) async fn discover(
        url: &str,
        ca: Option<&Path>,
        client_id: &str,
        client_secret: Option<Secret>,
    ) -> Result<Self, Failure> {
        let parsed =
            Url::parse(url).map_err(|error| Failure::Usage(format!("{url:?} is not an issuer's address: {error}")))?;
        safe(&parsed)?;
        let mut client = Client::builder()
            .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
            // Nobody on the way decides where codes and tokens go.
            .redirect(Policy::none())
            .timeout(PATIENCE);
        if let Some(ca) = ca {
            let wrong = || Failure::Usage(format!("{}: holds no certificate in PEM", ca.display()));
            let found = Certificate::from_pem_bundle(&fs_err::read(ca)?).map_err(|_| wrong())?;
            client = client.tls_certs_only(if found.is_empty() { return Err(wrong()) } else { found });
        }
        if is_loopback(&parsed) {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| Failure::doing("cannot set up the HTTP client", error))?;
        let document = format!("{}/.well-known/openid-configuration", url.trim_end_matches('/'));
        let asked = client.get(&document).header("accept", "application/json").send().await;
        let found: Discovery = match answer(asked).await {
            Ok(found) => found,
            Err(trouble) => return Err(trouble.failure(&document)),
        };
        if found.issuer != url {
            let issuer = shown(&found.issuer);
            return Err(Failure::Usage(format!(
                "{document} is of the issuer {issuer:?}: write its address so, letter for letter"
            )));
        }
        let endpoint = |text: &str| {
            let url =
                Url::parse(text).map_err(|error| Failure::Failed(format!("{document}: {:?}: {error}", shown(text))))?;
            safe(&url).map(|()| url)
        };
        Ok(Self {
            client,
            client_id: client_id.to_owned(),
            client_secret,
            device: found.device_authorization_endpoint.as_deref().map(endpoint).transpose()?,
            token: endpoint(&found.token_endpoint)?,
        })
    }

    /// Sends a form with the client's name, and its secret where it has one.
    pub(super) async fn ask<T: DeserializeOwned>(&self, url: &Url, fields: &[(&str, &str)]) -> Result<T, IssuerError> {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(fields).append_pair("client_id", &self.client_id);
        let mut request = self
            .client
            .post(url.clone())
            .header("accept", "application/json")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(form.finish());
        if let Some(secret) = &self.client_secret {
            let coded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            // As RFC 6749 has it in section 2.3.1: encoded before it is joined.
            request = request.basic_auth(coded(&self.client_id), Some(coded(secret.expose())));
        }
        answer(request.send().await).await
    }
}

/// Reads an answer in JSON; an error in the words of OAuth is a refusal.
async fn answer<T: DeserializeOwned>(asked: Result<Response, reqwest::Error>) -> Result<T, IssuerError> {
    let away = |error: reqwest::Error| {
        let error = error.without_url();
        let mut deepest: &dyn std::error::Error = &error;
        while let Some(next) = deepest.source() {
            deepest = next;
        }
        IssuerError::Away(if error.is_timeout() {
            format!("no answer within {} s", PATIENCE.as_secs())
        } else {
            deepest.to_string()
        })
    };
    let mut response = asked.map_err(away)?;
    let status = response.status();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(away)? {
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(IssuerError::Unreadable(format!("the answer is larger than {MAX_ANSWER_BYTES} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    if status.is_success() {
        // The text of the error could quote a token.
        return serde_json::from_slice(&body)
            .map_err(|_| IssuerError::Unreadable("the answer is not the JSON that it should be".to_owned()));
    }
    match serde_json::from_slice::<Refusal>(&body) {
        Ok(refusal)
            if !refusal.error.is_empty() && (status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS) =>
        {
            Err(IssuerError::Refused(refusal))
        }
        _ => Err(IssuerError::Away(format!("it answered {status}"))),
    }
}

/// Text of an issuer as a terminal may have it.
pub(super) fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_SHOWN_CHARS).collect()
}

/// Refuses addresses to which tokens would go in clear.
fn safe(url: &Url) -> Result<(), Failure> {
    match url.scheme() {
        "https" if url.has_host() => Ok(()),
        "http" if is_loopback(url) => Ok(()),
        _ => Err(Failure::Usage(format!("{url} is not https://: whoever is between could read the tokens"))),
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
