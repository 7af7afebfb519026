//! TLS between nodes: 1.3 only, both ends show a certificate of the cluster's CA, and the name in it counts.

use std::{
    io,
    sync::{Arc, LazyLock},
};

use berth_spec::{Roles, WorkerId};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, InvalidMessage,
    RootCertStore, ServerConfig, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{
        CryptoProvider,
        aws_lc_rs::{
            self,
            cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256},
        },
    },
    pki_types::{CertificateDer, DnsName, ServerName, UnixTime},
    server::{
        NoServerSessionStorage, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};

use crate::pki::{DOMAIN, Identity, NodeCertificate, RevocationList, certifies};

/// Protocol that both ends must agree on (HTTP/2).
pub(crate) const ALPN: &[u8] = b"h2";

/// Describes a failed handshake for people.
pub(crate) fn explain(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            format!("its certificate is of another CA than those in ca.pem ({error})")
        }
        Some(Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. })) => {
            format!("its certificate expired: issue a new one with `berth pki issue` ({error})")
        }
        Some(Error::InvalidCertificate(CertificateError::Revoked)) => {
            "its certificate is revoked: `berth pki revocations` says by whom and why".to_owned()
        }
        Some(Error::AlertReceived(AlertDescription::CertificateRevoked)) => {
            format!("it refuses this node's certificate, which is revoked ({error})")
        }
        Some(Error::AlertReceived(
            AlertDescription::UnknownCA | AlertDescription::DecryptError | AlertDescription::BadCertificate,
        )) => format!(
            "it does not take this node's certificate, which is of another CA than those that it trusts ({error})"
        ),
        Some(Error::NoCertificatesPresented) => format!("it shows no certificate ({error})"),
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => format!("it does not speak TLS ({error})"),
        _ => error.to_string(),
    }
}

/// True if the other end said that this node's certificate is revoked.
pub(crate) fn is_revoked(error: &io::Error) -> bool {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(tls, Some(Error::AlertReceived(AlertDescription::CertificateRevoked)))
}

/// aws-lc, with TLS 1.3 alone. AES-128 comes first: it is as good for this, and tensors take a third less time to seal.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
        Arc::new(CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() })
    });
    Arc::clone(&PROVIDER)
}

/// Client configuration with the current certificates.
#[must_use]
pub fn client_config(identity: &Identity) -> Arc<ClientConfig> {
    Arc::clone(&identity.current().client)
}

/// By what name the node `name` is dialled; [`NodeVerifier`] says which certificates are good for it.
///
/// # Errors
/// No certificate can have it.
pub(crate) fn server_name(name: &WorkerId) -> Result<ServerName<'static>, String> {
    DnsName::try_from(format!("{name}{DOMAIN}"))
        .map(ServerName::DnsName)
        .map_err(|_| format!("no certificate can be for a node named {name}"))
}

/// Checks the certificate of a node that was dialled: its chain as [`WebPkiServerVerifier`] does, its name by
/// [`certifies`].
#[derive(Debug)]
struct NodeVerifier {
    chains: Arc<WebPkiServerVerifier>,
    revocations: Arc<RevocationList>,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        dialled: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // Where its name is good for the node that was meant, that name is what must be in it; else the one that was
        // dialled, which is then refused in the words that all know.
        let certificate = NodeCertificate::read(end_entity);
        let named = certificate.as_ref().map(|certificate| &certificate.name);
        let named = named.filter(|named| node_of(dialled).is_some_and(|node| certifies(named, &node)));
        let named = named.and_then(|named| server_name(named).ok());
        let wanted = named.as_ref().unwrap_or(dialled);
        let verified = self.chains.verify_server_cert(end_entity, intermediates, wanted, ocsp_response, now)?;
        valid(certificate.as_ref(), &self.revocations)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Checks the certificate of a node that dials: its chain as [`WebPkiClientVerifier`] does, and that it is not revoked.
#[derive(Debug)]
struct DiallerVerifier {
    chains: Arc<dyn ClientCertVerifier>,
    revocations: Arc<RevocationList>,
}

impl ClientCertVerifier for DiallerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chains.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chains.verify_client_cert(end_entity, intermediates, now)?;
        valid(NodeCertificate::read(end_entity).as_ref(), &self.revocations)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Refuses a certificate that is revoked. One that names no node is refused in other words, after the handshake.
fn valid(certificate: Option<&NodeCertificate>, revocations: &RevocationList) -> Result<(), Error> {
    match certificate {
        Some(certificate) if revocations.covers(certificate) => Err(CertificateError::Revoked.into()),
        _ => Ok(()),
    }
}

/// The node of a server name, which ends in [`DOMAIN`]; `None`: it is another name.
fn node_of(dialled: &ServerName<'_>) -> Option<WorkerId> {
    let ServerName::DnsName(name) = dialled else { return None };
    WorkerId::new(name.as_ref().strip_suffix(DOMAIN)?).ok()
}

/// The other end of a connection, by its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The node's name, from the certificate.
    pub name: WorkerId,
    /// The roles in it: what the node may do, whatever it says of itself.
    pub roles: Roles,
    /// All that it says.
    pub certificate: Arc<NodeCertificate>,
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.name.fmt(f)
    }
}

/// Reads who the other end is.
///
/// # Errors
/// What its certificate lacks.
pub(crate) fn caller(certificates: Option<&[CertificateDer<'static>]>) -> Result<Caller, String> {
    let certificate = certificates.and_then(<[_]>::first).and_then(NodeCertificate::read);
    let certificate = certificate.ok_or("its certificate names no node: issue one with `berth pki issue`")?;
    let (name, roles) = (certificate.name.clone(), certificate.roles);
    if roles == Roles::NONE {
        return Err(format!(
            "the certificate of {name} names no roles, as those of earlier versions: issue it again with `berth pki issue`"
        ));
    }
    Ok(Caller { name, roles, certificate: Arc::new(certificate) })
}

// Neither side resumes sessions: lines are few and live long, and a resumed session would outlive its CA.

pub(crate) fn client(
    roots: Arc<RootCertStore>,
    own: Arc<CertifiedKey>,
    revocations: &Arc<RevocationList>,
) -> Result<ClientConfig, String> {
    let chains =
        WebPkiServerVerifier::builder_with_provider(roots, provider()).build().map_err(|error| error.to_string())?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(NodeVerifier { chains, revocations: Arc::clone(revocations) }))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

pub(crate) fn server(
    roots: Arc<RootCertStore>,
    own: Arc<CertifiedKey>,
    revocations: &Arc<RevocationList>,
) -> Result<ServerConfig, String> {
    let chains =
        WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(|error| error.to_string())?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(Arc::new(DiallerVerifier { chains, revocations: Arc::clone(revocations) }))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
