//! Address of the cluster's store: `etcd://10.0.0.2:2379,10.0.0.3:2379`, or `etcds://` for TLS, with `/PREFIX` at the
//! end if several clusters share one.

use std::{net::IpAddr, path::PathBuf, str::FromStr as _};

use berth_control::store::etcd::Address;
use clap::Args;

use crate::failure::Failure;

/// Address and credentials of the store.
#[derive(Debug, Args)]
#[command(next_help_heading = "Store of the cluster")]
pub(crate) struct StoreArgs {
    /// Cluster store, etcds:// for TLS. Used only by nodes with the controller role
    #[arg(long, value_name = "etcd://HOST:PORT,…", env = "BERTH_STORE", value_parser = Address::from_str)]
    pub(crate) store: Option<Address>,
    /// CA certificates for the store (PEM) [default: the system's CAs]
    #[arg(long, value_name = "FILE", env = "BERTH_STORE_CA")]
    pub(crate) store_ca: Option<PathBuf>,
    /// Client certificate for the store (PEM)
    #[arg(long, value_name = "FILE", env = "BERTH_STORE_CERT")]
    pub(crate) store_cert: Option<PathBuf>,
    /// Key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", env = "BERTH_STORE_KEY")]
    pub(crate) store_key: Option<PathBuf>,
    /// etcd user name
    #[arg(long, value_name = "NAME", env = "BERTH_STORE_USER")]
    pub(crate) store_user: Option<String>,
    /// File with the password of the etcd user
    #[arg(long, value_name = "FILE", env = "BERTH_STORE_PASSWORD_FILE")]
    pub(crate) store_password_file: Option<PathBuf>,
}

/// A store that can be connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreSettings {
    /// Address of the store.
    pub(crate) address: Address,
    /// TLS settings; `None` for plain connections.
    pub(crate) tls: Option<StoreTls>,
    /// User and password.
    pub(crate) login: Option<StoreLogin>,
}

/// TLS settings of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreTls {
    /// The authorities that its certificate may come from (PEM); `None`: those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// The certificate to show and its key (PEM).
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// User and password of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreLogin {
    /// User name.
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

impl StoreSettings {
    /// Refuses a store on another machine without TLS: who reads the network reads its password, and who writes there
    /// declares deployments, which are code.
    ///
    /// # Errors
    /// [`Failure::Usage`]: the address and the remedy.
    pub(crate) fn check_exposed(&self) -> Result<(), Failure> {
        if self.address.tls {
            return Ok(());
        }
        match self.address.endpoints.iter().find(|endpoint| !is_loopback(endpoint)) {
            None => Ok(()),
            Some(endpoint) => Err(Failure::Usage(format!(
                "--store etcd://{endpoint} is on another machine and has no TLS: write etcds://, or say --insecure"
            ))),
        }
    }
}

/// True for `HOST:PORT` of this machine.
pub(super) fn is_loopback(endpoint: &str) -> bool {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
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
        if !url.tls && secured {
            return Err(Failure::Usage(format!(
                "--store {url} is without TLS, so certificates are of no use: write etcds://"
            )));
        }
        let identity = self.store_cert.zip(self.store_key);
        Ok(Some(StoreSettings {
            tls: url.tls.then_some(StoreTls { ca: self.store_ca, identity }),
            address: url,
            login: self
                .store_user
                .zip(self.store_password_file)
                .map(|(user, password_file)| StoreLogin { user, password_file }),
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TestArgs {
        #[command(flatten)]
        args: StoreArgs,
    }

    #[test]
    fn an_address_that_is_none_is_told_by_its_flag() {
        for (text, says) in [
            ("127.0.0.1:2379", "etcd://"),
            ("redis://a", "etcds://"),
            ("etcd://a:x", "expected HOST:PORT"),
            ("etcd://root:secret@a", "use --store-user"),
            ("etcd://a/b c", "prefix"),
        ] {
            let error = TestArgs::try_parse_from(["node", "--store", text]).expect_err(text).to_string();
            assert!(error.contains("--store") && error.contains(says), "{text}: {error}");
        }
    }
}
