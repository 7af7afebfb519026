//! TLS of a port for clients: its files, and what follows from them.
//!
//! ```text
//! load ─→ current ──a file changed, all still good──→ current: handshakes from now on use it
//!            └──a file changed, something is wrong──→ as it was, and one warning
//! ```
//!
//! Connections that are open stay as they are.

mod files;
mod first_day;
mod follow;
mod pinned;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use arc_swap::ArcSwap;
use rustls::{
    RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::{
        CryptoProvider,
        aws_lc_rs::{self, Ticketer},
    },
    pki_types::CertificateDer,
    server::{NoClientAuth, NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::SingleCertAndKey,
    version::{TLS12, TLS13},
};

pub use self::first_day::SelfMade;
use self::{
    files::{Parts, PortFiles},
    pinned::PinnedOrIssued,
};

/// Protocols that a client may choose from.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Files and rules of a port's TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// Certificate chain, the server's own first (PEM).
    pub certificate: PathBuf,
    /// Key of the certificate (PEM).
    pub key: PathBuf,
    /// Rule for certificates of clients.
    pub clients: ClientAuth,
    /// Oldest version that clients may speak.
    pub oldest: TlsVersion,
}

/// Handling of client certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAuth {
    /// Clients are not asked for one.
    Off,
    /// Clients may show one of these CAs (PEM), or one that is in the file itself. Any other ends the handshake.
    Optional(PathBuf),
    /// Clients must show one of these CAs (PEM), or one that is in the file itself.
    Required(PathBuf),
}

/// The least version of TLS that clients may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2, with the cipher suites that still count as good.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// Reason why TLS cannot be had, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read; the error names it.
    #[error("{0}")]
    File(#[from] io::Error),
    /// A file is not what it should be.
    #[error("{}: {reason}", file.display())]
    Unusable {
        /// Path of the file.
        file: PathBuf,
        /// Problem and remedy.
        reason: String,
    },
}

impl TlsError {
    fn unusable(file: &Path, reason: impl Into<String>) -> Self {
        Self::Unusable { file: file.to_owned(), reason: reason.into() }
    }
}

impl ClientAuth {
    /// CA certificates that clients' come from.
    #[must_use]
    pub fn ca(&self) -> Option<&Path> {
        match self {
            Self::Off => None,
            Self::Optional(ca) | Self::Required(ca) => Some(ca),
        }
    }
}

/// TLS of one or several ports. Clones are the same one. `Debug` shows no secret.
#[derive(Clone)]
pub struct PortTls(Arc<Inner>);

struct Inner {
    settings: TlsSettings,
    current: ArcSwap<Current>,
}

/// All that follows from the files as they are now.
struct Current {
    config: Arc<ServerConfig>,
    ends: Option<SystemTime>,
    /// To tell whether the files changed.
    digest: Vec<u8>,
}

impl fmt::Debug for PortTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortTls").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

impl PortTls {
    /// Reads the files and checks that they belong together. Blocking.
    ///
    /// # Errors
    /// A file that cannot be used, and the remedy.
    pub fn load(settings: TlsSettings) -> Result<Self, TlsError> {
        let current = Current::of(&settings, &PortFiles::read(&settings)?)?;
        Ok(Self(Arc::new(Inner { settings, current: ArcSwap::from_pointee(current) })))
    }

    /// Settings that it was loaded with; files that changed since are in use all the same.
    #[must_use]
    pub fn settings(&self) -> &TlsSettings {
        &self.0.settings
    }

    /// End of the certificate's validity.
    #[must_use]
    pub fn ends(&self) -> Option<SystemTime> {
        self.0.current.load().ends
    }

    /// Reads the files again and uses them from now on, if they changed. Says whether they did. Blocking.
    ///
    /// # Errors
    /// What is wrong with the new files; the old ones stay in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let files = PortFiles::read(&self.0.settings)?;
        if files.digest() == self.0.current.load().digest {
            return Ok(false);
        }
        let current = Current::of(&self.0.settings, &files)?;
        if current.ends.is_some_and(|end| end < SystemTime::now()) {
            return Err(TlsError::unusable(&self.0.settings.certificate, "expired: put a new certificate there"));
        }
        self.0.current.store(Arc::new(current));
        Ok(true)
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.current.load().config)
    }
}

impl Current {
    fn of(settings: &TlsSettings, files: &PortFiles) -> Result<Self, TlsError> {
        let parts = Parts::of(settings, files)?;
        let wrong =
            |error: rustls::Error| TlsError::unusable(&settings.certificate, format!("cannot be used ({error})"));
        let certified = parts.certified(settings, &suites())?;
        let (asks, verifier) = verifier(settings, parts.roots, parts.clients)?;
        let mut config = ServerConfig::builder_with_provider(suites())
            .with_protocol_versions(&versions(settings.oldest))
            .map_err(wrong)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        // Most clients name AES-256 first, out of habit.
        config.ignore_client_order = true;
        if asks {
            // A session that is resumed shows no certificate again, and would outlive it.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        } else {
            config.ticketer = Ticketer::new().map_err(wrong)?;
        }
        Ok(Self { config: Arc::new(config), ends: parts.ends, digest: files.digest() })
    }
}

/// aws-lc, with AES-128 before the other cipher suites, as at the peer port. For servers and clients.
#[must_use]
pub fn suites() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    let aes_128 = |suite: &rustls::SupportedCipherSuite| format!("{:?}", suite.suite()).contains("AES_128");
    // Stable: among equals the order stays. AES-128 is as good for this, and takes a third less time.
    provider.cipher_suites.sort_by_key(|suite| !aes_128(suite));
    Arc::new(provider)
}

fn versions(oldest: TlsVersion) -> Vec<&'static SupportedProtocolVersion> {
    match oldest {
        TlsVersion::V1_2 => vec![&TLS13, &TLS12],
        TlsVersion::V1_3 => vec![&TLS13],
    }
}

/// The verifier of client certificates, and whether it asks for one.
fn verifier(
    settings: &TlsSettings,
    roots: RootCertStore,
    pinned: Vec<CertificateDer<'static>>,
) -> Result<(bool, Arc<dyn ClientCertVerifier>), TlsError> {
    let Some(ca) = settings.clients.ca() else { return Ok((false, Arc::new(NoClientAuth))) };
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), suites());
    let builder = match settings.clients {
        ClientAuth::Required(_) => builder,
        ClientAuth::Off | ClientAuth::Optional(_) => builder.allow_unauthenticated(),
    };
    let issued = builder.build().map_err(|error| TlsError::unusable(ca, format!("holds no usable CA ({error})")))?;
    Ok((true, Arc::new(PinnedOrIssued { issued, pinned })))
}

#[cfg(test)]
mod tests;
