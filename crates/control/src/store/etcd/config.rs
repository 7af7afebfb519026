//! Address, security and timeouts of etcd.

use std::{fmt, path::Path, str::FromStr, time::Duration};

/// Default prefix of keys.
const PREFIX: &str = "/berth";

/// etcd's port for clients.
const PORT: u16 = 2379;

/// Configuration of the etcd client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `HOST:PORT` of members, at least one. Give all of them: where one is gone, another is asked.
    pub endpoints: Vec<String>,
    /// Prefix of all keys, so that several systems can share one etcd. Begins with `/` and does not end with one; may
    /// be empty.
    pub prefix: String,
    /// TLS settings; `None` for plain connections.
    pub tls: Option<EtcdTls>,
    /// User and password, if etcd requires authentication.
    pub credentials: Option<EtcdCredentials>,
    /// Limits of time for requests to etcd.
    pub patience: Timeouts,
}

/// TLS settings: trusted authorities, our own certificate, and the expected name.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// Certificates of the authorities that may vouch for etcd, PEM; `None`: those that the system trusts.
    pub authorities: Option<Vec<u8>>,
    /// Our certificate and its key, both PEM, where etcd asks for one (`--client-cert-auth`).
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in etcd's certificates, where it is not the host's.
    pub server_name: Option<String>,
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdTls")
            .field("authorities", &self.authorities.is_some())
            .field("identity", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}

/// User and password for etcd's own authentication. `Debug` leaves the password out.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdCredentials {
    /// Name of a user that reads and writes the prefix.
    pub user: String,
    /// Password, in clear: it comes from a file, never from an address.
    pub password: String,
}

impl fmt::Debug for EtcdCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdCredentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Timeouts of requests to etcd. 2, 3, 10 and 5 s by default, in the order of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Limit for connecting. Allows for distant members.
    pub connect: Duration,
    /// Limit for one answer of one endpoint. Longer than a slow disk stalls.
    pub answer: Duration,
    /// Limit for all attempts together. Must exceed an election of etcd (1 to 2 s), or writes fail whenever a member
    /// dies.
    pub whole: Duration,
    /// Interval between progress requests of a watch. A stream is replaced after two without an answer.
    pub progress: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            answer: Duration::from_secs(3),
            whole: Duration::from_secs(10),
            progress: Duration::from_secs(5),
        }
    }
}

/// Reason why an address of etcd is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Unknown or missing scheme.
    #[error(
        "{0:?} is not an address of etcd: write etcd://HOST:PORT,HOST:PORT or, with TLS, etcds://HOST:PORT,HOST:PORT"
    )]
    Scheme(String),
    /// A host is missing or cannot be one.
    #[error("invalid address {0:?}; expected HOST:PORT")]
    Host(String),
    /// Passwords do not belong into addresses, which end up in logs and lists of processes.
    #[error("leave user and password out of the address of etcd: use --store-user and --store-password-file")]
    Secret,
    /// The prefix would not work.
    #[error("the prefix {0:?} may hold letters, digits, - _ . and /, as in etcd://HOST:PORT/prod")]
    Prefix(String),
    /// A file of keys or certificates cannot be read.
    #[error("cannot read {0}")]
    File(String),
}

/// Address of etcd: `etcd://HOST:PORT,HOST:PORT`, or `etcds://…` with TLS, followed by an optional `/PREFIX`. The
/// default port is 2379.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// True for `etcds`: connections use TLS.
    pub tls: bool,
    /// `HOST:PORT` of members, at least one.
    pub endpoints: Vec<String>,
    /// With a slash in front and none at the end; `None`: the usual one.
    pub prefix: Option<String>,
}

impl FromStr for Address {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let (scheme, rest) = text.trim().split_once("://").ok_or_else(|| ConfigError::Scheme(text.to_owned()))?;
        let tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(ConfigError::Scheme(text.to_owned())),
        };
        if rest.contains('@') {
            return Err(ConfigError::Secret);
        }
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints = hosts.split(',').map(endpoint).collect::<Result<_, _>>()?;
        let prefix = prefix.trim_matches('/');
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if !prefix.chars().all(fine) {
            return Err(ConfigError::Prefix(prefix.to_owned()));
        }
        Ok(Self { tls, endpoints, prefix: (!prefix.is_empty()).then(|| format!("/{prefix}")) })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}{}", self.endpoints.join(","), self.prefix.as_deref().unwrap_or_default())
    }
}

