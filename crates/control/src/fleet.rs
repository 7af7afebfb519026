//! The streams between the leader and the nodes, as the leader serves them on the port for other nodes.
//!
//! ```text
//! uplink of a node ══ berth.fleet.v1.Fleet over mutual TLS ══▶ FleetService ──▶ hello ──▶ Handle::attach_…
//!      messages in parts ──▶ pump ──▶ reports, demand ──▶ controller
//!      messages in parts ◀── pump ◀── mailbox (the latest, never a backlog) ◀── controller
//! ```
//! A stream is served by the task of its connection; nothing is spawned, and nothing piles up: who reads slowly gets fewer
//! and larger changes. A stream ends when its node goes, when this node does not lead any more, or when a part is missing.
//! The other end is [`uplink`](crate::uplink).

mod handshake;
mod session;

use std::{pin::Pin, sync::Arc};

use berth_peer::{Caller, PeerBody, Peers};
use berth_spec::{FromController, GatewayEvent, InventoryChange, RouteChange};
use berth_wire::api::{AuditPort, AuditResource};
use berth_wire::fleet::{
    Assembly, InParts, MESSAGE, Reporter, demands_of, outcomes_of,
    v1::{
        self,
        fleet_server::{Fleet, FleetServer},
        gateway_word, route_order, worker_order, worker_word,
    },
};
use bytes::Bytes;
use futures::{Stream, StreamExt, future::BoxFuture, stream};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};
use tower::Service;

use crate::leadership::LeadershipView;
use handshake::Acceptor;
use session::{Session, TermGuard};

/// The paths that it answers begin so.
pub const PATH: &str = "/berth.fleet.v1.Fleet/";

/// Serves the streams. Cheap to clone.
#[derive(Clone)]
pub struct FleetService(FleetServer<FleetCalls>);

/// Wraps what the generated code calls.
#[derive(Clone)]
struct FleetCalls {
    acceptor: Arc<Acceptor>,
}

impl FleetService {
    /// `leadership` says whether this node leads; `peers` knows the addresses of others, for those who are sent there.
    #[must_use]
    pub fn new(leadership: watch::Receiver<LeadershipView>, peers: Option<Peers>) -> Self {
        let acceptor = Arc::new(Acceptor { leadership, peers });
        Self(
            FleetServer::new(FleetCalls { acceptor })
                .max_decoding_message_size(MESSAGE)
                .max_encoding_message_size(MESSAGE),
        )
    }

    /// Answers one request of `caller`, whom its certificate names; its path begins with [`PATH`].
    pub fn serve(
        &self,
        caller: &Caller,
        mut request: http::Request<Incoming>,
    ) -> BoxFuture<'static, http::Response<PeerBody>> {
        request.extensions_mut().insert(caller.clone());
        let mut server = self.0.clone();
        Box::pin(async move {
            match server.call(request).await {
                Ok(response) => response.map(|body| body.map_err(Into::into).boxed_unsync()),
                Err(never) => match never {},
            }
        })
    }
}

