//! Clients whose own certificate is in the file of CAs: they are trusted as they are, whoever issued it.
//!
//! Web PKI's rules take a certificate in that file for a CA alone, and refuse a client that shows a self-signed one itself. Other
//! servers accept it, and small set-ups are made so.

use std::{sync::Arc, time::Duration};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use x509_parser::parse_x509_certificate;

/// A verifier that also accepts the certificates of the file themselves, while they are valid.
#[derive(Debug)]
pub(super) struct PinnedOrIssued {
    /// Verifier of certificates that the CAs issued, and of all signatures.
    pub(super) issued: Arc<dyn ClientCertVerifier>,
    /// Certificates of the file, any of which a client may show.
    pub(super) pinned: Vec<CertificateDer<'static>>,
}

impl ClientCertVerifier for PinnedOrIssued {
    fn offer_client_auth(&self) -> bool {
        self.issued.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.issued.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.issued.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.pinned.iter().any(|pinned| pinned == end_entity) {
            return valid_at(end_entity, now).map(|()| ClientCertVerified::assertion());
        }
        self.issued.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issued.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issued.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.issued.supported_verify_schemes()
    }
}

fn valid_at(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let (_, parsed) =
        parse_x509_certificate(certificate).map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let at = |seconds: i64| UnixTime::since_unix_epoch(Duration::from_secs(seconds.try_into().unwrap_or(0)));
    let validity = parsed.validity();
    if now < at(validity.not_before.timestamp()) {
        return Err(Error::InvalidCertificate(CertificateError::NotValidYet));
    }
    if at(validity.not_after.timestamp()) < now {
        return Err(Error::InvalidCertificate(CertificateError::Expired));
    }
    Ok(())
}
