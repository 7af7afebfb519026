//! A stream between a node and the controller that leads: what goes over it arrives in order or not at all.
//!
//! ```text
//!          ┌── message ──▶ arrives, unless ┌ the end has closed:  dropped
//!  an end ─┤                            └ a cut lies between:  stuck ──healed──▶ arrives, in order
//!          └── KEEPALIVE without an answer ──▶ this end closes; the other finds out by itself
//! ```
//! The two ends close at different times: a leader that was paused believes in streams whose nodes have long gone
//! elsewhere.

use std::collections::BTreeMap;

use berth_spec::{AssignmentChange, GatewayEvent, InventoryChange, RouteChange, Time, WorkerId};

/// Names a stream, also the attempt at one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamId(pub(crate) u64);

/// One end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// The worker's or gateway's.
    Node,
    /// The controller's.
    Controller,
}

/// A message on a stream.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    /// A worker reports.
    Report(InventoryChange),
    /// A gateway speaks.
    Gateway(GatewayEvent),
    /// A worker is assigned something.
    Assigned(AssignmentChange),
    /// A gateway is told routes.
    Routes(RouteChange),
}

impl Message {
    /// The end that it goes to.
    pub(crate) const fn to(&self) -> End {
        match self {
            Self::Report(_) | Self::Gateway(_) => End::Controller,
            Self::Assigned(_) | Self::Routes(_) => End::Node,
        }
    }
}

/// A stream between one node and the controller that it found to lead.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) node: WorkerId,
    pub(crate) controller: WorkerId,
    /// The leader's term in which it was made.
    pub(crate) epoch: u64,
    /// The ends that are open.
    pub(crate) open: BTreeMap<End, Side>,
    /// Messages that a cut keeps from arriving, in order.
    pub(crate) stuck: Vec<Message>,
}

/// An open end.
#[derive(Debug, Default)]
pub(crate) struct Side {
    /// When the last message arrives here: none overtakes another.
    pub(crate) last: Time,
}

impl Stream {
    pub(crate) fn new(node: WorkerId, controller: WorkerId, epoch: u64) -> Self {
        let open = [End::Node, End::Controller].map(|end| (end, Side::default())).into();
        Self { node, controller, epoch, open, stuck: Vec::new() }
    }

    /// The node at an end, and the one at the other.
    pub(crate) const fn ends(&self, end: End) -> (&WorkerId, &WorkerId) {
        match end {
            End::Node => (&self.node, &self.controller),
            End::Controller => (&self.controller, &self.node),
        }
    }

    pub(crate) fn is_open(&self, end: End) -> bool {
        self.open.contains_key(&end)
    }
}
