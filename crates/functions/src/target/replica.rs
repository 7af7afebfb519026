//! Replicas: the artifact as the model of a deployment, which workers load and gateways route to.
//!
//! ```text
//! artifact ──▶ deployment NAME of the same namespace, a card whose code is Berth's own ──▶ placed, loaded, asked with spec.probe
//!                                                                      ──▶ /replicas/NAME, /replicas/NAMESPACE/NAME
//! ```
//! The deployment belongs to functions: others change it with `--force` only. A new version is a new revision, which takes over
//! when it is ready. The artifact is a file of the controller's machine, so that its replicas are on workers of that machine.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use berth_control::{
    Handle,
    handle::{ApplyRequest, DeleteRequest, Error, ListRequest, Ownership},
};
use berth_spec::{
    Class, DeploymentName, Generation, Origin, PinnedCard,
    manifest::{Manifest, ManifestDeployment, ParseContext, parse_all},
    status::{Phase, Status, Truth},
};
use futures::{FutureExt as _, future::BoxFuture};
use serde_json::json;

use super::Target;
use crate::{
    build::{ArtifactStore, BuildError, PYTHON_VERSION},
    controller::{Deployed, Failure, Served, Task},
    deployment::{FunctionName, FunctionSpec, Platform},
    status::ArtifactStatus,
};

/// Beginning of the paths that replicas of functions answer at; the key of the function follows.
const PREFIX: &str = "/replicas/";

/// The longest wait for a replica: a large framework is imported from a cold disk, beside other models that load.
const READY_TIMEOUT: Duration = Duration::from_secs(300);

/// Interval at which a deployment is looked at: short beside the load of a model.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Deployments of workers.
pub(crate) struct ReplicaTarget {
    /// The control plane of the term.
    handle: Mutex<Option<Handle>>,
    artifacts: Arc<ArtifactStore>,
    /// The gateway's address, as in `http://HOST:PORT`.
    gateway: String,
}

impl ReplicaTarget {
    pub(crate) fn new(artifacts: &Arc<ArtifactStore>, gateway: &str) -> Self {
        Self { handle: Mutex::default(), artifacts: Arc::clone(artifacts), gateway: gateway.to_owned() }
    }

    /// Takes the control plane of a term.
    pub(crate) fn attach(&self, handle: Handle) {
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
    }

    fn handle(&self) -> Result<Handle, BuildError> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).clone();
        handle.ok_or_else(|| BuildError::passing("NoController", "this node does not lead yet"))
    }

    /// Functions that have a deployment.
    pub(crate) async fn serving(&self) -> Result<BTreeMap<String, Served>, Error> {
        let (Ok(handle), mut serving) = (self.handle(), BTreeMap::new()) else { return Ok(BTreeMap::new()) };
        let mut after = None;
        loop {
            let page = handle.page(ListRequest { after, ..ListRequest::default() }).await?;
            let ours = page.items.iter().filter(|known| known.deployment.origin == origin());
            serving.extend(ours.map(|known| {
                let name = known.deployment.name.as_str();
                (name.to_owned(), Served { endpoint: Some(self.endpoint(name)), ..Served::default() })
            }));
            after = page.next;
            if after.is_none() {
                return Ok(serving);
            }
        }
    }

    fn endpoint(&self, name: &str) -> String {
        format!("{}{PREFIX}{name}", self.gateway)
    }

    async fn bring_up(&self, task: &Task, artifact: &ArtifactStatus) -> Result<Deployed, BuildError> {
        let Platform::Replica { count } = task.spec.platform else {
            return Err(BuildError::lasting("Internal", "this function does not belong to workers"));
        };
        let handle = self.handle()?;
        let zip = self.artifacts.path(&artifact.digest).filter(|path| path.is_file());
        let zip = zip.ok_or_else(ArtifactStore::gone)?;
        let manifest = manifest(&task.spec, count, &zip)?;
        let name = manifest.name.clone();
        let applied = handle.apply(ApplyRequest::new(manifest, origin())).await.map_err(|error| refused(&error))?;
        if !task.proved {
            ready(&handle, &name, applied.generation).await?;
        }
        Ok(Deployed { endpoint: self.endpoint(task.spec.name.as_str()), note: String::new() })
    }

    async fn take_down(&self, name: &str) -> Result<(), BuildError> {
        // What is no name of a function was never deployed.
        let Ok(name) = FunctionName::new(name).map(DeploymentName::from) else { return Ok(()) };
        let request = DeleteRequest { origin: origin(), expect: None, ownership: Ownership::Respect };
        match self.handle()?.delete(&name, request).await {
            // Somebody else's deployment has the name.
            Ok(_) | Err(Error::NotFound(_) | Error::Owned { .. }) => Ok(()),
            Err(error) => Err(refused(&error)),
        }
    }
}

