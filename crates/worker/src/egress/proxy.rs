//! The proxy of one program: accepts, asks if it may, connects, copies. All of it is bounded.

use std::{
    io,
    net::{IpAddr, TcpListener, UdpSocket},
    sync::Arc,
    time::Duration,
};

use berth_spec::network::{Destination, Host};
use tokio::{
    io::{AsyncWriteExt as _, copy_bidirectional_with_sizes},
    net::{TcpStream, lookup_host},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use super::{
    allow::{Allowed, Refusal},
    request::{self, ProxyMethod, ProxyRequest},
    upstream::Upstream,
};

/// Bytes that wait in each direction of a connection: one record of TLS, so that a record is not cut, and the 64
/// connections of a program take 2 MiB.
const BUFFER: usize = 16 << 10;

/// The time for a request to come, for a name to be resolved, for each address to answer, and for a proxy of the operator.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest life of a connection: what a program forgets ends.
const MAX_CONNECTION_LIFE: Duration = Duration::from_secs(3600);

/// Addresses of a name that are tried: both families, with one to spare in each.
const TRIED: usize = 4;

/// The pause after a failed accept: the node may be short of files for a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The outcome of a program's request for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The host, or the proxy that it is behind, was connected to.
    Connected,
    /// The rules refuse it.
    Refused(Refusal),
    /// The name has no address.
    Unresolved,
    /// Nobody answers there.
    Unreachable,
    /// The program has as many connections as it may.
    Busy,
    /// The bytes are no request of an HTTP or SOCKS5 proxy.
    Malformed,
}

impl Outcome {
    /// Every value of [`as_str`](Self::as_str): their counters are there from the start.
    pub const WORDS: [&'static str; 9] = [
        "connected",
        "undeclared",
        "private",
        "forbidden",
        "own_port",
        "unresolved",
        "unreachable",
        "busy",
        "malformed",
    ];

    /// The word for it in metrics; a refusal has one for its reason.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Refused(refusal) => refusal.as_str(),
            Self::Unresolved => "unresolved",
            Self::Unreachable => "unreachable",
            Self::Busy => "busy",
            Self::Malformed => "malformed",
        }
    }
}

/// The program that a proxy serves: where its outcomes are told, and how hosts are reached for it.
pub trait Client: Send + Sync {
    /// Takes note of the outcome of a request.
    fn note(&self, outcome: Outcome, wanted: Option<&Destination>);

    /// Words for a refusal, which the program gets.
    fn refusal(&self, why: Refusal, wanted: &Destination) -> String;

    /// The proxy that a host is behind; `None`: it is reached directly. `tunnels`: it is asked for by CONNECT or SOCKS, and not for
    /// a document by `http://`.
    fn upstream(&self, wanted: &Destination, tunnels: bool) -> Option<Upstream>;
}

/// The rules of one program: its hosts, the connections that it may have at once, and the taker of outcomes.
pub struct EgressPolicy {
    allowed: Allowed,
    connections: usize,
    client: Arc<dyn Client>,
}

/// A connection that was not made.
enum Failed {
    Refused(Refusal),
    Unresolved,
    Unreachable,
}

impl Failed {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Refused(refusal) => Outcome::Refused(*refusal),
            Self::Unresolved => Outcome::Unresolved,
            Self::Unreachable => Outcome::Unreachable,
        }
    }
}

impl EgressPolicy {
    /// Rules of a program that may have so many connections at once.
    #[must_use]
    pub fn new(allowed: Allowed, connections: usize, client: Arc<dyn Client>) -> Self {
        Self { allowed, connections, client }
    }

