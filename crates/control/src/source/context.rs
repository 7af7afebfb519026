//! The seam of a source: what it is, and what it works with.

use std::sync::Arc;

use berth_spec::{DeploymentName, Epoch, Event, Origin, Time, WorkerId, event::Severity};
use berth_wire::{
    access::Action,
    api::{AuditPort, AuditResource},
};
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{
    Checkpoint, Reconciled, Requests, Snapshot, SourceName, SourceStatus, Webhook, WorkerSecret, reconcile::Reconciler,
    sources::CredentialSets,
};
use crate::{Handle, handle::Error, store::Store};

/// A place outside of the API from which deployments, functions and settings of workers come.
pub trait Source: Send + Sync {
    /// Its kind, a lower-case word: `directory`, `git`.
    fn kind(&self) -> &'static str;

    /// The owner of what it declares: one place, one origin.
    fn origin(&self) -> Origin;

    /// Follows the source until [`Context::shutdown`]. After an error it is started again, some seconds later.
    fn run(self: Arc<Self>, context: Context, requests: Requests) -> BoxFuture<'static, Result<(), Error>>;
}

/// Working context of a source in one term. Cheap to clone; clones share their state.
#[derive(Clone)]
pub struct Context {
    pub(super) name: SourceName,
    pub(super) handle: Handle,
    pub(super) epoch: Epoch,
    pub(super) shutdown: CancellationToken,
    pub(super) reconciler: Arc<Reconciler>,
}

impl Context {
    /// Name of the source in this process's configuration, unique there.
    #[must_use]
    pub const fn name(&self) -> &SourceName {
        &self.name
    }

    /// The control plane: for questions about the fleet.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The store of the term: it refuses writes once the term is over.
    #[must_use]
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.handle.store)
    }

    /// The term of the leader; 0: this process is alone.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Token that is cancelled at the end of the term: return from [`Source::run`] then.
    #[must_use]
    pub const fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// The time by the controller's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.handle.now()
    }

    /// Makes what is declared equal to a snapshot: settings of workers, then what is disabled, the rest, deletions last.
    /// What is as it should be is not written.
    ///
    /// # Errors
    /// Those of the control plane as a whole; a part may be done: try again. A deployment that cannot be declared is in
    /// [`Reconciled::problems`].
    pub async fn apply(&self, snapshot: &Snapshot) -> Result<Reconciled, Error> {
        let taken = match &snapshot.workers {
            Some(workers) => self.handle.set_worker_settings(&self.name, workers).await?,
            None => Vec::new(),
        };
        let mut reconciled = self.reconciler.reconcile(snapshot).await?;
        self.record(&snapshot.revision, &reconciled).await;
        reconciled.problems.extend(taken);
        Ok(reconciled)
    }

    /// Takes all replicas from those of `names` that this source owns and that have some. [`Context::apply`] goes by its
    /// snapshot again.
    ///
    /// # Errors
    /// As [`Context::apply`].
    pub async fn disable(&self, names: impl IntoIterator<Item = DeploymentName>) -> Result<Reconciled, Error> {
        let reconciled = self.reconciler.disable(names.into_iter().collect()).await?;
        self.record("", &reconciled).await;
        Ok(reconciled)
    }

    /// Records in the audit log what a revision changed.
    async fn record(&self, revision: &str, reconciled: &Reconciled) {
        let audit = &self.handle.audit;
        let at = if revision.is_empty() { String::new() } else { format!("@{revision}") };
        let principal = format!("source:{}{at}", self.name);
        let models = |name: &DeploymentName| AuditResource {
            kind: "ModelDeployment".to_owned(),
            namespace: Some(name.namespace().to_owned()),
            name: name.name().to_owned(),
        };
        let functions = |name: &DeploymentName| AuditResource {
            kind: "Function".to_owned(),
            namespace: Some(name.namespace().to_owned()),
            name: name.name().to_owned(),
        };
        let all: [(&str, Vec<AuditResource>); 3] = [
            ("apply", reconciled.changed.iter().map(models).collect()),
            ("delete", reconciled.deleted.iter().map(models).collect()),
            ("apply", reconciled.functions.iter().map(functions).collect()),
        ];
        for (operation, resources) in all {
            if resources.is_empty() {
                continue;
            }
            let record = audit.begin(AuditPort::Source, &principal, Action::Declare.as_str(), operation);
            audit.record(record.about(resources)).await;
        }
    }

    /// Takes over what another origin declared, with the next snapshot: the same source at its place before.
    pub fn take_over(&self, formerly: Origin) {
        self.reconciler.take_over(formerly);
    }

    /// Gives workers their credentials; they are kept in memory, and never stored or logged.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub async fn set_credentials(&self, credentials: CredentialSets, secrets: Vec<WorkerSecret>) -> Result<(), Error> {
        let all = self.handle.sources.set_credentials(&self.name, credentials);
        self.handle.set_credentials(all).await?;
        self.handle.sources.set_secrets(&self.name, secrets);
        Ok(())
    }

    /// Changes what people see of the source.
    pub fn update_status(&self, change: impl FnOnce(&mut SourceStatus)) {
        self.handle.sources.update(&self.name, change);
    }

    /// The status that people see of this source; `None` if it is not listed.
    #[must_use]
    pub fn status(&self) -> Option<SourceStatus> {
        self.handle.sources.get(&self.name)
    }

    /// Checks webhooks from now on; without, every webhook is taken.
    pub fn set_webhook(&self, webhook: Arc<dyn Webhook>) {
        self.handle.sources.set_webhook(&self.name, webhook);
    }

    /// The bytes in a slot of the checkpoint.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn load(&self, slot: &str) -> Result<Option<Bytes>, Error> {
        Checkpoint::new(self.handle.clone(), self.name.clone()).load(slot).await
    }

    /// Replaces the bytes in a slot of the checkpoint: the next leader reads them.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::Stopped`] where a later term has begun.
    pub async fn save(&self, slot: &str, value: Bytes) -> Result<(), Error> {
        Checkpoint::new(self.handle.clone(), self.name.clone()).save(slot, value).await
    }

    /// Adds an event to those that people can list.
    pub async fn event(
        &self,
        severity: Severity,
        reason: &'static str,
        message: String,
        deployment: Option<DeploymentName>,
        worker: Option<WorkerId>,
    ) {
        self.note(Event { at: self.now(), severity, reason, message, deployment, worker, function: None }).await;
    }

    /// Adds an event about a function.
    pub async fn function_event(&self, severity: Severity, reason: &'static str, message: String, function: String) {
        let (deployment, worker, function) = (None, None, Some(function));
        self.note(Event { at: self.now(), severity, reason, message, deployment, worker, function }).await;
    }

    async fn note(&self, event: Event) {
        let reason = event.reason;
        if let Err(error) = self.handle.note(event).await {
            // The log has it as well: no reason to stop.
            tracing::debug!(event = "event_not_kept", source = %self.name, %error, reason);
        }
    }

    /// Adds a warning to the events.
    pub async fn warn(&self, reason: &'static str, message: String) {
        self.event(Severity::Warning, reason, message, None, None).await;
    }
}
