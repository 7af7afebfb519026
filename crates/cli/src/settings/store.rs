//! Where the cluster's store is: `etcd://10.0.0.2:2379,10.0.0.3:2379`, `etcds://` for TLS, with `/PREFIX` at the end
//! where several clusters share one.

use std::{fmt, path::PathBuf};

use clap::Args;

use super::values::HostPort;
use crate::failure::Failure;

/// The port of etcd for clients.
const PORT: u16 = 2379;

/// Where the store is and how to be let in.
#[derive(Debug, Args)]
#[command(next_help_heading = "Store of the cluster")]
pub(crate) struct StoreArgs {
    /// The cluster's store; etcds:// for TLS. Only nodes with the role controller ask it
    #[arg(long, value_name = "etcd://HOST:PORT,…", env = "BERTH_STORE", value_parser = StoreUrl::parse)]
    pub(crate) store: Option<StoreUrl>,
    /// The authorities that the store's certificate may come from (PEM) [default: those of the system]
    #[arg(long, value_name = "FILE", env = "BERTH_STORE_CA")]
    pub(crate) store_ca: Option<PathBuf>,
    /// The certificate to show to the store (PEM)
    #[arg(long, value_name = "FILE", env = "BERTH_STORE_CERT")]
    pub(crate) store_cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", env = "BERTH_STORE_KEY")]
    pub(crate) store_key: Option<PathBuf>,
    /// Who to be in the store
    #[arg(long, value_name = "NAME", env = "BERTH_STORE_USER")]
    pub(crate) store_user: Option<String>,
    /// A file with that user's password
    #[arg(long, value_name = "FILE", env = "BERTH_STORE_PASSWORD_FILE")]
    pub(crate) store_password_file: Option<PathBuf>,
}

/// The address of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreUrl {
    scheme: Scheme,
    endpoints: Vec<HostPort>,
    /// With a slash in front and none at the end.
    prefix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Plain,
    Tls,
}

/// A store that can be connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreSettings {
    /// Its members, `HOST:PORT`.
    pub(crate) endpoints: Vec<String>,
    /// What all keys begin with: a slash in front, none at the end. `None`: the usual `/berth`.
    pub(crate) prefix: Option<String>,
    /// How connections are secured; `None`: they are not.
    pub(crate) tls: Option<StoreTls>,
    /// Who to be in it.
    pub(crate) login: Option<StoreLogin>,
}

/// How connections to the store are secured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreTls {
    /// The authorities that its certificate may come from (PEM); `None`: those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// The certificate to show and its key (PEM).
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// Who to be in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreLogin {
    /// The user.
    pub(crate) user: String,
    /// The file with the password.
    pub(crate) password_file: PathBuf,
}

impl StoreLogin {
    /// Reads the password, without the end of the line.
    ///
    /// # Errors
    /// [`Failure::Failed`], [`Failure::NotFound`]: the file cannot be read, or is empty.
    pub(crate) fn password(&self) -> Result<String, Failure> {
        let text = fs_err::read_to_string(&self.password_file)?;
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(Failure::Failed(format!("{} holds no password", self.password_file.display()))),
            password => Ok(password.to_owned()),
        }
    }
}

impl StoreUrl {
    fn parse(text: &str) -> Result<Self, String> {
        let how = "write etcd://HOST:PORT,HOST:PORT, or etcds:// for TLS";
        let (scheme, rest) = match text.trim().split_once("://") {
            Some(("etcd", rest)) => (Scheme::Plain, rest),
            Some(("etcds", rest)) => (Scheme::Tls, rest),
            Some((other, _)) => return Err(format!("{other}:// is no store that Berth knows: {how}")),
            None => return Err(how.to_owned()),
        };
        let (hosts, prefix) = match rest.split_once('/') {
            Some((hosts, prefix)) => (hosts, prefix.trim_matches('/')),
            None => (rest, ""),
        };
        if hosts.contains('@') {
            return Err(
                "a password does not belong in an address: say --store-user and --store-password-file".to_owned()
            );
        }
        let read = |host: &str| HostPort::parse(host, PORT).map_err(|e| format!("{host:?}: {e}"));
        let endpoints = hosts.split(',').map(read).collect::<Result<_, _>>()?;
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if !prefix.chars().all(fine) {
            return Err(format!("the prefix {prefix:?} may hold letters, digits, - _ . and /"));
        }
        Ok(Self { scheme, endpoints, prefix: (!prefix.is_empty()).then(|| format!("/{prefix}")) })
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.scheme == Scheme::Tls { "etcds" } else { "etcd" };
        let endpoints: Vec<String> = self.endpoints.iter().map(ToString::to_string).collect();
        write!(f, "{scheme}://{}{}", endpoints.join(","), self.prefix.as_deref().unwrap_or_default())
    }
}

impl StoreArgs {
    /// The store, if one was named.
    ///
    /// # Errors
    /// [`Failure::Usage`]: what was said contradicts itself.
    pub(crate) fn settings(self) -> Result<Option<StoreSettings>, Failure> {
        let Some(url) = self.store else { return Ok(None) };
        let both = |what, a: bool, b: bool| match a == b {
            true => Ok(()),
            false => Err(Failure::Usage(format!("{what} belong together: give both, or none"))),
        };
        both("--store-cert and --store-key", self.store_cert.is_some(), self.store_key.is_some())?;
        both("--store-user and --store-password-file", self.store_user.is_some(), self.store_password_file.is_some())?;
        let secured = self.store_ca.is_some() || self.store_cert.is_some();
        if url.scheme == Scheme::Plain && secured {
            return Err(Failure::Usage(format!(
                "--store {url} is without TLS, so certificates are of no use: write etcds://"
            )));
        }
        let identity = self.store_cert.zip(self.store_key);
        Ok(Some(StoreSettings {
            endpoints: url.endpoints.iter().map(ToString::to_string).collect(),
            prefix: url.prefix,
            tls: (url.scheme == Scheme::Tls).then_some(StoreTls { ca: self.store_ca, identity }),
            login: self
                .store_user
                .zip(self.store_password_file)
                .map(|(user, password_file)| StoreLogin { user, password_file }),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_stores() {
        for (text, shown) in [
            ("etcd://127.0.0.1", "etcd://127.0.0.1:2379"),
            ("etcd://a:1,b:2", "etcd://a:1,b:2"),
            ("etcds://a.example.org:2379/prod/", "etcds://a.example.org:2379/prod"),
            ("etcd://[::1]:7,10.0.0.1", "etcd://[::1]:7,10.0.0.1:2379"),
        ] {
            assert_eq!(StoreUrl::parse(text).map(|url| url.to_string()).as_deref(), Ok(shown));
        }
        for (text, says) in [
            ("127.0.0.1:2379", "etcd://"),
            ("redis://a", "redis:// is no store"),
            ("etcd://", "without a port"),
            ("etcd://a:x", "not a port"),
            ("etcd://root:secret@a", "--store-password-file"),
            ("etcd://a/b c", "prefix"),
        ] {
            let error = StoreUrl::parse(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