    /// A connection to a host, or to the proxy that it is behind, and the bytes that have come from it already.
    async fn connect(
        &self,
        wanted: &Destination,
        upstream: Option<&Upstream>,
        tunnels: bool,
    ) -> Result<(TcpStream, Vec<u8>), Failed> {
        self.allowed.named(wanted).map_err(Failed::Refused)?;
        let Some(upstream) = upstream else {
            return self.directly(wanted).await.map(|stream| (stream, Vec::new()));
        };
        let through = async {
            if tunnels {
                return upstream.tunnel(wanted).await;
            }
            upstream.connect().await.map(|stream| (stream, Vec::new()))
        };
        match timeout(PATIENCE, through).await {
            Ok(Ok(connected)) => Ok(connected),
            Ok(Err(_)) | Err(_) => Err(Failed::Unreachable),
        }
    }

    async fn directly(&self, wanted: &Destination) -> Result<TcpStream, Failed> {
        let found: Vec<IpAddr> = match &wanted.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let found = timeout(PATIENCE, lookup_host((name.as_str(), wanted.port))).await;
                let found = found.map_err(|_| Failed::Unresolved)?;
                found.map_err(|_| Failed::Unresolved)?.map(|address| address.ip()).collect()
            }
        };
        let open = self.allowed.addresses(wanted, found, is_here).map_err(Failed::Refused)?;
        for address in open.into_iter().take(TRIED) {
            if let Ok(Ok(stream)) = timeout(PATIENCE, TcpStream::connect(address)).await {
                return Ok(stream);
            }
        }
        Err(Failed::Unreachable)
    }
}

/// True for an address of this machine: one can be bound to it.
fn is_here(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Serves until it is cancelled; its connections end with it.
pub async fn serve(listener: TcpListener, policy: Arc<EgressPolicy>) {
    let listener = listener.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listener));
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!(event = "proxy_not_started", %error),
    };
    let (room, mut connections) = (Arc::new(Semaphore::new(policy.connections)), JoinSet::new());
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            policy.client.note(Outcome::Busy, None);
            continue;
        };
        let policy = Arc::clone(&policy);
        connections.spawn(async move {
            let _place = place;
            // Either end may go at any time.
            let _ = timeout(MAX_CONNECTION_LIFE, connection(stream, &policy)).await;
        });
    }
}

async fn connection(mut stream: TcpStream, policy: &EgressPolicy) -> io::Result<()> {
    let client = &policy.client;
    let asked = timeout(PATIENCE, request::read(&mut stream)).await;
    let ProxyRequest { destination, method } = match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(asked) => asked,
        Err(error) => {
            client.note(Outcome::Malformed, None);
            return answer(&mut stream, "400 Bad Request", &error.to_string()).await;
        }
    };
    let tunnels = !matches!(method, ProxyMethod::Forward(_));
    let upstream = client.upstream(&destination, tunnels);
    let (mut host, first) = match policy.connect(&destination, upstream.as_ref(), tunnels).await {
        Ok(connected) => connected,
        Err(failed) => {
            client.note(failed.outcome(), Some(&destination));
            let (status, code, why) = match failed {
                Failed::Refused(refusal) => ("403 Forbidden", 2, client.refusal(refusal, &destination)),
                Failed::Unresolved | Failed::Unreachable => ("502 Bad Gateway", 4, "it cannot be reached".to_owned()),
            };
            return match method {
                ProxyMethod::Socks => stream.write_all(&[5, code, 0, 1, 0, 0, 0, 0, 0, 0]).await,
                _ => answer(&mut stream, status, &format!("{destination}: {why}")).await,
            };
        }
    };
    client.note(Outcome::Connected, Some(&destination));
    match method {
        ProxyMethod::Connect(sent) => {
            stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
            host.write_all(&sent).await?;
        }
        ProxyMethod::Forward(request) => match &upstream {
            Some(upstream) => host.write_all(&upstream.forwarded(&destination, &request)).await?,
            None => host.write_all(&request).await?,
        },
        ProxyMethod::Socks => stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?,
    }
    stream.write_all(&first).await?;
    copy_bidirectional_with_sizes(&mut stream, &mut host, BUFFER, BUFFER).await.map(drop)
}

async fn answer(stream: &mut TcpStream, status: &str, why: &str) -> io::Result<()> {
    let body = format!("berth: {why}\n");
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).await
}
