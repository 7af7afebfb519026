//! The address of a runtime: a Unix socket, or a TCP port.

use std::{fmt, path::Path, str::FromStr, time::Duration};

use berth_peer::http2::liveness;
use http::uri::Authority;
use tonic::transport::Endpoint;

/// A connection that takes longer has failed: runtimes are on the same machine, or near.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// Bytes under way before the other side says that it has read them. The default of 64 KiB makes a tensor of some
/// megabytes wait for many such words.
pub(super) const WINDOW: u32 = 4 << 20;

/// The address of a runtime: `unix:/run/model.sock`, `localhost:8085`, or a port of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// As tonic takes it.
    uri: String,
    /// As requests name it.
    authority: Authority,
    written: String,
}

/// The transport of a connection, and where it goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Transport<'a> {
    /// The path of a Unix socket.
    Socket(&'a Path),
    /// `HOST:PORT`, to be resolved.
    Tcp(&'a str),
}

/// The authority of what is at a Unix socket, as gRPC's other clients give it.
const LOCAL: Authority = Authority::from_static("localhost");

/// A text that is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid address of a runtime: write unix:/PATH, HOST:PORT or PORT")]
pub struct InvalidAddress(String);

impl Address {
    /// The address of a TCP port of this machine, on 127.0.0.1.
    #[must_use]
    pub fn port(port: u16) -> Self {
        let (place, written) = (format!("127.0.0.1:{port}"), port.to_string());
        let authority = place.parse().unwrap_or(LOCAL);
        Self { uri: format!("http://{place}"), authority, written }
    }

    /// The transport to connect by.
    pub(super) fn transport(&self) -> Transport<'_> {
        match self.uri.strip_prefix("unix://") {
            Some(path) => Transport::Socket(Path::new(path)),
            None => Transport::Tcp(self.uri.strip_prefix("http://").unwrap_or(&self.uri)),
        }
    }

    /// The authority of requests: the host and port, `localhost` for a Unix socket.
    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The address as a URL; `None`: it is a socket.
    pub(super) fn url(&self) -> Option<&str> {
        Some(self.uri.as_str()).filter(|uri| uri.starts_with("http://"))
    }

    /// The settings of a connection for calls of the runtime's own interface.
    pub(super) fn endpoint(&self) -> Result<Endpoint, InvalidAddress> {
        let endpoint = Endpoint::from_shared(self.uri.clone()).map_err(|_| InvalidAddress(self.written.clone()))?;
        Ok(endpoint
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(liveness::KEEPALIVE_IDLE))
            .tcp_keepalive_interval(Some(liveness::ASK_EVERY))
            .tcp_keepalive_retries(Some(liveness::ASKS))
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW))
    }
}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let invalid = || InvalidAddress(text.to_owned());
        let plain = text.strip_prefix("port:").unwrap_or(text);
        if let Ok(port) = plain.parse::<u16>() {
            return Ok(Self { written: text.to_owned(), ..Self::port(port) });
        }
        let (uri, authority) = match text.strip_prefix("unix:") {
            Some(path) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if !path.starts_with('/') {
                    return Err(invalid());
                }
                (format!("unix://{path}"), LOCAL)
            }
            None => {
                let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
                port.parse::<u16>().map_err(|_| invalid())?;
                if host.is_empty() || host.contains('/') {
                    return Err(invalid());
                }
                let authority = text.parse::<Authority>().map_err(|_| invalid())?;
                (format!("http://{host}:{port}"), authority)
            }
        };
        let address = Self { uri, authority, written: text.to_owned() };
        address.endpoint()?;
        Ok(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, uri) in [
            ("8085", "http://127.0.0.1:8085"),
            ("port:8085", "http://127.0.0.1:8085"),
            ("localhost:8085", "http://localhost:8085"),
            ("[::1]:8085", "http://[::1]:8085"),
            ("unix:/tmp/mmesh/grpc.sock", "unix:///tmp/mmesh/grpc.sock"),
            ("unix:///tmp/mmesh/grpc.sock", "unix:///tmp/mmesh/grpc.sock"),
        ] {
            assert_eq!(text.parse::<Address>().map(|address| address.uri).as_deref(), Ok(uri), "{text}");
        }
        for (text, authority, transport) in [
            ("8085", "127.0.0.1:8085", Transport::Tcp("127.0.0.1:8085")),
            ("[::1]:8085", "[::1]:8085", Transport::Tcp("[::1]:8085")),
            ("unix:///tmp/mmesh/grpc.sock", "localhost", Transport::Socket(Path::new("/tmp/mmesh/grpc.sock"))),
        ] {
            let address: Address = text.parse().expect("an address");
            assert_eq!((address.authority().as_str(), address.transport()), (authority, transport));
        }
        for text in ["", "unix:relative", "host", "host:port", ":80", "http://x:1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