type Outgoing<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Fleet for FleetCalls {
    type WorkStream = Outgoing<v1::WorkerOrder>;
    type RouteStream = Outgoing<v1::RouteOrder>;

    async fn work(
        &self,
        request: Request<Streaming<v1::WorkerWord>>,
    ) -> Result<Response<Outgoing<v1::WorkerOrder>>, Status> {
        let caller = handshake::caller(&request, "worker", |roles| roles.worker)?;
        let mut incoming = request.into_inner();
        let first = handshake::first(&mut incoming).await?;
        let Some(worker_word::Word::Hello(handshake)) = first.word else { return Err(handshake::missing()) };
        let admitted = self.acceptor.admit(&caller, &handshake)?;
        let info = handshake.worker_info().map_err(|error| Status::invalid_argument(error.to_string()))?;
        let info = info.ok_or_else(|| Status::invalid_argument("the first message does not describe the worker"))?;
        let reporter = Reporter { worker: info.id.clone(), incarnation: info.incarnation };
        let (reports, outgoing) =
            admitted.handle.attach_worker(info).await.map_err(|error| self.acceptor.not_attached(&error))?;
        let audit = &admitted.handle.audit;
        let joined = audit.begin(AuditPort::Peer, &format!("node:{caller}"), "join", "worker");
        let worker = AuditResource { kind: "Worker".to_owned(), namespace: None, name: admitted.node.to_string() };
        audit.record(joined.about(vec![worker])).await;
        tracing::info!(event = "worker_stream_began", worker_id = %admitted.node, epoch = %admitted.epoch);
        let mut assembly = Assembly::<InventoryChange>::new(reporter);
        let session = Session {
            incoming,
            decode: move |message| decode_worker_message(message, &mut assembly),
            events: reports,
            pending: None,
            outgoing,
            split: order_parts,
            parts: None,
            term: TermGuard::new(Arc::clone(&self.acceptor), admitted.epoch, admitted.node),
        };
        let welcome = v1::WorkerOrder { order: Some(worker_order::Order::Welcome(admitted.welcome)) };
        let order = |order| v1::WorkerOrder { order: Some(order) };
        let outgoing = session.run().map(move |part| part.map(order));
        Ok(Response::new(Box::pin(stream::iter([Ok(welcome)]).chain(outgoing))))
    }

    async fn route(
        &self,
        request: Request<Streaming<v1::GatewayWord>>,
    ) -> Result<Response<Outgoing<v1::RouteOrder>>, Status> {
        let caller = handshake::caller(&request, "gateway", |roles| roles.gateway)?;
        let mut incoming = request.into_inner();
        let first = handshake::first(&mut incoming).await?;
        let Some(gateway_word::Word::Hello(handshake)) = first.word else { return Err(handshake::missing()) };
        let admitted = self.acceptor.admit(&caller, &handshake)?;
        let (events, outgoing) = admitted
            .handle
            .attach_gateway(admitted.node.clone(), handshake.region.clone())
            .await
            .map_err(|error| self.acceptor.not_attached(&error))?;
        tracing::info!(event = "gateway_stream_began", node = %admitted.node, epoch = %admitted.epoch);
        let session = Session {
            incoming,
            decode: decode_gateway_message,
            events,
            pending: None,
            outgoing,
            split: |change: RouteChange| Some(change.in_parts()),
            parts: None,
            term: TermGuard::new(Arc::clone(&self.acceptor), admitted.epoch, admitted.node),
        };
        let welcome = v1::RouteOrder { order: Some(route_order::Order::Welcome(admitted.welcome)) };
        let order = |part| v1::RouteOrder { order: Some(route_order::Order::Routes(part)) };
        let outgoing = session.run().map(move |part| part.map(order));
        Ok(Response::new(Box::pin(stream::iter([Ok(welcome)]).chain(outgoing))))
    }
}

type OrderParts = Box<dyn Iterator<Item = worker_order::Order> + Send>;

/// Splits an order for a worker into its parts.
fn order_parts(order: FromController) -> Option<OrderParts> {
    match order {
        FromController::Assigned(change) => Some(Box::new(change.in_parts().map(worker_order::Order::Assignment))),
        FromController::Credentials(set) => {
            // Wiped when the last part of it has gone.
            let bytes = Bytes::from_owner(set.to_wire());
            Some(Box::new(std::iter::once(worker_order::Order::Credentials(bytes))))
        }
        // That it is, the welcome says.
        FromController::Attached => None,
    }
}

/// Decodes a message of a worker; `None` if it is incomplete or unknown to this version.
fn decode_worker_message(
    message: v1::WorkerWord,
    assembly: &mut Assembly<InventoryChange>,
) -> Result<Option<InventoryChange>, Status> {
    let Some(worker_word::Word::Inventory(part)) = message.word else { return Ok(None) };
    let change = assembly.push(part).map_err(|error| Status::data_loss(error.to_string()))?;
    let left_out = assembly.left_out();
    if left_out > 0 {
        tracing::warn!(
            event = "replicas_unknown",
            left_out,
            "a worker reports replicas that this version cannot understand"
        );
    }
    Ok(change)
}

/// Decodes a message of a gateway.
fn decode_gateway_message(message: v1::GatewayWord) -> Result<Option<GatewayEvent>, Status> {
    Ok(match message.word {
        Some(gateway_word::Word::Demands(demands)) => Some(GatewayEvent::Demand(demands_of(demands))),
        Some(gateway_word::Word::Outcomes(outcomes)) => Some(GatewayEvent::Outcomes(outcomes_of(outcomes))),
        Some(gateway_word::Word::PageOut(name)) => {
            berth_spec::DeploymentName::new(&name).ok().map(GatewayEvent::PageOut)
        }
        Some(gateway_word::Word::Applied(seq)) => Some(GatewayEvent::Applied(seq)),
        Some(gateway_word::Word::AskWhole(_)) => Some(GatewayEvent::Resync),
        Some(gateway_word::Word::Hello(_)) | None => None,
    })
}
