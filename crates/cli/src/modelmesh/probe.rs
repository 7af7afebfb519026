//! The probe port: `/ready`, `/live`, and `/prestop`, which answers once this instance has stopped serving.
//!
//! On a thread of its own, so that it answers while the instance waits for its runtime and while it drains.

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, TcpListener},
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use berth_peer::port::{AddressLimit, Bounds, Port};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Connections at once. All that a kubelet asks comes from one address; strangers at another leave it some.
const BOUNDS: Bounds = Bounds { connections: 64, per_address: 48 };

/// Requests of one address at once that wait for the end: the containers of a pod are few, and probes are answered beside them, also those
/// from the same address.
const WAITS: usize = 16;
const _: () = assert!(WAITS < BOUNDS.per_address && BOUNDS.per_address < BOUNDS.connections);

/// The longest that a head may take: a probe's is one packet.
const HEAD: Duration = Duration::from_secs(5);

/// The state that probes ask for.
#[derive(Default)]
pub(super) struct ProbeState {
    /// There once the instance serves.
    pub(super) gateway: OnceLock<berth_mesh::Handle>,
    /// Cancelled once it has stopped.
    pub(super) stopped: CancellationToken,
}

impl ProbeState {
    fn ready(&self) -> bool {
        self.gateway.get().is_some_and(berth_mesh::Handle::ready)
    }
}

/// All that a port answers from.
struct Probes {
    standing: Arc<ProbeState>,
    /// Places for those who wait for the end.
    waits: Arc<AddressLimit>,
}

impl Probes {
    fn new(standing: &Arc<ProbeState>, waits: usize) -> Arc<Self> {
        Arc::new(Self { standing: Arc::clone(standing), waits: AddressLimit::new(waits) })
    }
}

/// Takes the ports of an address and answers until the process ends.
pub(super) fn start(at: IpAddr, ports: &[u16], standing: &Arc<ProbeState>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut listeners = Vec::new();
    for port in ports {
        let listener = TcpListener::bind((at, *port))
            .map_err(|error| io::Error::new(error.kind(), format!("probe port {port}: {error}")))?;
        listener.set_nonblocking(true)?;
        listeners.push(listener);
    }
    let probes = Probes::new(standing, WAITS);
    let serve = async move {
        let all = listeners.into_iter().filter_map(|listener| tokio::net::TcpListener::from_std(listener).ok());
        let ports = all.map(|listener| Port::new("modelmesh probe", listener, BOUNDS));
        futures::future::join_all(ports.map(|port| serve(port, Arc::clone(&probes)))).await;
    };
    thread::Builder::new().name("modelmesh-probe".to_owned()).spawn(move || runtime.block_on(serve))?;
    Ok(())
}

async fn serve(port: Port, probes: Arc<Probes>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, from, place) = port.accept().await;
        while connections.try_join_next().is_some() {}
        let probes = Arc::clone(&probes);
        let service = service_fn(move |request| answer(request, from.ip(), Arc::clone(&probes)));
        connections.spawn(async move {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            drop(place);
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    from: IpAddr,
    probes: Arc<Probes>,
) -> Result<Response<Full<bytes::Bytes>>, Infallible> {
    let (status, text) = match request.uri().path() {
        "/live" => (StatusCode::OK, "live\n"),
        "/ready" if probes.standing.ready() => (StatusCode::OK, "ready\n"),
        "/ready" => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        "/prestop" => match probes.waits.place(from) {
            Some(_place) => {
                probes.standing.stopped.cancelled().await;
                (StatusCode::OK, "stopped\n")
            }
            None => (StatusCode::SERVICE_UNAVAILABLE, "too many of this address wait for the end: ask again\n"),
        },
        _ => (StatusCode::NOT_FOUND, "use /ready, /live or /prestop\n"),
    };
    let mut response = Response::new(Full::new(bytes::Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

    use super::*;

    async fn asks(address: SocketAddr, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        stream
    }

    async fn status(mut stream: TcpStream) -> String {
        let mut said = String::new();
        stream.read_to_string(&mut said).await.expect("an answer");
        said.lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn who_waits_for_the_end_keeps_no_probe_waiting() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let standing = Arc::new(ProbeState::default());
        let probes = Probes::new(&standing, 2);
        let port = Port::new("test", listener, Bounds { connections: 8, per_address: 8 });
        let asked = async {
            let waiting = [asks(address, "/prestop").await, asks(address, "/prestop").await];
            while probes.waits.place(address.ip()).is_some() {
                tokio::task::yield_now().await;
            }
            assert_eq!(status(asks(address, "/prestop").await).await, "HTTP/1.1 503 Service Unavailable");
            assert_eq!(status(asks(address, "/live").await).await, "HTTP/1.1 200 OK");
            assert!(probes.waits.place([10, 0, 0, 1].into()).is_some(), "another address has room of its own");
            standing.stopped.cancel();
            for stream in waiting {
                assert_eq!(status(stream).await, "HTTP/1.1 200 OK");
            }
        };
        tokio::select! {
            () = serve(port, Arc::clone(&probes)) => unreachable!("it serves until it is dropped"),
            () = asked => {}
        }
    }
}
