//! The way of a model's process to the hosts that are declared for it: one thread serves the proxies ([`crate::egress`]) of all
//! models of a worker.

use std::{
    io,
    net::TcpListener,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use berth_spec::network::Destination;
use tokio::sync::mpsc;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub(in crate::runtime) use crate::egress::PORT;
use crate::{
    egress::{self, Allowed, Client, EgressPolicy, Outcome, Refusal, Upstream},
    runtime::metrics::ModelMetrics,
};

/// Listeners that wait for the thread of the proxies, which takes them at once.
const WAITING: usize = 16;

/// Connections of one process at once: more than clients of an API keep, and their buffers are two megabytes together.
const CONNECTIONS: usize = 64;

/// A line in the log for each reason at most this often: code that tries again and again fills no log.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// The thread that serves the proxies of all models of a worker.
#[derive(Debug)]
pub(in crate::runtime) struct Egress {
    own_ports: Vec<u16>,
    doors: mpsc::Sender<Opened>,
}

/// A listener to be served.
struct Opened {
    listener: TcpListener,
    policy: EgressPolicy,
    over: CancellationToken,
}

impl Egress {
    /// Starts the thread. `own_ports` are the node's: models do not get there.
    pub(in crate::runtime) fn start(own_ports: Vec<u16>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (doors, mut opened) = mpsc::channel::<Opened>(WAITING);
        let serve = async move {
            let proxies = TaskTracker::new();
            while let Some(Opened { listener, policy, over }) = opened.recv().await {
                proxies.spawn(over.run_until_cancelled_owned(egress::serve(listener, Arc::new(policy))));
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
        let allowed = Allowed::declared(hosts.to_vec(), self.own_ports.clone());
        let policy = EgressPolicy::new(allowed, CONNECTIONS, Arc::new(Model { metrics, told: Mutex::default() }));
        let opened = Opened { listener, policy, over: over.clone() };
        self.doors.blocking_send(opened).map_err(|_| io::Error::other("the thread of the proxies has ended"))?;
        Ok(over.drop_guard())
    }
}

/// A model as the proxy knows it.
struct Model {
    metrics: Arc<ModelMetrics>,
    told: Mutex<Vec<(&'static str, Instant)>>,
}

impl Client for Model {
    /// Counts an outcome, and tells one that is no success, damped.
    fn note(&self, outcome: Outcome, wanted: Option<&Destination>) {
        let word = outcome.as_str();
        self.metrics.egress(word);
        if outcome == Outcome::Connected {
            return;
        }
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|(_, at)| now.saturating_duration_since(*at) < TOLD_EVERY);
        if told.iter().any(|(before, _)| *before == word) {
            return;
        }
        told.push((word, now));
        let host = wanted.map(ToString::to_string).unwrap_or_default();
        tracing::warn!(event = "model_connection_refused", deployment_id = %self.metrics.deployment(), host, outcome = word);
    }

    /// For the author of the model.
    fn refusal(&self, why: Refusal, _wanted: &Destination) -> String {
        let told = match why {
            Refusal::Undeclared => {
                "it is not declared: add it to network.hosts of the card or to spec.runtime.network.hosts"
            }
            Refusal::Private => "the name stands for a private address, which has to be declared as an address",
            Refusal::Forbidden => "models do not get to this address",
            Refusal::OwnPort => "models do not get to the ports of Berth",
        };
        told.to_owned()
    }

    /// None: models connect directly.
    fn upstream(&self, _wanted: &Destination, _tunnels: bool) -> Option<Upstream> {
        None
    }
}

/// The variables by which programs find the proxy.
pub(in crate::runtime) fn environment() -> Vec<(&'static str, String)> {
    let proxy = egress::address();
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let none = ["NO_PROXY", "no_proxy"].map(|name| (name, "localhost,127.0.0.1,::1".to_owned()));
    names.map(|name| (name, proxy.clone())).into_iter().chain(none).collect()
}
