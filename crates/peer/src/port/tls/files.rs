//! The files of a port's TLS, read and held against each other.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

use aws_lc_rs::digest::{SHA256, digest};
use fs_err as fs;
use rustls::{
    InconsistentKeys, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use x509_parser::parse_x509_certificate;

use super::{TlsError, TlsSettings};

/// The bytes of the certificate, the key and the CAs of clients.
pub(super) struct PortFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
}

/// The files as they parse.
pub(super) struct Parts {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// CAs of clients; none where clients are not asked.
    pub(super) roots: RootCertStore,
    /// The same certificates, and those of clients among them.
    pub(super) clients: Vec<CertificateDer<'static>>,
    /// End of the certificate's validity.
    pub(super) ends: Option<SystemTime>,
}

impl PortFiles {
    pub(super) fn read(settings: &TlsSettings) -> Result<Self, TlsError> {
        let ca = settings.clients.ca().map(fs::read).transpose()?;
        Ok(Self {
            certificate: fs::read(&settings.certificate)?,
            key: fs::read(&settings.key)?,
            ca: ca.unwrap_or_default(),
        })
    }

    pub(super) fn digest(&self) -> Vec<u8> {
        [&self.certificate, &self.key, &self.ca]
            .into_iter()
            .flat_map(|file| digest(&SHA256, file).as_ref().to_vec())
            .collect()
    }
}

impl Parts {
    pub(super) fn of(settings: &TlsSettings, files: &PortFiles) -> Result<Self, TlsError> {
        let chain = certificates(&settings.certificate, &files.certificate)?;
        let (mut roots, mut clients) = (RootCertStore::empty(), Vec::new());
        if let Some(ca) = settings.clients.ca() {
            clients = certificates(ca, &files.ca)?;
            for root in clients.iter().cloned() {
                roots.add(root).map_err(|error| TlsError::unusable(ca, format!("holds no usable CA ({error})")))?;
            }
        }
        let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(|error| {
            let reason = format!("is not PEM with a private key without a passphrase ({error})");
            TlsError::unusable(&settings.key, reason)
        })?;
        let ends = chain.first().and_then(ends);
        Ok(Self { chain, key, roots, clients, ends })
    }

    /// The certificate with its key.
    pub(super) fn certified(
        &self,
        settings: &TlsSettings,
        provider: &CryptoProvider,
    ) -> Result<CertifiedKey, TlsError> {
        CertifiedKey::from_der(self.chain.clone(), self.key.clone_key(), provider).map_err(|error| {
            let certificate = settings.certificate.display();
            let reason = match error {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    format!("is not the key of {certificate}: the two files must be made together")
                }
                other => format!("cannot be used with {certificate} ({other})"),
            };
            TlsError::unusable(&settings.key, reason)
        })
    }
}

/// Warns of a key that every user of this machine may read. Containers are often given such files, so it is not refused.
pub(super) fn warn_of_readable(key: &Path) {
    if fs::metadata(key).is_ok_and(|found| found.permissions().mode() & 0o007 != 0) {
        let key = key.display();
        tracing::warn!(event = "tls_key_readable", %key, "every user of this machine may read the key: run chmod 600 on it");
    }
}

fn certificates(file: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    let read = read.map_err(|error| TlsError::unusable(file, format!("is not PEM with certificates ({error})")))?;
    match read.is_empty() {
        true => Err(TlsError::unusable(file, "holds no certificate: expected PEM with BEGIN CERTIFICATE")),
        false => Ok(read),
    }
}

pub(super) fn ends(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, parsed) = parse_x509_certificate(certificate).ok()?;
    let seconds = u64::try_from(parsed.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}
