//! TLS between nodes: 1.3 only, both ends show a certificate of the cluster's CA, and the name in it counts.

use std::sync::{Arc, LazyLock};

use berth_spec::WorkerId;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{Resumption, WebPkiServerVerifier},
    crypto::{
        CryptoProvider,
        aws_lc_rs::{
            self,
            cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256},
        },
    },
    pki_types::{CertificateDer, DnsName, ServerName},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};

use crate::pki::{DOMAIN, Identity, name_in};

/// What both ends must agree to speak.
const ALPN: &[u8] = b"h2";

/// aws-lc, with TLS 1.3 alone. AES-128 comes first: it is as good for this, and tensors take a third less time to seal.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
        Arc::new(CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() })
    });
    Arc::clone(&PROVIDER)
}

/// How this node takes connections of others, by its certificates of now.
#[must_use]
pub fn server_config(identity: &Identity) -> Arc<ServerConfig> {
    Arc::clone(&identity.current().server)
}

/// How this node dials others, by its certificates of now.
#[must_use]
pub fn client_config(identity: &Identity) -> Arc<ClientConfig> {
    Arc::clone(&identity.current().client)
}

/// The name that the certificate of the node `name` must have.
///
/// # Errors
/// No certificate can have it.
pub(crate) fn server_name(name: &WorkerId) -> Result<ServerName<'static>, String> {
    DnsName::try_from(format!("{name}{DOMAIN}"))
        .map(ServerName::DnsName)
        .map_err(|_| format!("no certificate can be for a node named {name}"))
}

/// Who is at the other end, by its certificate.
pub(crate) fn caller(certificates: Option<&[CertificateDer<'static>]>) -> Option<WorkerId> {
    name_in(certificates?.first()?)
}

// Neither side resumes sessions: lines are few and live long, and a resumed session would outlive its CA.

pub(crate) fn client(roots: Arc<RootCertStore>, own: Arc<CertifiedKey>) -> Result<ClientConfig, String> {
    let verifier =
        WebPkiServerVerifier::builder_with_provider(roots, provider()).build().map_err(|error| error.to_string())?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .with_webpki_verifier(verifier)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

pub(crate) fn server(roots: Arc<RootCertStore>, own: Arc<CertifiedKey>) -> Result<ServerConfig, String> {
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(|error| error.to_string())?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
