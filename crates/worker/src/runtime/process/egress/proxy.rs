//! The proxy of one process: accepts, asks if it may, connects, copies. All of it is bounded.

use std::{
    io,
    net::{IpAddr, TcpListener, UdpSocket},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
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
    request::{self, Asked, Way},
};
use crate::runtime::metrics::ModelMetrics;

/// Connections of one process at once: more than clients of an API keep, and their buffers are two megabytes together.
const CONNECTIONS: usize = 64;

/// Bytes that wait in each direction of a connection.
const BUFFER: usize = 16 << 10;

/// The time for a request to come, for a name to be resolved, and for each address to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest life of a connection: what a model forgets ends.
const LONGEST: Duration = Duration::from_secs(3600);

/// Addresses of a name that are tried.
const TRIED: usize = 4;

/// A line in the log for each reason at most this often.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// The pause after a failed accept: the worker may be short of files for a moment.
const PAUSE: Duration = Duration::from_millis(100);

/// The rules of one model, and where it is told what became of them.
pub(super) struct Gate {
    allowed: Allowed,
    metrics: Arc<ModelMetrics>,
    told: Mutex<Vec<(&'static str, Instant)>>,
}

/// A connection that was not made.
enum Failed {
    Refused(Refusal),
    /// The name has no address, or nobody answers there.
    Unreachable(&'static str),
}

impl Gate {
    pub(super) fn new(allowed: Allowed, metrics: Arc<ModelMetrics>) -> Self {
        Self { allowed, metrics, told: Mutex::default() }
    }

    async fn connect(&self, wanted: &Destination) -> Result<TcpStream, Failed> {
        self.allowed.named(wanted).map_err(Failed::Refused)?;
        let found: Vec<IpAddr> = match &wanted.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let found = timeout(PATIENCE, lookup_host((name.as_str(), wanted.port))).await;
                let found = found.map_err(|_| Failed::Unreachable("unresolved"))?;
                found.map_err(|_| Failed::Unreachable("unresolved"))?.map(|address| address.ip()).collect()
            }
        };
        let open = self.allowed.addresses(wanted, found, is_here).map_err(Failed::Refused)?;
        for address in open.into_iter().take(TRIED) {
            if let Ok(Ok(stream)) = timeout(PATIENCE, TcpStream::connect(address)).await {
                return Ok(stream);
            }
        }
        Err(Failed::Unreachable("unreachable"))
    }

    /// Counts an outcome, and tells one that is no success, damped.
    fn note(&self, outcome: &'static str, wanted: Option<&Destination>) {
        self.metrics.egress(outcome);
        if outcome == "connected" {
            return;
        }
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|(_, at)| now.saturating_duration_since(*at) < TOLD_EVERY);
        if told.iter().any(|(before, _)| *before == outcome) {
            return;
        }
        told.push((outcome, now));
        let host = wanted.map(ToString::to_string).unwrap_or_default();
        tracing::warn!(event = "model_connection_refused", deployment_id = %self.metrics.deployment(), host, outcome);
    }
}

/// True for an address of this machine: one can be bound to it.
fn is_here(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Serves until it is cancelled; its connections end with it.
pub(super) async fn serve(listener: TcpListener, gate: Arc<Gate>) {
    let listener = listener.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listener));
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!(event = "model_proxy_not_started", %error),
    };
    let (room, mut connections) = (Arc::new(Semaphore::new(CONNECTIONS)), JoinSet::new());
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            gate.note("busy", None);
            continue;
        };
        let gate = Arc::clone(&gate);
        connections.spawn(async move {
            let _place = place;
            // Either end may go at any time.
            let _ = timeout(LONGEST, connection(stream, &gate)).await;
        });
    }
}

async fn connection(mut stream: TcpStream, gate: &Gate) -> io::Result<()> {
    let asked = timeout(PATIENCE, request::read(&mut stream)).await;
    let Asked { destination, way } = match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(asked) => asked,
        Err(error) => {
            gate.note("malformed", None);
            return answer(&mut stream, "400 Bad Request", &error.to_string()).await;
        }
    };
    let mut host = match gate.connect(&destination).await {
        Ok(host) => host,
        Err(failed) => {
            let (outcome, status, code, why) = match &failed {
                Failed::Refused(refusal) => (refusal.as_str(), "403 Forbidden", 2, refusal.told()),
                Failed::Unreachable(word) => (*word, "502 Bad Gateway", 4, "it cannot be reached"),
            };
            gate.note(outcome, Some(&destination));
            return match way {
                Way::Socks => stream.write_all(&[5, code, 0, 1, 0, 0, 0, 0, 0, 0]).await,
                _ => answer(&mut stream, status, &format!("{destination}: {why}")).await,
            };
        }
    };
    gate.note("connected", Some(&destination));
    match way {
        Way::Connect(first) => {
            stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
            host.write_all(&first).await?;
        }
        Way::Forward(request) => host.write_all(&request).await?,
        Way::Socks => stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?,
    }
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
