//! Objects of a Kubernetes cluster as a source of deployments: what is there is declared, what is deleted goes, and the state of
//! each model is written into its object's status.
//!
//! ```text
//!  API server ──watch──▶ Objects ──▶ plan: objects → Snapshot, refusals ──▶ berth_control::source
//!       ▲                                                                          │
//!       └── status of each object ◀── status: object × verdict × state ◀── watch ──┘
//! ```
//! Kinds: `ModelDeployment` with `spec.fleet` (docs/kubernetes.md), and those of KServe and ModelMesh (docs/from-kserve.md). A kind
//! whose custom resource is not installed has no objects; it is found once it is. Objects get no finalizer: a deletion never waits for a
//! fleet, and a fleet that was away deletes what is gone when it comes back.
//!
//! Only the leader follows, for its term. Not here: the conversion of fields (`berth_spec::dialect::kserve`), reconciling
//! (`berth_control::source`), pods of models (`berth_operator`).
//!
//! Reading order: [`KubernetesSource`]; `kind`, `objects` and `plan`, from objects to what is declared; `state` and `status`, from the
//! fleet to what users' tools read, `fleet_deployments`, what the fleet tells; `follow`, the driver; `cluster`, the connection. Beside the source: `install`,
//! what runs a fleet in a cluster, and `pods`, by which its pods become nodes.

mod cluster;
mod definitions;
mod fleet_deployments;
mod follow;
mod install;
mod kind;
mod metrics;
mod objects;
mod plan;
mod pods;
mod routes;
mod runtimes;
mod state;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use berth_control::{
    handle::Error,
    source::{Context, Requests, Source},
};
use berth_spec::Origin;
use futures::{FutureExt, future::BoxFuture};

pub use definitions::kserve_definitions;
pub use install::{ClusterSettings, FleetSettings, cluster_objects, fleet_objects, with_pool};
pub use metrics::{KubernetesMetrics, SourceMetrics};
pub use pods::{JoiningPods, attestation};
pub use routes::Gateway;

/// The settings of a Kubernetes source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// The context of the kubeconfig; `None`: the current one, in a pod its service account.
    pub context: Option<String>,
    /// The only namespace that is followed; `None`: all.
    pub namespace: Option<String>,
    /// Labels that objects must have, as `kubectl -l` takes them.
    pub selector: Option<String>,
    /// The address of the models for clients: `http://HOST:PORT`, or one for each object with `{name}` and `{namespace}` in it.
    pub url: Option<String>,
    /// The Gateway that gets a route for each `InferenceService`; needs an address for each in `url`.
    pub gateway: Option<Gateway>,
}

/// A cluster whose objects are followed.
#[derive(Debug)]
pub struct KubernetesSource {
    config: KubernetesConfig,
    metrics: SourceMetrics,
}

impl KubernetesSource {
    /// Follows what `config` names. Nothing is connected yet.
    #[must_use]
    pub const fn new(config: KubernetesConfig, metrics: SourceMetrics) -> Self {
        Self { config, metrics }
    }
}

impl Source for KubernetesSource {
    fn kind(&self) -> &'static str {
        "kubernetes"
    }

    /// Without the selector: other labels are no other place, and what they leave out is deleted.
    fn origin(&self) -> Origin {
        let namespace = self.config.namespace.as_deref().unwrap_or("all namespaces");
        let place = match &self.config.context {
            Some(context) => format!("{context}: {namespace}"),
            None => namespace.to_owned(),
        };
        Origin::new(self.kind(), &place)
    }

    fn run(self: Arc<Self>, context: Context, requests: Requests) -> BoxFuture<'static, Result<(), Error>> {
        async move {
            let ended = follow::run(&self.config, &self.metrics, context, requests).await;
            // Another node may follow now.
            self.metrics.ended();
            ended
        }
        .boxed()
    }
}
