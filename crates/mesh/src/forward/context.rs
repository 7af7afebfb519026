//! One request on its way: for which deployment, and until when.

use std::sync::Arc;

use berth_spec::{InferError, inference::Shed};
use tokio::time::Instant;

use crate::{
    accounts::Key,
    deployment::{DeploymentState, VersionLease},
    endpoint::target::LocalTarget,
    local::Model,
    parking::ReplicaRequest,
    resolved::RevisionSelector,
    stack::Stack,
};

/// The fixed facts about a request while it looks for a replica: deployment, key, version, deadline.
pub(crate) struct RequestContext<'a> {
    pub(crate) stack: &'a Stack,
    pub(crate) entry: Arc<DeploymentState>,
    /// The caller and the model, for places and memory.
    pub(crate) holder: Arc<Key>,
    /// `None`: whichever version the route says.
    pub(crate) version: Option<&'a str>,
    /// Requests of an alias with the same key keep to one revision.
    pub(crate) key: Option<u64>,
    pub(crate) deadline: Instant,
    pub(crate) purpose: Purpose,
}

/// The use of the model that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An inference that the gateway decodes.
    Infer,
    /// A call that the model answers by itself, perhaps with a stream: nobody knows when the head of its answer is late, and
    /// without a timeout it may last as long as any.
    Exchange,
    /// A question about the model, which runs nothing.
    Describe,
}

impl RequestContext<'_> {
    /// True if a request that may have arrived may be sent again.
    pub(crate) fn is_idempotent(&self) -> bool {
        self.purpose == Purpose::Describe || self.entry.route().terms.idempotent
    }

    /// True if a request that failed on the own replica of `here` goes on elsewhere: another node holds the revision,
    /// and the request was not run, or may be run again.
    pub(crate) fn leaves(&self, here: &LocalTarget, error: &InferError) -> bool {
        let Some(forwarding) = self.stack.forwarding.as_deref() else { return false };
        let again = match error {
            InferError::Shed { reason: Shed::Unavailable | Shed::QueueFull, .. } => true,
            InferError::Lost(_) => self.is_idempotent(),
            _ => false,
        };
        let taken =
            || matches!(error, InferError::Shed { .. }) || forwarding.budget.take(forwarding.remotes.clock().now());
        again && self.entry.is_elsewhere(&here.revision) && taken()
    }

    /// The model here, if it is here now. Takes no lease.
    pub(crate) fn model(&self, here: Option<&LocalTarget>) -> Option<Arc<dyn Model>> {
        let replicas = &self.stack.parking.replicas;
        let route = self.entry.route();
        let target = match here {
            Some(here) => route.targets.iter().find(|target| target.revision == here.revision),
            None => route.main_version(),
        };
        // The route holds it nearly always, which saves a look into the map.
        if let Some(replica) = target.and_then(|target| target.replica.as_ref()) {
            return Some(Arc::clone(replica.model()));
        }
        let revision = here.map(|here| &here.revision).or(target.map(|target| &target.revision))?;
        replicas.get(revision).map(|replica| Arc::clone(replica.model()))
    }

    /// Until when a replica is waited for: a call that may last long does not wait long for its beginning.
    pub(crate) fn latest_start(&self) -> Instant {
        match self.purpose {
            Purpose::Exchange => self.deadline.min(Instant::now() + self.entry.route().terms.timeout),
            Purpose::Infer | Purpose::Describe => self.deadline,
        }
    }

    /// The request for a replica, now or once there is one.
    pub(crate) fn replica_request(&self) -> ReplicaRequest<'_> {
        ReplicaRequest { entry: &self.entry, key: &self.holder, version: self.version, deadline: self.latest_start() }
    }

    /// The error of a request whose deadline has passed outside a model's queue.
    pub(crate) fn timed_out(&self) -> InferError {
        InferError::TimedOut(format!(
            "model {:?} had not answered when the request's time was over",
            self.entry.name.as_str()
        ))
    }

    /// The wishes that concern the revision.
    pub(crate) fn wanted(&self) -> RevisionSelector<'_> {
        RevisionSelector { version: self.version, key: self.key }
    }

    /// A lease here, if it can be had now.
    pub(crate) fn lease(&self, here: Option<&LocalTarget>) -> Option<VersionLease> {
        let replicas = &self.stack.parking.replicas;
        match here {
            Some(here) => self.entry.lease_of(here, replicas),
            None => self.entry.lease(self.wanted(), replicas).ok(),
        }
    }
}
