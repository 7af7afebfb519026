//! Brokers that the executor connects to: their addresses, credentials in files, and TLS.

mod stream;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

pub(crate) use self::stream::BrokerStream;

/// Longest wait for a connection, and for what does not wait by itself.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// A broker, and what it asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broker {
    /// URL without a password. There may be several of NATS, with commas between them.
    pub(crate) url: String,
    pub(crate) login: Login,
    pub(crate) tls: Option<TlsFiles>,
}

/// Credentials, in files that are read for each new connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) token_file: Option<PathBuf>,
    /// A `.creds` file of NATS: a signed token and the key that proves it.
    pub(crate) credentials_file: Option<PathBuf>,
}

/// Certificates towards a broker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TlsFiles {
    /// CAs of its certificate (PEM). `None`: those of the machine.
    pub(crate) ca: Option<PathBuf>,
    /// The executor's own certificate and its key (PEM).
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// A file with one secret in it.
///
/// # Errors
/// It cannot be read, or is empty.
pub(crate) fn secret(file: &Path) -> Result<String, String> {
    let text = fs_err::read_to_string(file).map_err(|error| error.to_string())?;
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("{}: the file is empty", file.display()));
    }
    Ok(text.to_owned())
}

impl Login {
    /// The password, as its file has it now.
    pub(crate) fn password(&self) -> Result<Option<String>, String> {
        self.password_file.as_deref().map(secret).transpose()
    }

    /// The token, as its file has it now.
    pub(crate) fn token(&self) -> Result<Option<String>, String> {
        self.token_file.as_deref().map(secret).transpose()
    }

    /// The credentials, as their file has them now.
    pub(crate) fn credentials(&self) -> Result<Option<String>, String> {
        self.credentials_file.as_deref().map(secret).transpose()
    }
}

impl TlsFiles {
    /// Settings of connections, from the files as they are now.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(file) => {
                for certificate in certificates(file)? {
                    roots.add(certificate).map_err(|error| format!("{}: {error}", file.display()))?;
                }
            }
            // Those that cannot be read are missed when they would have been needed.
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let named = |error: &dyn std::fmt::Display| format!("{}: {error}", key.display());
                let parsed = PrivateKeyDer::from_pem_file(key).map_err(|error| named(&error))?;
                config.with_client_auth_cert(certificates(chain)?, parsed).map_err(|error| named(&error))?
            }
        };
        Ok(Arc::new(config))
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => Err(named(&"there is no certificate in it")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(named(&error)),
    }
}

impl Broker {
    /// Reads all of its files once, so that a wrong one is told before anything serves.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.login.password()?;
        self.login.token()?;
        self.login.credentials()?;
        self.tls.as_ref().map_or(Ok(()), |tls| tls.config().map(drop))
    }
}
