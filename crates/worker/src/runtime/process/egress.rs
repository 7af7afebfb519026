//! The way of a model's process to the hosts that are declared for it, and to no others.
//!
//! ```text
//! model ─▶ 127.0.0.1:3128 of its own network ─▶ here: CONNECT, GET http://…, SOCKS5 ─▶ allowed? ─▶ resolve ─▶ allowed? ─▶ host
//! ```
//! The process has a network of its own with nothing but a loopback. The launcher makes a listener there and hands it to the
//! worker, which accepts outside: no bridge runs in the sandbox. Names are resolved here. [`allow`] decides, [`request`] reads what
//! is asked for, [`proxy`] does it.

mod allow;
mod proxy;
mod request;

use std::{io, net::TcpListener, sync::Arc};

use berth_spec::network::Destination;
use tokio::sync::mpsc;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use self::{allow::Allowed, proxy::Gate};
use crate::runtime::metrics::ModelMetrics;

/// The port of the proxy in each sandbox: nobody else is there.
pub(in crate::runtime) const PORT: u16 = 3128;

/// Listeners that wait for the thread of the proxies, which takes them at once.
const WAITING: usize = 16;

/// The thread that serves the proxies of all models of a worker.
#[derive(Debug)]
pub(in crate::runtime) struct Egress {
    own_ports: Vec<u16>,
    doors: mpsc::Sender<Opened>,
}

/// A listener to be served.
struct Opened {
    listener: TcpListener,
    gate: Gate,
    over: CancellationToken,
}

impl Egress {
    /// Starts the thread. `own_ports` are the node's: models do not get there.
    pub(in crate::runtime) fn start(own_ports: Vec<u16>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (doors, mut opened) = mpsc::channel::<Opened>(WAITING);
        let serve = async move {
            let proxies = TaskTracker::new();
            while let Some(Opened { listener, gate, over }) = opened.recv().await {
                proxies.spawn(over.run_until_cancelled_owned(proxy::serve(listener, Arc::new(gate))));
            }
        };
        std::thread::Builder::new().name("berth-egress".to_owned()).spawn(move || runtime.block_on(serve))?;
        Ok(Self { own_ports, doors })
    }

    /// Serves the listener of a process until the guard is dropped. Blocks for a moment.
    pub(in crate::runtime) fn open(
        &self,
        listener: TcpListener,
        hosts: &[Destination],
        metrics: Arc<ModelMetrics>,
    ) -> io::Result<DropGuard> {
        let over = CancellationToken::new();
        let gate = Gate::new(Allowed::new(hosts.to_vec(), self.own_ports.clone()), metrics);
        let opened = Opened { listener, gate, over: over.clone() };
        self.doors.blocking_send(opened).map_err(|_| io::Error::other("the thread of the proxies has ended"))?;
        Ok(over.drop_guard())
    }
}

/// The variables by which programs find the proxy.
pub(in crate::runtime) fn environment() -> Vec<(&'static str, String)> {
    let proxy = format!("http://127.0.0.1:{PORT}");
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let none = ["NO_PROXY", "no_proxy"].map(|name| (name, "localhost,127.0.0.1,::1".to_owned()));
    names.map(|name| (name, proxy.clone())).into_iter().chain(none).collect()
}
