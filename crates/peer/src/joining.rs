//! Requests of nodes for a certificate: over TLS to the port for other nodes, under a server name of its own.
//!
//! ```text
//! new node ── server name join.berth ──▶ a controller shows its chain, its CA included, and asks for no certificate
//!     │ the CA has the fingerprint in the join token, and the chain leads to it?  else it ends here, nothing was said
//!     └── POST /certify/join: the token's secret, its name, its key's request ──▶ Issued
//! ```
//! One request is answered on such a connection, and a few connections at a time; all else on the port needs a certificate.

use std::{net::IpAddr, sync::Arc, time::Duration};

use berth_spec::WorkerId;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::verify_tls13_signature,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, TrustAnchor, UnixTime},
    server::NoServerSessionStorage,
    version::TLS13,
};
use serde::{Deserialize, Serialize};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsConnector;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::{
    pki::{JoinToken, NodeCertificate, fingerprint},
    tls::{ALPN, explain, provider},
};

/// Server name by which a node that has no certificate says so.
pub(crate) const SERVER_NAME: &str = "join.berth";

/// Address that a node without a certificate dials from, among the extensions of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DialledFrom(pub IpAddr);

/// Path of a request for a first certificate.
pub const JOIN: &str = "/certify/join";

/// Path of a request for the next certificate of a node that shows its present one.
pub const RENEW: &str = "/certify/renew";

/// Limit for one controller to answer. Allows for a CA key in a token behind a network.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for which a node goes on asking. The name of a node that was stopped is free once the others have noticed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pause between two rounds of asking: a leader that is being elected is there after one or two.
const ROUND_PAUSE: Duration = Duration::from_secs(2);

/// Largest answer: some certificates, keys and addresses.
const ANSWER: usize = 256 << 10;

/// A request for a first certificate.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    /// Secret of the join token; or another proof, for controllers that have somebody to attest it.
    pub secret: String,
    /// Name that the node wants.
    pub node: WorkerId,
    /// The request for a certificate (PKCS#10, PEM), signed with the node's key.
    pub request: String,
}

/// A request for the next certificate.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewRequest {
    /// The request for a certificate (PKCS#10, PEM), signed with the node's key.
    pub request: String,
}

/// A certificate that was issued, and what belongs to it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Issued {
    /// The certificate and those between it and the CA, in PEM.
    pub certificate: String,
    /// The CAs that nodes trust, in PEM.
    pub authorities: String,
    /// The text of gossip.key; none: it is as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gossip: Option<String>,
    /// Gossip addresses of some members; only for a first certificate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
}

/// An answer that is no certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotIssued {
    /// Problem and remedy.
    pub error: String,
    /// True if another controller may answer, or the same one later.
    #[serde(default)]
    pub elsewhere: bool,
}

/// Reason why a node did not get a certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The cluster refuses: another attempt with the same token has the same end.
    #[error("{at} gives this node no certificate: {reason}")]
    Refused {
        /// Address of the controller.
        at: String,
        /// Problem and remedy.
        reason: String,
    },
    /// No controller answers with a certificate.
    #[error("no controller gives this node a certificate: {0}")]
    Unreachable(String),
}

/// Asks the controllers of a join token for a certificate, one after the other, and again while they may answer later.
///
/// # Errors
/// None issues one within 20 seconds, or one refuses.
pub async fn join(token: &JoinToken, node: &WorkerId, request: &str) -> Result<Issued, JoinError> {
    let body = JoinRequest { secret: token.secret.clone(), node: node.clone(), request: request.to_owned() };
    let end = Instant::now() + PATIENCE;
    loop {
        match ask_all(token, &body).await {
            Err(JoinError::Unreachable(_)) if Instant::now() < end => sleep(ROUND_PAUSE).await,
            ended => return ended,
        }
    }
}

