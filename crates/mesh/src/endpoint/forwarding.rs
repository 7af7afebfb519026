//! State that all forwarded requests of a gateway share.

use std::sync::Arc;

use crate::{
    body::upload::ReplayBudget,
    config::{Limits, PropagateHook},
    endpoint::{
        budget::Budget,
        fleet::{Fleet, Remotes},
        tick::Clock,
    },
    metrics::forward::Hops,
};

/// The state that all forwarded requests share; one per gateway.
pub(crate) struct Forwarding {
    pub(crate) remotes: Arc<Remotes>,
    pub(crate) budget: Budget,
    pub(crate) room: Arc<ReplayBudget>,
    pub(crate) propagate: Option<PropagateHook>,
    pub(crate) hops: Hops,
}

impl Forwarding {
    pub(crate) fn new(fleet: Fleet, limits: &Limits, propagate: Option<PropagateHook>) -> Self {
        Self {
            remotes: Arc::new(Remotes::new(fleet, Clock::start())),
            budget: Budget::new(limits.retry_burst),
            room: ReplayBudget::new(limits.replay_total),
            propagate,
            hops: Hops::default(),
        }
    }
}
