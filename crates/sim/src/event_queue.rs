//! Scheduled events: one queue, by time; events due at the same time go in the order in which they were scheduled.

use std::{collections::BTreeMap, sync::Arc};

use berth_control::controller::PlanCommit;
use berth_spec::{ByteSize, Digest, Health, RevisionId, Time, WorkerId};

use crate::{
    fault::FaultId,
    request::{Answer, Attempt, RequestId},
    store::Stored,
    stream::{End, Message, StreamId},
};

/// Event of the simulation: a message that arrives, or a wait that ends.
#[derive(Debug, Clone)]
pub(crate) enum SimEvent {
    /// Over a stream.
    Message { stream: StreamId, message: Message },
    /// One end of a stream looks whether the other is still there.
    Keepalive { stream: StreamId, end: End },
    /// One end of a stream hears that the other closed it.
    Closed { stream: StreamId, end: End },
    /// A node tries to find the leader.
    Seek { node: WorkerId, start: u64 },
    /// A node's attempt at a stream arrives at a controller.
    Dial { node: WorkerId, start: u64, attempt: StreamId, to: WorkerId },
    /// The attempt failed; `leader` leads, as far as that controller knew.
    Declined { node: WorkerId, start: u64, attempt: StreamId, leader: Option<WorkerId> },
    /// A worker's machine got something done.
    Done { worker: WorkerId, start: u64, event: berth_worker::Event },
    /// A controller's message arrives at the store.
    StoreRequest { from: WorkerId, start: u64, epoch: u64, ask: Arc<Ask> },
    /// The store's answer arrives.
    StoreReply { to: WorkerId, start: u64, epoch: u64, answer: Stored },
    /// The store tells a controller what changed up to `rev`.
    Watched { to: WorkerId, start: u64, rev: u64 },
    /// The members come to think this of a node.
    Health { observer: WorkerId, of: WorkerId, health: Health, news: u64 },
    /// A forwarded request arrives at a worker.
    RequestArrives { request: RequestId, attempt: Attempt, worker: WorkerId, revision: RevisionId },
    /// A worker has run a request.
    RequestRan { request: RequestId, attempt: Attempt, worker: WorkerId, start: u64, revision: RevisionId },
    /// The answer arrives at the gateway.
    AnswerArrives { request: RequestId, attempt: Attempt, worker: WorkerId, answer: Answer },
    /// A gateway gives up on an attempt that nothing came of.
    Silent { request: RequestId, attempt: Attempt },
    /// A client's patience ends.
    Patience { request: RequestId },
    /// A fault ends.
    FaultEnds(FaultId),
    /// A node that was stopped or leaves is started again.
    Restart { node: WorkerId, start: u64 },
}

/// A request of a controller to the store.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    /// To lead.
    Campaign,
    /// To go on leading; asked then.
    Renew(Time),
    /// To lead no longer.
    Resign,
    /// All that is stored.
    Read,
    /// To store a plan.
    Commit(PlanCommit),
    /// To remember what an artifact takes.
    Measure(Digest, ByteSize),
}

impl SimEvent {
    /// The node that has to be awake for it.
    pub(crate) fn wakes(&self) -> Option<&WorkerId> {
        match self {
            Self::Seek { node, .. } | Self::Declined { node, .. } | Self::Done { worker: node, .. } => Some(node),
            Self::Dial { to, .. } | Self::StoreReply { to, .. } | Self::Watched { to, .. } => Some(to),
            Self::RequestArrives { worker, .. } | Self::RequestRan { worker, .. } => Some(worker),
            Self::Health { observer, .. } => Some(observer),
            _ => None,
        }
    }
}

/// Events by the time at which they are due.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    events: BTreeMap<(Time, u64), SimEvent>,
    scheduled: u64,
}

impl EventQueue {
    pub(crate) fn send(&mut self, at: Time, event: SimEvent) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Time> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next one that is due.
    pub(crate) fn take(&mut self, now: Time) -> Option<SimEvent> {
        self.events.first_entry().filter(|entry| entry.key().0 <= now).map(|entry| entry.remove())
    }
}