async fn ask_all(token: &JoinToken, body: &JoinRequest) -> Result<Issued, JoinError> {
    let mut tried = Vec::new();
    for at in &token.at {
        let answered = timeout(ANSWER_TIMEOUT, ask(at, &token.ca, body)).await;
        match answered.unwrap_or_else(|_| Err(format!("no answer within {ANSWER_TIMEOUT:?}"))) {
            Ok(Ok(issued)) => return Ok(issued),
            Ok(Err(NotIssued { error, elsewhere: false })) => {
                return Err(JoinError::Refused { at: at.clone(), reason: error });
            }
            Ok(Err(NotIssued { error, elsewhere: true })) => tried.push(format!("{at}: {error}")),
            Err(error) => tried.push(format!("{at}: {error}")),
        }
    }
    Err(JoinError::Unreachable(tried.join("; ")))
}

async fn ask(at: &str, ca: &str, body: &JoinRequest) -> Result<Result<Issued, NotIssued>, String> {
    let stream = TcpStream::connect(at).await.map_err(|error| error.to_string())?;
    let name = ServerName::try_from(SERVER_NAME).map_err(|error| error.to_string())?;
    let connector = TlsConnector::from(Arc::new(client(ca)?));
    let stream = connector.connect(name, stream).await.map_err(|error| explain(&error))?;
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let exchange = async {
        let body = serde_json::to_vec(body).map_err(|error| error.to_string())?;
        let request = Request::post(format!("https://{SERVER_NAME}{JOIN}")).body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| {
            format!("{error}: only controllers with --authority issue certificates, its log says more")
        })?;
        answer(response).await
    };
    tokio::select! {
        answered = exchange => answered,
        ended = connection => Err(format!("the connection ended ({ended:?})")),
    }
}

/// Reads the answer to a request for a certificate.
///
/// # Errors
/// It is none, in words.
pub async fn answer<B>(response: http::Response<B>) -> Result<Result<Issued, NotIssued>, String>
where
    B: hyper::body::Body,
    B::Error: Into<crate::BoxError>,
{
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER).collect().await.map_err(|error| error.to_string())?;
    let body = body.to_bytes();
    match status {
        StatusCode::OK => {
            serde_json::from_slice(&body).map(Ok).map_err(|error| format!("an answer of another form ({error})"))
        }
        _ => serde_json::from_slice(&body)
            .map(Err)
            .map_err(|_| format!("it answers with {status}: is it of an older version?")),
    }
}

/// Configuration of a node that joins: no certificate of its own, and a CA of this fingerprint.
fn client(ca: &str) -> Result<ClientConfig, String> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(FingerprintVerifier { ca: ca.to_owned() }))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// Configuration of the port towards nodes that join: the chain ends in the CA, and no certificate is asked for.
pub(crate) fn server(
    chain: &[CertificateDer<'static>],
    roots: &[CertificateDer<'static>],
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, String> {
    let chain = chain.iter().chain(roots).cloned().collect();
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Takes a controller whose chain leads to a CA with this fingerprint. Its name does not count: the join token is for the
/// cluster.
#[derive(Debug)]
struct FingerprintVerifier {
    ca: String,
}

impl FingerprintVerifier {
    fn anchor<'a>(&self, shown: &'a [CertificateDer<'_>]) -> Result<TrustAnchor<'a>, Error> {
        let ca = shown.iter().find(|certificate| fingerprint(certificate) == self.ca);
        let ca = ca.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        anchor_from_trusted_cert(ca).map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))
    }
}

impl ServerCertVerifier for FingerprintVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let anchors = [self.anchor(intermediates)?];
        let bad = |_| Error::InvalidCertificate(CertificateError::BadEncoding);
        let parsed = EndEntityCert::try_from(end_entity).map_err(bad)?;
        let algorithms = provider().signature_verification_algorithms;
        let usage = KeyUsage::server_auth();
        let verified = parsed.verify_for_usage(algorithms.all, &anchors, intermediates, now, usage, None, None);
        verified.map_err(|error| match error {
            webpki::Error::CertExpired { .. } => Error::InvalidCertificate(CertificateError::Expired),
            _ => Error::InvalidCertificate(CertificateError::UnknownIssuer),
        })?;
        // A worker has a certificate of the CA, too, and issues nothing.
        match NodeCertificate::read(end_entity).is_some_and(|certificate| certificate.roles.controller) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