impl Target for ReplicaTarget {
    fn deploy<'a>(&'a self, task: &'a Task, artifact: &'a ArtifactStatus) -> BoxFuture<'a, Result<Deployed, Failure>> {
        async move {
            let started = Instant::now();
            let done = self.bring_up(task, artifact).await;
            done.map_err(|error| error.into_failure(String::new(), started.elapsed()))
        }
        .boxed()
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let removed = self.take_down(name).await;
            removed.map_err(|error| error.into_failure(String::new(), Duration::ZERO))
        }
        .boxed()
    }
}

/// The owner of the deployments of functions.
fn origin() -> Origin {
    Origin::new("functions", "own")
}

/// The deployment of a function.
fn manifest(spec: &FunctionSpec, count: u32, zip: &Path) -> Result<ManifestDeployment, BuildError> {
    let python = spec.version.as_deref().unwrap_or(PYTHON_VERSION);
    let card = PinnedCard::of_function(python, &format!("file:{}", zip.display()), spec.probe.as_ref());
    let metadata = json!({"name": spec.name.name(), "namespace": spec.name.namespace()});
    let mut text = json!({
        "apiVersion": "berth.dev/v1",
        "kind": "ModelDeployment",
        "metadata": metadata,
        "spec": {
            "model": {"format": "python", "type": "function", "card": card},
            "replicas": {"min": count, "max": count},
            "endpoint": format!("{PREFIX}{}", spec.name),
        },
    });
    if !spec.hosts.is_empty() {
        text["spec"]["runtime"] = json!({"network": {"hosts": spec.hosts}});
    }
    match parse_all(&text.to_string(), &ParseContext::default()).map(|mut read| read.pop()) {
        Ok(Some(Manifest::Deployment(manifest))) => Ok(*manifest),
        Ok(_) => Err(BuildError::lasting("Internal", "the manifest of a function is none of a deployment")),
        Err(errors) => {
            let wrong = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            Err(BuildError::lasting("NotDeployed", format!("the function makes no deployment: {wrong}")))
        }
    }
}

/// Waits until a generation serves with all its replicas.
async fn ready(handle: &Handle, name: &DeploymentName, generation: Generation) -> Result<(), BuildError> {
    let end = Instant::now() + READY_TIMEOUT;
    loop {
        let view = handle.get(name).await.map_err(|error| refused(&error))?;
        let status = view.status.filter(|status| status.observed_generation == generation);
        if let Some(status) = &status {
            if status.phase == Phase::Available && status.serving.as_ref() == Some(&status.wanted) {
                return Ok(());
            }
            if let Some(why) = stuck(status) {
                return Err(BuildError::lasting("ReplicaFailed", why));
            }
        }
        if Instant::now() >= end {
            let why = status.as_ref().map(unavailable).unwrap_or_default();
            let message =
                format!("no worker had it ready within {} s; `berth explain {name}`. {why}", READY_TIMEOUT.as_secs());
            return Err(BuildError::passing("ReplicaLate", message));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The reason why a rollout will not end before somebody changes something.
fn stuck(status: &Status) -> Option<String> {
    let ended = |reason: &str| matches!(reason, "RolloutStuck" | "RolloutOverdue" | "LoadFailed");
    let progressing = status.conditions.iter().find(|condition| condition.kind == "Progressing")?;
    (progressing.status == Truth::False && ended(&progressing.reason)).then(|| match status.failures.first() {
        Some(failed) => format!("{} {}", progressing.message, failed.failure.message),
        None => progressing.message.clone(),
    })
}

/// The reason why nothing answers.
fn unavailable(status: &Status) -> String {
    let condition = status.conditions.iter().find(|condition| condition.kind == "Available");
    condition.map(|condition| condition.message.clone()).unwrap_or_default()
}

fn refused(error: &Error) -> BuildError {
    let message = format!("the deployment of the function: {error}");
    match error.class() {
        Class::Waiting { .. } | Class::Stalled | Class::Internal => BuildError::passing("NotDeployed", message),
        _ => BuildError::lasting("NotDeployed", message),
    }
}
