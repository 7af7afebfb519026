//! Connection of a gateway to its controller.
//!
//! The gateway numbers route changes through, whichever controller they come from: each connection counts from 1, and what
//! it counts is added to what came before. So messages on changes of an earlier connection can be told apart, and a gateway
//! that missed something notices. A new controller is told at once who waits: the gateway has said it to the last one.

use std::collections::BTreeMap;

use berth_spec::{Demand, DeploymentName, GatewayEvent, RouteChange, WorkerId};
use berth_wire::fleet::{
    Assembly, demands_to, outcomes_to,
    v1::{self, gateway_word, route_order},
};
use futures::{FutureExt, StreamExt};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    ConnectContext,
    connection::Client,
    leader_discovery::Target,
    stream::{Broken, ControllerStream, Dialling, client, incoming, outgoing, welcome},
};

/// The most changes of one connection: one in each millisecond for 30 years. The numbers of all connections are added up.
const MOST_CHANGES: u64 = 1 << 40;

/// A gateway's side of its connections: numbers changes anew, and repeats demand to a new controller.
pub(super) struct GatewayClient {
    context: ConnectContext,
    region: Option<String>,
    /// The number of the last change that the gateway was given.
    seq: u64,
    /// Value at the start of this connection.
    before: u64,
    /// Last demand reported for each deployment in use.
    in_use: BTreeMap<DeploymentName, Demand>,
}

impl GatewayClient {
    pub(super) fn new(context: ConnectContext, region: Option<String>) -> Self {
        Self { context, region, seq: 0, before: 0, in_use: BTreeMap::new() }
    }

    fn remember(&mut self, demands: &[Demand]) {
        for demand in demands {
            if demand.waiting == 0 && demand.in_flight == 0 {
                self.in_use.remove(&demand.deployment);
            } else {
                // How many requests there were, the last controller was told.
                self.in_use.insert(demand.deployment.clone(), Demand { requests: 0, ..demand.clone() });
            }
        }
    }
}

type GatewayStream = ControllerStream<GatewayEvent, RouteChange>;

impl Client for GatewayClient {
    const OF: &'static str = "gateway";
    type Outgoing = GatewayEvent;
    type Incoming = RouteChange;

    fn dial(&self, whom: &Target) -> Dialling<GatewayEvent, RouteChange> {
        let (context, region) = (self.context.clone(), self.region.clone());
        match whom {
            Target::Here => here(context, region).boxed(),
            Target::Node(name) => there(context, name.clone(), region).boxed(),
        }
    }

    fn attached(&mut self) -> Option<GatewayEvent> {
        self.before = self.seq;
        let demands: Vec<Demand> = self.in_use.values().cloned().collect();
        (!demands.is_empty()).then_some(GatewayEvent::Demand(demands))
    }

    fn up(&mut self, event: GatewayEvent) -> Option<GatewayEvent> {
        match event {
            GatewayEvent::Demand(demands) => {
                self.remember(&demands);
                Some(GatewayEvent::Demand(demands))
            }
            // Of an earlier connection, where it is 0 or less.
            GatewayEvent::Applied(seq) => {
                seq.checked_sub(self.before).filter(|seq| *seq > 0).map(GatewayEvent::Applied)
            }
            GatewayEvent::Outcomes(_) | GatewayEvent::PageOut(_) | GatewayEvent::Resync => Some(event),
        }
    }

    fn down(&mut self, change: RouteChange) -> RouteChange {
        self.seq = self.before.saturating_add(change.seq);
        RouteChange { seq: self.seq, base: change.base.map(|base| self.before.saturating_add(base)), ..change }
    }
}

async fn here(context: ConnectContext, region: Option<String>) -> Result<GatewayStream, Broken> {
    let (handle, epoch) = context.here()?;
    let attached = handle.attach_gateway(context.me.clone(), region).await;
    let (outgoing, changes) = attached.map_err(|error| Broken::Failed(error.to_string()))?;
    Ok(ControllerStream { epoch, far: false, outgoing, incoming: ReceiverStream::new(changes).map(Ok).boxed() })
}

async fn there(context: ConnectContext, name: WorkerId, region: Option<String>) -> Result<GatewayStream, Broken> {
    let peer = context.peer(&name)?;
    let hello = v1::Hello { region, ..context.hello() };
    let hello = v1::GatewayWord { word: Some(gateway_word::Word::Hello(hello)) };
    let (outgoing, body) = outgoing(hello, messages_of);
    let mut messages = client(&peer).route(context.request(body)).await?.into_inner();
    let epoch = welcome(&mut messages, |message: v1::RouteOrder| match message.order {
        Some(route_order::Order::Welcome(welcome)) => Some(welcome),
        _ => None,
    })
    .await?;
    let mut assembly = Assembly::<RouteChange>::new(());
    let incoming = incoming(peer, messages, move |message: v1::RouteOrder| {
        let Some(route_order::Order::Routes(part)) = message.order else { return Ok(None) };
        let change = assembly.push(part).map_err(|error| Broken::Failed(error.to_string()))?;
        let left_out = assembly.left_out();
        if left_out > 0 {
            tracing::warn!(event = "routes_unknown", left_out, "ignoring routes that this version does not understand");
        }
        if change.as_ref().is_some_and(|change| change.seq > MOST_CHANGES) {
            return Err(Broken::Failed("it numbers routes as no controller can have got to".to_owned()));
        }
        Ok(change)
    });
    Ok(ControllerStream { epoch, far: true, outgoing, incoming })
}

/// An event in the messages that it takes.
fn messages_of(event: GatewayEvent) -> std::vec::IntoIter<v1::GatewayWord> {
    use gateway_word::Word;
    let words: Vec<Word> = match event {
        GatewayEvent::Demand(demands) => demands_to(&demands).map(Word::Demands).collect(),
        GatewayEvent::Outcomes(outcomes) => outcomes_to(&outcomes).map(Word::Outcomes).collect(),
        GatewayEvent::PageOut(name) => vec![Word::PageOut(name.to_string())],
        GatewayEvent::Applied(seq) => vec![Word::Applied(seq)],
        GatewayEvent::Resync => vec![Word::AskWhole(true)],
    };
    words.into_iter().map(|word| v1::GatewayWord { word: Some(word) }).collect::<Vec<_>>().into_iter()
}
