//! TLS towards a model server. Its files are read again while the executor runs, so that renewed ones need no restart.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use berth_peer::port::{Damped, ServerStream};
use http::Version;
use rustls::ClientConfig;
use tokio::{net::TcpStream, task};

use crate::tls::{self, TlsFiles};

/// Age of what was read from the files, from which on a new connection reads them again.
const REREAD_AFTER: Duration = Duration::from_secs(5);

/// Settings of TLS towards a model server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpstreamTls {
    pub(crate) files: TlsFiles,
    /// The name in the server's certificate. `None`: the host of its address.
    pub(crate) name: Option<String>,
}

/// TLS of the connections to one server.
pub(super) struct Secure {
    files: TlsFiles,
    name: String,
    current: Mutex<Current>,
    /// Files that could not be read anew, which is tried every few seconds.
    unusable: Damped,
}

#[derive(Clone)]
struct Current {
    read: Instant,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl Secure {
    /// Reads the files. Blocking.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub(super) fn open(settings: &UpstreamTls, address: &str) -> Result<Self, String> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = settings.name.clone().unwrap_or_else(|| host.to_owned());
        let current = Mutex::new(Current::read(&settings.files)?);
        Ok(Self { files: settings.files.clone(), name, current, unusable: Damped::default() })
    }

    /// Shakes hands for a version of HTTP.
    pub(super) async fn handshake(&self, stream: TcpStream, version: Version) -> io::Result<ServerStream> {
        let current = self.current().await;
        let config = if version == Version::HTTP_2 { current.http2 } else { current.http1 };
        tls::secured(stream, &self.name, config).await
    }

    async fn current(&self) -> Current {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if current.read.elapsed() < REREAD_AFTER {
            return current;
        }
        let files = self.files.clone();
        let read = task::spawn_blocking(move || Current::read(&files)).await;
        let fresh = match read.map_err(|error| error.to_string()).flatten() {
            Ok(fresh) => fresh,
            Err(error) => {
                if let Some(times) = self.unusable.tell(tokio::time::Instant::now()) {
                    tracing::warn!(
                        event = "upstream_tls_unusable",
                        error,
                        times,
                        "keeping the certificates from before"
                    );
                }
                Current { read: Instant::now(), ..current }
            }
        };
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&fresh);
        fresh
    }
}

impl Current {
    fn read(files: &TlsFiles) -> Result<Self, String> {
        let config = files.config().map_err(|error| format!("upstreamTls: {error}"))?;
        let speaking = |protocol: &[u8]| {
            let mut config = ClientConfig::clone(&config);
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config)
        };
        Ok(Self { read: Instant::now(), http1: speaking(b"http/1.1"), http2: speaking(b"h2") })
    }
}
