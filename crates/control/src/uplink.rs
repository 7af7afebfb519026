//! A node's way to the controller that decides, wherever that is: for its worker and for its gateway.
//!
//! ```text
//! worker  ◀── Attached, assignments ──┐          ┌──▶ Handle, where this node leads
//!         ──▶ reports ───────────────▶│  uplink ─┤
//! gateway ◀── routes ─────────────────┤          └══▶ fleet of the node that leads
//!         ──▶ demand ────────────────▶┘
//! ```
//! The channels towards worker and gateway live as long as the process. Where there is no controller to be had, both go on
//! with what they know; what they would say waits with them, as one latest message.
//!
//! [`leader_discovery`] is the brain, `stream` one connection, `connection` the loop; `worker` and `gateway` say what is particular to them.

mod connection;
mod gateway;
pub mod leader_discovery;
mod stream;
mod worker;

use berth_peer::Peers;
use berth_spec::{Epoch, WorkerId, WorkerInfo};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    handle::{GatewayEnds, WorkerEnds},
    leadership::LeadershipView,
};
use connection::Connection;
use gateway::GatewayClient;
use worker::WorkerClient;

/// All that a node needs to find and to greet the leading controller.
#[derive(Clone)]
pub struct ConnectContext {
    /// Name of this node.
    pub me: WorkerId,
    /// Number of this start of the process: a later start has a greater one.
    pub incarnation: u64,
    /// Connections to other nodes.
    pub peers: Peers,
    /// Leadership as this node knows it; [`LeadershipView::never`] without the controller role.
    pub leadership: watch::Receiver<LeadershipView>,
}

/// The worker's connection to the leading controller, wherever that is. Finds it, and finds the next one.
pub struct WorkerUplink(Connection<WorkerClient>);

impl WorkerUplink {
    /// The way, which works while [`WorkerUplink::run`] is awaited, and the worker's ends of it.
    #[must_use]
    pub fn new(context: ConnectContext, info: WorkerInfo) -> (Self, WorkerEnds) {
        let end = WorkerClient::new(context.clone(), info);
        let (connection, ends) = Connection::new(context, end);
        (Self(connection), ends)
    }

    /// Leader and term found by the connection; the last ones while it searches.
    #[must_use]
    pub fn leader(&self) -> watch::Receiver<Option<(WorkerId, Epoch)>> {
        self.0.leader()
    }

    /// Keeps one connection to the leader until `shutdown`, or until the worker has dropped its ends and its last message has
    /// been sent.
    pub async fn run(self, shutdown: CancellationToken) {
        self.0.run(shutdown).await;
    }
}

/// The gateway's connection to the leading controller, wherever that is. Finds it, and finds the next one.
pub struct GatewayUplink(Connection<GatewayClient>);

impl GatewayUplink {
    /// The way, which works while [`GatewayUplink::run`] is awaited, and the gateway's ends of it. `region` is where the
    /// gateway is.
    #[must_use]
    pub fn new(context: ConnectContext, region: Option<String>) -> (Self, GatewayEnds) {
        let end = GatewayClient::new(context.clone(), region);
        let (connection, ends) = Connection::new(context, end);
        (Self(connection), ends)
    }

    /// Leader and term found by the connection; the last ones while it searches.
    #[must_use]
    pub fn leader(&self) -> watch::Receiver<Option<(WorkerId, Epoch)>> {
        self.0.leader()
    }

    /// Keeps one connection to the leader until `shutdown`, or until the gateway has dropped its ends.
    pub async fn run(self, shutdown: CancellationToken) {
        self.0.run(shutdown).await;
    }
}
