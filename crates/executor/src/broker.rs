//! Brokers that the executor connects to: their addresses, credentials in files, and TLS.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::tls::TlsFiles;

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
