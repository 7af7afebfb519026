//! Inputs of the controller.

use std::sync::Arc;

use berth_plan::TypeRules;
use berth_spec::{
    Cordon, Deployment, DeploymentName, GatewayEvent, GatewayId, Health, InventoryChange, Time, UnknownWorkers,
    WorkerId, WorkerInfo, WorkerTerms, event::Severity,
};

use super::AliasChange;
use crate::store::Rev;

/// Something that happened; never an instruction.
#[derive(Debug, Clone)]
pub enum Event {
    /// The store took changes of deployments.
    Changed {
        /// The rev up to which everything has been told now.
        rev: Rev,
        /// Changes in the order of their commits.
        changes: Vec<Declared>,
    },
    /// The store took changes of aliases. They come before the [`Event::Changed`] of the same commit.
    Aliases(Vec<AliasChange>),
    /// The store took a word on a worker.
    Cordon {
        /// Name of the worker, attached or not.
        worker: WorkerId,
        /// Cordon that is in force from now on.
        cordon: Cordon,
    },
    /// The store took what the registry says of a worker.
    Terms {
        /// Name of the worker, attached or not.
        worker: WorkerId,
        /// New terms; `None` if the registry no longer lists the worker.
        terms: Option<Arc<WorkerTerms>>,
    },
    /// The store took what becomes of workers that the registry does not name.
    UnknownWorkers(UnknownWorkers),
    /// Models ask other labels of their workers, by their types.
    TypeRules(TypeRules),
    /// The members think this of a node's health. Not told where there are no members but this process.
    Member {
        /// Name of the node, which may have no worker.
        worker: WorkerId,
        /// Health as membership sees it.
        health: Health,
    },
    /// A worker was connected, or connected again.
    WorkerAttached(WorkerInfo),
    /// A worker's connection is gone.
    WorkerDetached(WorkerId),
    /// A worker said what it holds, or what changed of that.
    Reported(InventoryChange),
    /// A gateway was connected: it wants every route.
    GatewayAttached {
        /// Number of the connection: a gateway that connects again gets another.
        id: GatewayId,
        /// The node that it is on.
        node: WorkerId,
        /// The region that it is in, for the choice among replicas; `None` without regions.
        region: Option<String>,
    },
    /// A gateway's connection is gone.
    GatewayDetached(GatewayId),
    /// A gateway on this connection reports demand or results.
    Gateway(GatewayId, GatewayEvent),
    /// Somebody wants a deployment loaded, without a request for it.
    Wanted {
        /// Name of the deployment, which may have been deleted meanwhile.
        deployment: DeploymentName,
        /// Time at which it counts as used, for the choice of what leaves when room is short.
        last_used: Time,
    },
    /// The store took what [`Effect::Commit`](super::Effect::Commit) asked for, all of it.
    Committed,
    /// Not stored: another writer was faster, or the store failed.
    Refused,
    /// The time that [`wake_at`](super::Controller::wake_at) named has come.
    Tick,
}

/// A change of a deployment in the store.
#[derive(Debug, Clone)]
pub enum Declared {
    /// Declared, changed, or marked for deletion: the deployment as it is now.
    Set(Arc<Deployment>),
    /// Removed from the store.
    Gone(DeploymentName),
}

/// The event for people about a declaration; none where nothing about the spec changed.
pub(super) fn declared(before: Option<&Deployment>, after: &Deployment, now: Time) -> Option<berth_spec::Event> {
    let name = &after.name;
    let (reason, message) = match before {
        _ if after.deleting => ("Deleting", format!("{name} is being deleted")),
        None => ("Declared", format!("{name} was declared with {}", after.spec.model.uri)),
        Some(before) if before.generation == after.generation => return None,
        Some(before) if before.revision_id() != after.revision_id() => {
            ("Changed", format!("{name} generation {}: revision {}", after.generation, after.revision_id().hash()))
        }
        Some(_) => ("Changed", format!("{name} generation {}: the same revision", after.generation)),
    };
    if before.is_some_and(|before| before.deleting) && after.deleting {
        return None;
    }
    Some(berth_spec::Event {
        at: now,
        severity: Severity::Normal,
        reason,
        message,
        deployment: Some(name.clone()),
        worker: None,
        function: None,
    })
}

/// An event for people about a worker.
pub(super) fn worker(
    id: &WorkerId,
    severity: Severity,
    reason: &'static str,
    message: String,
    now: Time,
) -> berth_spec::Event {
    berth_spec::Event { at: now, severity, reason, message, deployment: None, worker: Some(id.clone()), function: None }
}
