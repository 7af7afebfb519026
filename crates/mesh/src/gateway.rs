//! The gateway's life: built with its port taken, run until it is told to stop, drained.
//!
//! ```text
//! build ──→ run: Serving ──shutdown──→ Draining ── nobody inside, or Limits::drain over ──→ Drained
//!                                      ready is false, new inferences are refused,
//!                                      parked and running ones go on
//! ```

use std::{io, net::SocketAddr, sync::Arc};

use berth_spec::{GatewayEvent, RouteChange, WorkerId, routes::Readiness};
use berth_wire::guard::Guard;
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::mpsc, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admit::Door,
    config::Config,
    demand::Ledger,
    ingress::Ingress,
    listener::{self, Listener},
    local::LocalReplicas,
    metrics::{Exporter, Totals},
    parking::{Parking, Total},
    routes::{Applier, Missing, Routes},
    stack::Stack,
    top,
};

/// What a gateway hears and says.
pub struct GatewayLink {
    /// What the controller says; the first change is the whole.
    pub routes: mpsc::Receiver<RouteChange>,
    /// What the controller is told.
    pub events: mpsc::Sender<GatewayEvent>,
}

/// How a gateway ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Inferences that were inside when it was told to stop, and were answered.
    pub finished: u32,
    /// Those that were still inside when their time was over, and were cut.
    pub cut: u32,
}

/// A gateway that has its port and does not serve yet.
pub struct Gateway {
    listener: std::net::TcpListener,
    config: Config,
    stack: Arc<Stack>,
    applier: Applier,
}

/// A look into a gateway from outside; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    stack: Arc<Stack>,
    address: SocketAddr,
}

/// Takes the port and makes everything that serving needs. `me` is the worker whose replicas `replicas` holds.
///
/// # Errors
/// The address cannot be listened on; the error names it.
pub fn build(
    config: Config,
    me: WorkerId,
    replicas: Arc<LocalReplicas>,
    registry: &mut Registry,
) -> io::Result<(Gateway, Handle)> {
    let listener = listener::bind(config.http)?;
    let address = listener.local_addr()?;
    let (routes, ledger) = (Arc::new(Routes::new()), Ledger::new());
    let (door, totals) = (Door::new(config.limits.requests), Arc::new(Totals::default()));
    let exporter = Exporter { routes: Arc::clone(&routes), totals: Arc::clone(&totals), door: Arc::clone(&door) };
    registry.register_collector(Box::new(exporter));
    let total = Total::new(config.limits.parked);
    let parking = Parking { replicas: Arc::clone(&replicas), ledger: Arc::clone(&ledger), total };
    let applier = Applier::new(Arc::clone(&routes), me, replicas);
    let stack = Arc::new(Stack { routes, parking, ledger, door, totals, limits: config.limits.clone() });
    let handle = Handle { stack: Arc::clone(&stack), address };
    Ok((Gateway { listener, config, stack, applier }, handle))
}

impl Gateway {
    /// Serves until `shutdown`, then drains: new inferences are refused, those inside have
    /// [`Limits::drain`](crate::Limits::drain) to finish. Routes are followed to the end, so that parked requests can
    /// still be answered.
    ///
    /// # Errors
    /// The port cannot be given to the runtime.
    pub async fn run(self, link: GatewayLink, shutdown: CancellationToken) -> io::Result<Drained> {
        let Self { listener, config, stack, applier } = self;
        let (stopping, cut, told) = (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let GatewayLink { routes, events } = link;
        let tasks = TaskTracker::new();
        tasks.spawn(follow(applier, routes, events.clone(), Arc::clone(&stack), told.clone()));
        tasks.spawn({
            let (stack, told) = (Arc::clone(&stack), told.clone());
            async move { stack.ledger.run(events, told).await }
        });
        let listener = TcpListener::from_std(listener)?;
        let guard = Guard::of(listener.local_addr()?);
        let port = Listener {
            listener,
            ingress: Ingress::new(Arc::clone(&stack), config.version.into(), config.spans, guard),
            totals: Arc::clone(&stack.totals),
            limits: config.limits.clone(),
            stopping: stopping.clone(),
            cut: cut.clone(),
        };
        let port = tasks.spawn(port.run());
        tasks.close();

        shutdown.cancelled().await;
        let inside = stack.door.close();
        stopping.cancel();
        tracing::info!(inside, "gateway: draining");
        let drained = async {
            stack.door.emptied().await;
            // The last answers are being written.
            if port.await.is_err() {
                tracing::error!("gateway: the listener panicked");
            }
        };
        let in_time = timeout(config.limits.drain, drained).await.is_ok();
        let left = if in_time { 0 } else { stack.door.inside() };
        cut.cancel();
        told.cancel();
        tasks.wait().await;
        let drained = Drained { finished: inside.saturating_sub(left), cut: left };
        tracing::info!(finished = drained.finished, cut = drained.cut, "gateway: drained");
        Ok(drained)
    }
}

/// Puts route changes in force and says so, and wakes who is parked for a replica that came back under an unchanged route.
async fn follow(
    mut applier: Applier,
    mut routes: mpsc::Receiver<RouteChange>,
    events: mpsc::Sender<GatewayEvent>,
    stack: Arc<Stack>,
    told: CancellationToken,
) {
    let mut open = true;
    // What the controller has not been told yet; the latest word counts.
    let mut word = None;
    // Changes are missing, and the whole has been asked for.
    let mut asked = false;
    loop {
        tokio::select! {
            change = routes.recv(), if open => match change {
                Some(change) => {
                    let seq = change.seq;
                    match applier.apply(change) {
                        Ok(()) => (asked, word) = (false, Some(GatewayEvent::Applied(seq))),
                        Err(Missing { have, base }) if !asked => {
                            tracing::warn!(have, base, "routes: changes are missing; asking for everything");
                            (asked, word) = (true, Some(GatewayEvent::AskWhole));
                        }
                        // The whole is on its way.
                        Err(_) => {}
                    }
                }
                // Without a controller the last routes stay in force.
                None => open = false,
            },
            room = events.reserve(), if word.is_some() => {
                if let (Ok(room), Some(word)) = (room, word.take()) {
                    room.send(word);
                }
            }
            () = stack.parking.replicas.inserted() => applier.refresh(&stack.ledger.listed()),
            () = told.cancelled() => return,
        }
    }
}

impl Handle {
    /// The address that is listened on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What `/v2/health/ready` says.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.stack.ready()
    }

    /// What the controller said of readiness last.
    #[must_use]
    pub fn readiness(&self) -> Arc<Readiness> {
        self.stack.routes.readiness()
    }

    /// Inferences inside now, parked ones included.
    #[must_use]
    pub fn inside(&self) -> u32 {
        self.stack.door.inside()
    }

    /// Every deployment that had a request, by name.
    #[must_use]
    pub fn top(&self) -> Vec<top::Row> {
        top::rows(&self.stack.routes)
    }
}
