//! Connections to servers: brokers, and the model server where it speaks TLS.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use berth_peer::port::{ReadAhead, ServerStream, suites};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Silence after which the kernel asks the other end of a connection for a sign of life, and the interval of further questions.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_secs(15);

/// Certificates towards a server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TlsFiles {
    /// CAs of its certificate (PEM). `None`: those of the machine.
    pub(crate) ca: Option<PathBuf>,
    /// The executor's own certificate and its key (PEM).
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// Connects. `address`: `HOST:PORT`.
pub(crate) async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    // Requests are written whole; waiting for more only delays them. One that refuses still works.
    let _ = stream.set_nodelay(true);
    keep_alive(&stream);
    Ok(stream)
}

/// Has the kernel notice when the machine at the other end has gone without a word, also on a connection that rests for hours.
pub(crate) fn keep_alive(stream: &TcpStream) {
    let asked = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(ASK_EVERY);
    // A socket that refuses still works.
    let _ = SockRef::from(stream).set_tcp_keepalive(&asked);
}

/// Shakes hands with the server of this name.
pub(crate) async fn secured(stream: TcpStream, host: &str, config: Arc<ClientConfig>) -> io::Result<ServerStream> {
    let name = server_name(host).map_err(io::Error::other)?;
    Ok(ServerStream::Tls(Box::new(TlsConnector::from(config).connect(name, ReadAhead::new(stream)).await?)))
}

/// The name that a certificate must have: a host name, or an address with or without brackets.
pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    ServerName::try_from(host).map_err(|error| error.to_string())
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
        let config = ClientConfig::builder_with_provider(suites())
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

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_kernel_asks_for_signs_of_life() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let stream = connect(&address).await.expect("connected");
        assert!(SockRef::from(&stream).keepalive().expect("a setting"));
        let (stream, _) = listener.accept().await.expect("a client");
        assert!(!SockRef::from(&stream).keepalive().expect("a setting"));
        keep_alive(&stream);
        assert!(SockRef::from(&stream).keepalive().expect("a setting"));
    }
}
