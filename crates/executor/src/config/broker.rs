//! Addresses of brokers and their credentials, and TLS towards servers, as they are written in a configuration.

use std::path::PathBuf;

use serde::Deserialize;
use url::Url;

use crate::{
    broker::{Broker, Login},
    tls::{TlsFiles, server_name},
    upstream::UpstreamTls,
};

/// The section `tls` of a broker or a receiver.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTls {
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// The section `upstreamTls` of a port.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawUpstreamTls {
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: Option<String>,
}

/// Fields that name files with credentials.
#[derive(Debug, Default)]
pub(super) struct RawLogin {
    pub(super) password: Option<PathBuf>,
    pub(super) token: Option<PathBuf>,
    pub(super) credentials: Option<PathBuf>,
}

impl RawTls {
    /// `place` is what errors call the section.
    pub(super) fn checked(self, place: &str) -> Result<TlsFiles, String> {
        let identity = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(format!("{place}: certificate and key belong together: give both, or none")),
        };
        Ok(TlsFiles { ca: self.ca, identity })
    }
}

impl RawUpstreamTls {
    pub(super) fn checked(self) -> Result<UpstreamTls, String> {
        const PLACE: &str = "upstreamTls";
        let Self { ca, certificate, key, server_name: name } = self;
        if let Some(wrong) = name.as_ref().filter(|name| server_name(name).is_err()) {
            return Err(format!("{PLACE}.serverName is {wrong:?}: it is the host name in the server's certificate"));
        }
        Ok(UpstreamTls { files: RawTls { ca, certificate, key }.checked(PLACE)?, name })
    }
}

/// A server of Redis. `place` is what errors call the section.
pub(super) fn redis(url: String, login: RawLogin, tls: Option<RawTls>, place: &str) -> Result<Broker, String> {
    let parsed = parse(&url, &format!("{place}.redis"), "redis://HOST:PORT")?;
    match (parsed.scheme(), &tls) {
        ("redis" | "redis+unix" | "unix", None) | ("rediss", _) => {}
        ("redis" | "redis+unix" | "unix", Some(_)) => {
            return Err(format!("{place}.tls: the address begins with rediss:// where Redis speaks TLS"));
        }
        (scheme, _) => {
            return Err(format!("{place}.redis has the scheme {scheme:?}; it is redis:// or rediss://HOST:PORT"));
        }
    }
    if login.token.is_some() || login.credentials.is_some() {
        return Err(format!("{place}: tokenFile and credentialsFile are for NATS; Redis takes passwordFile"));
    }
    let tls = match parsed.scheme() {
        "rediss" => Some(tls.unwrap_or_default().checked(&format!("{place}.tls"))?),
        _ => None,
    };
    let login = Login { password_file: login.password, ..Login::default() };
    Ok(Broker { url, login, tls })
}

/// Servers of NATS.
pub(super) fn nats(urls: &str, login: RawLogin, tls: Option<RawTls>, place: &str) -> Result<Broker, String> {
    let (mut servers, mut user, mut secure) = (Vec::new(), None, tls.is_some());
    for url in urls.split(',').map(str::trim) {
        let mut parsed = parse(url, &format!("{place}.nats"), "nats://HOST:PORT")?;
        match parsed.scheme() {
            "nats" => {}
            "tls" => secure = true,
            scheme => return Err(format!("{place}.nats has the scheme {scheme:?}; it is nats:// or tls://HOST:PORT")),
        }
        if !parsed.username().is_empty() {
            user = Some(parsed.username().to_owned());
            // Refused for URLs without a host only.
            let _ = parsed.set_username("");
        }
        servers.push(parsed.to_string());
    }
    if user.is_some() != login.password.is_some() {
        return Err(format!("{place}: a user in the address and passwordFile belong together: give both, or none"));
    }
    let ways = [login.password.is_some(), login.token.is_some(), login.credentials.is_some()];
    if ways.into_iter().filter(|is| *is).count() > 1 {
        return Err(format!("{place}: give one of passwordFile, tokenFile and credentialsFile"));
    }
    let tls = if secure { Some(tls.unwrap_or_default().checked(&format!("{place}.tls"))?) } else { None };
    let login =
        Login { user, password_file: login.password, token_file: login.token, credentials_file: login.credentials };
    Ok(Broker { url: servers.join(","), login, tls })
}

fn parse(url: &str, place: &str, example: &str) -> Result<Url, String> {
    let parsed = Url::parse(url).map_err(|error| format!("{place} is no URL such as {example}: {error}"))?;
    if parsed.password().is_some() {
        return Err(format!("{place} holds a password: put it into a file of a Secret, and name that as passwordFile"));
    }
    Ok(parsed)
}
