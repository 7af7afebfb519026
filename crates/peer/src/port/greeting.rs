//! The beginning of a client's connection: a TLS handshake where the port has TLS, nothing where it has not.
//!
//! ```text
//! accepted ──▶ first byte ── a TLS record ──▶ handshake ──▶ ClientStream, and the client's certificate
//!                 │            │ in 10 s, or closed            │ refused: closed, one line in the log now and then
//!                 └ something else: told in plain HTTP that the port speaks TLS, closed
//! ```
//!
//! A handshake runs on the thread of its connection: a signature or two, some 0.1 ms with an ECDSA key. The bounds of the
//! port count it, and it has an end.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use berth_spec::ClientCertificate;
use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{Damped, Patience, client_certificate, read_ahead::ReadAhead, stream::ClientStream, tls::PortTls};

/// Limit for a handshake. Allows for far and busy clients.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The longest wait for a refused client to close its side: a round trip around the world takes a third of it.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes that are read of a refused client: room for the head of a request.
const REFUSED_BYTES: u64 = 16 << 10;

/// First byte of a TLS connection: a record with a handshake.
const TLS_RECORD: u8 = 22;

/// Answer to a client that speaks plain HTTP to a port with TLS.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 52\r\n\
    connection: close\r\n\r\nThis port speaks TLS: write https:// in its address\n";

/// Bytes of a plain request that are read before it is answered, so that the answer is not lost in a reset.
const PLAIN_HEAD: usize = 8 << 10;

/// Begins the connections of a port. Clones are for the same one.
#[derive(Clone)]
pub struct Greeter {
    port: &'static str,
    tls: Option<PortTls>,
    refused: Arc<Damped>,
}

/// A connection that may speak HTTP.
#[derive(Debug)]
pub struct Greeted {
    /// The connection after its handshake, to be served.
    pub stream: ClientStream,
    /// Certificate that the client showed, verified; `None`: it showed none, or the port asks for none.
    pub certificate: Option<Arc<ClientCertificate>>,
    /// Silences that are left to the connection: the handshake counts.
    pub patience: Patience,
}

impl Greeter {
    pub(super) fn new(port: &'static str, tls: Option<PortTls>) -> Self {
        Self { port, tls, refused: Arc::default() }
    }

    /// Shakes hands, if the port has TLS. `None`: the client was refused, which is told in the log.
    pub async fn greet(&self, stream: TcpStream, patience: Patience) -> Option<Greeted> {
        let Some(tls) = &self.tls else {
            return Some(Greeted { stream: ClientStream::Plain(stream), certificate: None, patience });
        };
        let (began, from) = (Instant::now(), stream.peer_addr());
        let reason = match timeout(HANDSHAKE.min(patience.first), handshake(stream, tls)).await {
            Ok(Ok((stream, certificate))) => {
                let patience = Patience { first: patience.first.saturating_sub(began.elapsed()), ..patience };
                return Some(Greeted { stream, certificate: certificate.map(Arc::new), patience });
            }
            Ok(Err(error)) => explain(&error),
            Err(_) => "it did not finish the handshake in time".to_owned(),
        };
        if let Ok(from) = from {
            self.tell(from, &reason);
        }
        None
    }

    fn tell(&self, from: SocketAddr, reason: &str) {
        if let Some(times) = self.refused.tell(Instant::now()) {
            let address = from.ip();
            tracing::warn!(event = "tls_refused", port = self.port, %address, reason, times, "a TLS connection was refused");
        }
    }
}

async fn handshake(mut stream: TcpStream, tls: &PortTls) -> io::Result<(ClientStream, Option<ClientCertificate>)> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection without a word"));
    }
    if first != [TLS_RECORD] {
        let _ = stream.try_read(&mut [0; PLAIN_HEAD]);
        stream.write_all(PLAIN_HTTP).await?;
        stream.shutdown().await?;
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak TLS"));
    }
    let stream = match TlsAcceptor::from(tls.config()).accept(ReadAhead::new(stream)).into_fallible().await {
        Ok(stream) => stream,
        Err((error, stream)) => {
            let _ = timeout(LINGER, leave(stream)).await;
            return Err(error);
        }
    };
    let certificate = client_certificate::of(stream.get_ref().1.peer_certificates());
    Ok((ClientStream::Tls(Box::new(stream)), certificate))
}

/// Closes a connection after the alert that refuses it. With TLS 1.3 a client sends its request before it hears of the
/// refusal; bytes that nobody reads would reset the connection, and the client would lose the alert.
async fn leave(mut stream: ReadAhead<TcpStream>) -> io::Result<()> {
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(REFUSED_BYTES), &mut tokio::io::sink()).await.map(drop)
}

/// Describes a failed handshake for the operator.
fn explain(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(Error::NoCertificatesPresented) => "it shows no certificate, which --tls-clients requires".to_owned(),
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            "its certificate is of another CA than those in --tls-client-ca".to_owned()
        }
        Some(Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. })) => {
            "its certificate expired".to_owned()
        }
        Some(Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::BadCertificate)) => {
            "it does not trust this server's certificate: give it the CA's".to_owned()
        }
        Some(Error::AlertReceived(AlertDescription::CertificateExpired)) => {
            "it takes this server's certificate for expired".to_owned()
        }
        Some(Error::PeerIncompatible(
            PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
        )) => "it speaks an older TLS than --tls-min allows".to_owned(),
        Some(Error::NoApplicationProtocol) => "it speaks neither HTTP/1.1 nor HTTP/2".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_in_plain_http_has_its_length() {
        let text = std::str::from_utf8(PLAIN_HTTP).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
    }
}
