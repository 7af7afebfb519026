//! Address of the cluster's store: `etcd://10.0.0.2:2379,10.0.0.3:2379`, or `etcds://` for TLS, with `/PREFIX` at the
//! end if several clusters share one. Certificates and the user of an etcd, which sources in etcd have as well.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr as _,
};

use berth_control::store::etcd::{Address, EtcdConfig, EtcdCredentials, EtcdTls};
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
    /// The way to prove who asks: certificates, and a user with a password.
    pub(crate) access: EtcdAccess,
}

/// Certificates and the user of an etcd, as options say them.
#[derive(Debug, Default)]
pub(super) struct EtcdOptions {
    pub(super) ca: Option<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) user: Option<String>,
    pub(super) password_file: Option<PathBuf>,
}

/// Certificates and the user of an etcd, which go together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EtcdAccess {
    tls: Option<TlsFiles>,
    login: Option<Login>,
}

/// Certificates of an etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TlsFiles {
    /// The authorities that its certificate may come from (PEM); `None`: those of the system.
    ca: Option<PathBuf>,
    /// The certificate to show and its key (PEM).
    identity: Option<(PathBuf, PathBuf)>,
}

/// User and password of an etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Login {
    user: String,
    password_file: PathBuf,
}

impl EtcdOptions {
    /// The first one that is given, by the end of its name.
    pub(super) fn given(&self) -> Option<&'static str> {
        let all = [
            ("ca", self.ca.is_some()),
            ("cert", self.cert.is_some()),
            ("key", self.key.is_some()),
            ("user", self.user.is_some()),
            ("password-file", self.password_file.is_some()),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    /// Checks that they go together. `flag` is the beginning of their names, `address` the flag with the address, `tls` its kind of
    /// connection, and `secure` the scheme that asks for TLS.
    ///
    /// # Errors
    /// [`Failure::Usage`]: what was said contradicts itself.
    pub(super) fn checked(self, flag: &str, address: &str, tls: bool, secure: &str) -> Result<EtcdAccess, Failure> {
        let both = |a: &str, b: &str, given: (bool, bool)| match given.0 == given.1 {
            true => Ok(()),
            false => Err(Failure::Usage(format!("{flag}-{a} and {flag}-{b} belong together: give both, or none"))),
        };
        both("cert", "key", (self.cert.is_some(), self.key.is_some()))?;
        both("user", "password-file", (self.user.is_some(), self.password_file.is_some()))?;
        if !tls && (self.ca.is_some() || self.cert.is_some()) {
            return Err(Failure::Usage(format!(
                "{address} is without TLS, so certificates are of no use: write {secure}"
            )));
        }
        Ok(EtcdAccess {
            tls: tls.then_some(TlsFiles { ca: self.ca, identity: self.cert.zip(self.key) }),
            login: self.user.zip(self.password_file).map(|(user, password_file)| Login { user, password_file }),
        })
    }
}

impl EtcdAccess {
    /// Adds what the files hold to a configuration. Blocks. `flag` is the beginning of the options' names.
    ///
    /// # Errors
    /// The option and its file, which cannot be read.
    pub(crate) fn add_to(&self, config: EtcdConfig, flag: &str) -> Result<EtcdConfig, Failure> {
        let credentials = self
            .login
            .as_ref()
            .map(|login| Ok::<_, Failure>(EtcdCredentials { user: login.user.clone(), password: login.password()? }));
        Ok(EtcdConfig {
            tls: self.tls.as_ref().map(|files| files.read(flag)).transpose()?,
            credentials: credentials.transpose()?,
            ..config
        })
    }
}

impl TlsFiles {
    fn read(&self, flag: &str) -> Result<EtcdTls, Failure> {
        let named = self.ca.iter().map(|ca| ("ca", ca));
        let named = named.chain(self.identity.iter().flat_map(|(cert, key)| [("cert", cert), ("key", key)]));
        for (name, file) in named {
            readable(&format!("{flag}-{name}"), file)?;
        }
        let identity = self.identity.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        EtcdTls::read(self.ca.as_deref(), identity)
            .map_err(|error| Failure::Usage(format!("{flag}-ca, {flag}-cert and {flag}-key: {error}")))
    }
}

/// Says which setting names a file that is not there: three of them do.
fn readable(flag: &str, file: &Path) -> Result<(), Failure> {
    match std::fs::File::open(file) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Usage(format!("{flag} {}: {error}", file.display()))),
    }
}

impl Login {
    /// Reads the password, without the end of the line.
    ///
    /// # Errors
    /// [`Failure::Failed`], [`Failure::NotFound`]: the file cannot be read, or is empty.
    fn password(&self) -> Result<String, Failure> {
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
        let Some(address) = self.store else { return Ok(None) };
        let options = EtcdOptions {
            ca: self.store_ca,
            cert: self.store_cert,
            key: self.store_key,
            user: self.store_user,
            password_file: self.store_password_file,
        };
        let access = options.checked("--store", &format!("--store {address}"), address.tls, "etcds://")?;
        Ok(Some(StoreSettings { address, access }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn what_the_files_hold_is_read_and_a_missing_one_is_told_by_its_flag() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs_err::write(&path, text).expect("written");
            Some(path)
        };
        let options = EtcdOptions {
            ca: file("ca", "authority"),
            cert: file("cert", "certificate"),
            key: file("key", "key"),
            user: Some("me".to_owned()),
            password_file: file("password", "secret\n"),
        };
        let config = EtcdConfig::parse("etcds://a:1/p").expect("an address");
        let access = options.checked("--x", "--x etcds://a:1", true, "etcds://").expect("they go together");
        let read = access.add_to(config.clone(), "--x").expect("read");
        assert_eq!((&read.endpoints, &read.prefix), (&config.endpoints, &config.prefix));
        let tls = read.tls.expect("TLS");
        assert_eq!(tls.authorities.as_deref(), Some(b"authority".as_slice()));
        assert_eq!(tls.identity, Some((b"certificate".to_vec(), b"key".to_vec())));
        assert_eq!(read.credentials, Some(EtcdCredentials { user: "me".to_owned(), password: "secret".to_owned() }));

        let options = EtcdOptions { ca: Some("/nowhere/ca.pem".into()), ..EtcdOptions::default() };
        assert_eq!(options.given(), Some("ca"));
        let access = options.checked("--x", "--x etcds://a:1", true, "etcds://").expect("they go together");
        let error = access.add_to(config, "--x").expect_err("it is not there").to_string();
        assert_eq!(error, "--x-ca /nowhere/ca.pem: No such file or directory (os error 2)");
    }

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
