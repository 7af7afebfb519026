//! The way in: everything that the rest of the process may ask of the control plane.
//!
//! Writes go to the store from the caller's own task (see [`declare`]) and come back to the driver as changes, so the
//! store stays the only truth and a burst of writes never queues in the driver. Questions go to the driver over a
//! bounded channel and cost it no more than what they return. A declaration returns once the gateways route by it: who asks
//! next, here or there, reads his own write.

pub(crate) mod aliases;
mod declare;
mod delete;
mod error;
mod join_tokens;
mod owner;
mod past;
mod queries;
mod revocations;
mod tokens;
pub(crate) mod view;
mod watching;
mod workers;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_plan::{preview::Preview, report::Explanation, world::MassLoss};
use berth_spec::{
    Alias, Cordon, CredentialSet, DeploymentName, FromController, GatewayEvent, InventoryChange, RouteChange, Time,
    WorkerId, WorkerInfo, alias::TargetStatus, routes::Readiness,
};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::{
    controller::{AbsentWorker, ExpectedWorker},
    driver::DeploymentChanges,
    events::{EventFilter, EventPage},
    resolve::Resolver,
    source::SourceName,
    store::{Rev, Store, layout},
};

pub use aliases::{ApplyAlias, DeclaredAlias, DeleteAlias, DeletedAlias, MissingTargets};
pub use declare::{Applied, ApplyMode, ApplyOutcome, ApplyRequest, Comparison, Ownership};
pub use delete::{DeleteRequest, Deleted};
pub use error::Error;
pub use past::Replaced;
pub use queries::PreviewRequest;
pub use view::{
    DeploymentPage, DeploymentView, KnownDeployment, ListRequest, ReplicaView, RevisionView, WorkerState, WorkerView,
};
pub use watching::{WatchEvent, WatchRequest, WatchStream};

/// Limit for a place in the driver's queue, and for its answer. The driver answers in microseconds and plans in
/// milliseconds, so a longer wait means a fault.
const PATIENCE: Duration = Duration::from_secs(10);

/// Limit for a write to take effect. After that the call returns anyway, because the write is durable.
const SEEN_WITHIN: Duration = Duration::from_secs(2);

/// The worker's end of its connection to the controller. The first thing that it hears is
/// [`Attached`](FromController::Attached).
pub type WorkerEnds = (mpsc::Sender<InventoryChange>, mpsc::Receiver<FromController>);

/// The gateway's end of its connection to the controller: events up, changes of routes down. The first of them is whole.
pub type GatewayEnds = (mpsc::Sender<GatewayEvent>, mpsc::Receiver<RouteChange>);

/// Access to the control plane. Cloning it is cheap.
#[derive(Clone)]
pub struct Handle {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) requests: mpsc::Sender<DriverRequest>,
    pub(crate) deployment_changes: broadcast::WeakSender<DeploymentChanges>,
    pub(crate) seen: watch::Receiver<Rev>,
    pub(crate) in_force: watch::Receiver<Rev>,
    pub(crate) readiness: watch::Receiver<Readiness>,
    pub(crate) clock: crate::driver::Clock,
    pub(crate) sources: crate::source::Sources,
    pub(crate) audit: berth_audit::AuditLog,
    pub(crate) functions: Option<Arc<dyn crate::functions::FunctionHost>>,
}

/// A question to the driver, which answers between two steps of the brain.
pub(crate) enum DriverRequest {
    Scan { scan: view::Scan, reply: oneshot::Sender<view::ScannedDeployments> },
    Aliases { scan: view::Scan, reply: oneshot::Sender<aliases::ScannedAliases> },
    AliasesOf { deployment: DeploymentName, reply: oneshot::Sender<Vec<DeploymentName>> },
    Want { name: DeploymentName, last_used: Time, reply: oneshot::Sender<bool> },
    AliasTargets { alias: Arc<Alias>, reply: oneshot::Sender<Vec<TargetStatus>> },
    Status { name: DeploymentName, reply: oneshot::Sender<Option<view::KnownDeployment>> },
    Explain { name: DeploymentName, reply: oneshot::Sender<Option<Explanation>> },
    Preview { changes: Vec<berth_plan::preview::Change>, reply: oneshot::Sender<Preview> },
    Workers { reply: oneshot::Sender<Vec<WorkerView>> },
    Absent { reply: oneshot::Sender<Vec<AbsentWorker>> },
    Expected { reply: oneshot::Sender<Vec<ExpectedWorker>> },
    MassLoss { reply: oneshot::Sender<Option<MassLoss>> },
    Replicas { reply: oneshot::Sender<Vec<ReplicaView>> },
    Events { filter: EventFilter, reply: oneshot::Sender<EventPage> },
    Note { event: Box<berth_spec::Event>, reply: oneshot::Sender<()> },
    AttachWorker { info: Box<WorkerInfo>, reply: oneshot::Sender<Result<WorkerEnds, Error>> },
    SetCredentials { sets: BTreeMap<WorkerId, Arc<CredentialSet>>, reply: oneshot::Sender<()> },
    AttachGateway { node: WorkerId, region: Option<String>, reply: oneshot::Sender<GatewayEnds> },
}

impl Handle {
    /// Connects a worker. It is lost when the receiver of assignments is dropped.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the control plane is stopping; [`Error::NameTaken`] while a later start of a worker with its
    /// name is connected; [`Error::Unlisted`] where the registry lets no worker in that it does not name.
    pub async fn attach_worker(&self, info: WorkerInfo) -> Result<WorkerEnds, Error> {
        self.ask(|reply| DriverRequest::AttachWorker { info: Box::new(info), reply }).await?
    }

