//! A controller's process: it stands for election, and while it leads it runs the real brain.

use std::collections::BTreeMap;

use berth_control::controller::Controller;
use berth_spec::{Health, Time, WorkerId};

use crate::{election::Election, stream::StreamId};

/// A controller's election, and its term while it believes to lead. Lost with the process.
pub struct ControllerNode {
    /// `None`: it is the only one, and leads.
    pub(crate) election: Option<Election>,
    /// The term in which it believes to lead.
    pub(crate) term: Option<Term>,
    /// The health of nodes, as the members report it.
    pub(crate) members: BTreeMap<WorkerId, Health>,
}

/// A term: from the moment when the store was read until it ends.
pub(crate) struct Term {
    /// The rev at which the leader key was created.
    pub(crate) epoch: u64,
    /// The brain, once the store has been read.
    pub(crate) brain: Option<Controller>,
    /// The rev up to which the store's changes were told.
    pub(crate) told: u64,
    /// The rev up to which they are on their way.
    pub(crate) sent: u64,
    /// The streams of workers.
    pub(crate) workers: BTreeMap<WorkerId, StreamId>,
    /// The streams of gateways; their number is the gateway's.
    pub(crate) gateways: BTreeMap<StreamId, WorkerId>,
}

impl Term {
    pub(crate) fn new(epoch: u64) -> Self {
        Self { epoch, brain: None, told: 0, sent: 0, workers: BTreeMap::new(), gateways: BTreeMap::new() }
    }
}

impl ControllerNode {
    pub(crate) fn new(election: Option<Election>) -> Self {
        Self { election, term: None, members: BTreeMap::new() }
    }

    /// When its brain has something to do, by the node's clock.
    pub(crate) fn brain_wakes_at(&self) -> Option<Time> {
        self.term.as_ref().and_then(|term| term.brain.as_ref()).and_then(Controller::wake_at)
    }

    /// The brain and its epoch, while it believes to lead.
    #[must_use]
    pub fn leads(&self) -> Option<(u64, &Controller)> {
        let term = self.term.as_ref()?;
        Some((term.epoch, term.brain.as_ref()?))
    }
}