impl From<Address> for EtcdConfig {
    /// Default configuration with this address.
    fn from(address: Address) -> Self {
        Self {
            endpoints: address.endpoints,
            prefix: address.prefix.unwrap_or_else(|| PREFIX.to_owned()),
            tls: address.tls.then(EtcdTls::default),
            credentials: None,
            patience: Timeouts::default(),
        }
    }
}

impl EtcdConfig {
    /// Reads an [`Address`].
    ///
    /// # Errors
    /// [`ConfigError`] where it is none.
    pub fn parse(address: &str) -> Result<Self, ConfigError> {
        address.parse().map(|address: Address| address.into())
    }
}

impl EtcdTls {
    /// Reads PEM files: authorities, and our certificate with its key. Blocks.
    ///
    /// # Errors
    /// [`ConfigError::File`] names the file.
    pub fn read(authorities: Option<&Path>, identity: Option<(&Path, &Path)>) -> Result<Self, ConfigError> {
        let read = |path: &Path| fs_err::read(path).map_err(|error| ConfigError::File(error.to_string()));
        Ok(Self {
            authorities: authorities.map(read).transpose()?,
            identity: identity.map(|(certificate, key)| Ok((read(certificate)?, read(key)?))).transpose()?,
            server_name: None,
        })
    }
}

fn endpoint(text: &str) -> Result<String, ConfigError> {
    let wrong = || ConfigError::Host(text.to_owned());
    let authority: http::uri::Authority = text.trim().parse().map_err(|_| wrong())?;
    // A port that is there but cannot be one is not simply absent.
    let bare = !authority.as_str().rsplit(']').next().unwrap_or_default().contains(':');
    match authority.port_u16() {
        _ if authority.host().is_empty() => Err(wrong()),
        Some(_) => Ok(authority.to_string()),
        None if bare => Ok(format!("{authority}:{PORT}")),
        None => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let one =
            |text: &str| EtcdConfig::parse(text).map(|config| (config.endpoints, config.prefix, config.tls.is_some()));
        let good = |hosts: &[&str], prefix: &str, tls| {
            Ok((hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>(), prefix.to_owned(), tls))
        };
        assert_eq!(one("etcd://a:1,b:2"), good(&["a:1", "b:2"], "/berth", false));
        assert_eq!(one("etcds://a/"), good(&["a:2379"], "/berth", true));
        assert_eq!(one("etcd://[::1]:5,[::2]/x/y/"), good(&["[::1]:5", "[::2]:2379"], "/x/y", false));
        for text in ["etcd://a:1,b:2", "etcds://a.example.org:2379/prod", "etcd://[::1]:7,10.0.0.1:2379"] {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()).as_deref(), Ok(text));
        }
        for (bad, error) in [
            ("a:1", ConfigError::Scheme("a:1".to_owned())),
            ("http://a:1", ConfigError::Scheme("http://a:1".to_owned())),
            ("etcd://", ConfigError::Host(String::new())),
            ("etcd://a:1,,b:2", ConfigError::Host(String::new())),
            ("etcd://a:port", ConfigError::Host("a:port".to_owned())),
            ("etcd://me:secret@a:1", ConfigError::Secret),
            ("etcd://a:1/x y", ConfigError::Prefix("x y".to_owned())),
            ("etcd://a:1?prefix=x", ConfigError::Host("a:1?prefix=x".to_owned())),
        ] {
            assert_eq!(one(bad).expect_err(bad), error, "{bad}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let config = EtcdConfig {
            tls: Some(EtcdTls { identity: Some((vec![1], b"hidden".to_vec())), ..EtcdTls::default() }),
            credentials: Some(EtcdCredentials { user: "me".to_owned(), password: "hidden".to_owned() }),
            ..EtcdConfig::parse("etcds://a:1").expect("an address")
        };
        let shown = format!("{config:?}");
        assert!(shown.contains("me") && !shown.contains("hidden") && !shown.contains("104"), "{shown}");
    }
}