    /// Connects the gateway of a node. The first thing it receives is every route.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the control plane is stopping.
    pub async fn attach_gateway(&self, node: WorkerId, region: Option<String>) -> Result<GatewayEnds, Error> {
        self.ask(|reply| DriverRequest::AttachGateway { node, region, reply }).await
    }

    /// Every worker that is attached or still remembered, by name.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub async fn workers(&self) -> Result<Vec<WorkerView>, Error> {
        self.ask(|reply| DriverRequest::Workers { reply }).await
    }

    /// Every worker that is gone and has not said to this controller what it is, by name.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub async fn absent(&self) -> Result<Vec<AbsentWorker>, Error> {
        self.ask(|reply| DriverRequest::Absent { reply }).await
    }

    /// Every worker that a source names and that has not come, by name, with the source.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`], [`Error::Store`].
    pub async fn expected(&self) -> Result<Vec<(ExpectedWorker, Option<SourceName>)>, Error> {
        let expected = self.ask(|reply| DriverRequest::Expected { reply }).await?;
        if expected.is_empty() {
            return Ok(Vec::new());
        }
        let mut sources = self.sources_of_terms().await?;
        Ok(expected
            .into_iter()
            .map(|one| {
                let source = sources.remove(&one.id);
                (one, source)
            })
            .collect())
    }

    /// The loss of many workers at once that is being held, if there is one.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub async fn mass_loss(&self) -> Result<Option<MassLoss>, Error> {
        self.ask(|reply| DriverRequest::MassLoss { reply }).await
    }

    /// Every replica that is assigned or held, by revision and worker.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub async fn replicas(&self) -> Result<Vec<ReplicaView>, Error> {
        self.ask(|reply| DriverRequest::Replicas { reply }).await
    }

    /// Explains the placement of a deployment.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Stopped`], [`Error::Busy`].
    pub async fn explain(&self, name: &DeploymentName) -> Result<Explanation, Error> {
        let found = self.ask(|reply| DriverRequest::Explain { name: name.clone(), reply }).await?;
        found.ok_or_else(|| Error::NotFound(name.clone()))
    }

    /// Has an on-demand deployment loaded as a request would, without one. Returns when the planner knows; it is loaded
    /// later, or it turns out that it cannot be. `last_used` says who has to leave first where room is short.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Stopped`], [`Error::Busy`].
    pub async fn want(&self, name: &DeploymentName, last_used: Time) -> Result<(), Error> {
        let there = self.ask(|reply| DriverRequest::Want { name: name.clone(), last_used, reply }).await?;
        if there { Ok(()) } else { Err(Error::NotFound(name.clone())) }
    }

    /// Recent events, oldest first.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub async fn events(&self, filter: EventFilter) -> Result<EventPage, Error> {
        self.ask(|reply| DriverRequest::Events { filter, reply }).await
    }

    /// Adds an event to those that people can list: for sources.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub async fn note(&self, event: berth_spec::Event) -> Result<(), Error> {
        self.ask(|reply| DriverRequest::Note { event: Box::new(event), reply }).await
    }

    /// Readiness of all resident deployments; changes can be awaited.
    #[must_use]
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.clone()
    }

    /// Keeps new replicas off a worker, moves those that it holds elsewhere, or lets them in again. Survives a restart.
    ///
    /// # Errors
    /// [`Error::NoWorker`] if no such worker is attached; [`Error::Store`].
    pub async fn cordon(&self, worker: &WorkerId, cordon: Cordon) -> Result<(), Error> {
        if !self.workers().await?.iter().any(|known| known.info.id == *worker) {
            return Err(Error::NoWorker(worker.clone()));
        }
        self.write_cordon(worker, cordon).await
    }

    /// True while the store says that the leader of the term `epoch` leads.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn leads(&self, epoch: berth_spec::Epoch) -> Result<bool, Error> {
        let leader = self.store.get(layout::LEADER).await?;
        Ok(leader.is_some_and(|leader| leader.created.0 == epoch.0))
    }

    /// True once the control plane has stopped for good.
    pub(crate) fn is_stopped(&self) -> bool {
        self.requests.is_closed()
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> DriverRequest) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        match self.requests.send_timeout(request(reply), PATIENCE).await {
            Ok(()) => {}
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => return Err(Error::Busy { retry_in: PATIENCE }),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => return Err(Error::Stopped),
        }
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(answer) => answer.map_err(|_| Error::Stopped),
            Err(_) => Err(Error::Busy { retry_in: PATIENCE }),
        }
    }

    /// Waits until the driver has seen `rev`, or gives up waiting.
    async fn until_seen(&self, rev: Rev) {
        until(&self.seen, rev, "a write returns before the driver has seen it").await;
    }

    /// Waits until requests are routed as things were declared at `rev`, or gives up waiting.
    async fn until_in_force(&self, rev: Rev) {
        until(&self.in_force, rev, "a write returns before requests are routed by it").await;
    }
}

async fn until(reached: &watch::Receiver<Rev>, rev: Rev, otherwise: &str) {
    let mut reached = reached.clone();
    let wait = tokio::time::timeout(SEEN_WITHIN, reached.wait_for(|reached| *reached >= rev)).await;
    if !matches!(wait, Ok(Ok(_))) {
        tracing::debug!(rev = rev.0, "{otherwise}");
    }
}
