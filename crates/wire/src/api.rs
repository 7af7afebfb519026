//! The stable JSON shapes of the control API: what `GET /v1/...` answers and `berth get -o json` prints.
//!
//! Every object has `apiVersion`, `kind` and `metadata.name`; what people declare is under `spec`, what is true under
//! `status`. Lists are [`List`]. Field names are camelCase, sizes are bytes, points in time RFC 3339 in UTC,
//! durations milliseconds with the unit in the field's name. Fields are only ever added: readers ignore what they do
//! not know, and shapes that come back (`Deserialize`) default what may be missing.
//!
//! `control::api` fills these from the controller's answers.

mod alias;
mod apply;
mod audit;
mod dashboard;
mod deployment;
mod error;
mod event;
mod explain;
mod failure;
mod fleet;
mod function;
mod join_token;
mod log;
mod node;
mod plan;
mod principal;
mod revocation;
mod rollout;
mod source;
mod time;
mod token;
mod top;
mod watch;

pub use alias::{AliasStatus, AliasTarget, AliasView};
pub use apply::{Applied, ApplyResult, FieldChange, Outcome, Validated};
pub use audit::{AuditOutcome, AuditPort, AuditRecord, AuditResource, AuditView, NodeAudit};
pub use dashboard::{HistoryLine, HistoryView, LeavesFirst, MemoryPart, ModelPage, ModelRow, Pulse, WorkerMemory};
pub use deployment::{
    ConditionView, DeploymentMetadata, DeploymentStatus, DeploymentView, Progress, ReplicaCount, ReplicaDetail,
    RevisionPair,
};
pub use error::{ErrorBody, ErrorDetail, ErrorInfo};
pub use event::{EventView, SeverityView};
pub use explain::{ExplainView, Rejection, Victim, WorkerVerdict, WorkerVerdictKind};
pub use failure::{AttemptView, BreakerView, EvictionView, FailureView, TermsView};
pub use fleet::{Memory, ReplicaState, ReplicaView, RevisionState, RevisionView, WorkerSpec, WorkerStatus, WorkerView};
pub use function::{
    FunctionArtifact, FunctionBuild, FunctionCondition, FunctionMetadata, FunctionRevision, FunctionStatus,
    FunctionView,
};
pub use join_token::{CreatedJoinToken, JoinTokenSpec, JoinTokenStatus, JoinTokenView, NewJoinToken};
pub use log::{LogLine, LogView, NodeLog};
pub use node::{
    Capacity, ClusterStatus, Cpus, DrainStep, DrainView, ExpectedView, GpuView, MassLossView, Models, NodeList,
    NodeSpec, NodeStatus, NodeView, RuntimeView,
};
pub use plan::{PlanStep, PlanView, RegistryDraft, StepKind, Unplaced, WorkerDraft, WorkerMemoryChange};
pub use principal::{GrantView, PrincipalStatus, PrincipalView};
pub use revocation::{NewRevocation, RevocationSpec, RevocationStatus, RevocationView};
pub use rollout::{PastGeneration, RolloutHistory};
pub use source::{
    RefusedRevision, SecretStatus, SecretView, SourceBreaker, SourceSpec, SourceStatus, SourceView, StuckDeployments,
};
pub use time::{InvalidTimestamp, Timestamp};
pub use token::{CreatedToken, NewToken, TokenLimits, TokenSpec, TokenStatus, TokenView};
pub use top::{LatencyMs, ModelTop, TopView};
pub use watch::{Bookmark, EventWatch, WatchEvent};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The version of every object here and of manifests.
pub const API_VERSION: &str = "berth.dev/v1";

/// The header that carries the base of relative `file:` URIs in applied manifests: the URI of the folder that the
/// manifest lies in, with a slash at the end.
pub const BASE_URI_HEADER: &str = "x-berth-base-uri";

/// Largest request body in bytes. Holds a folder of 20,000 manifests, and bounds memory while it is parsed.
pub const MAX_BODY: usize = 16 << 20;

/// A page of objects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Kind of the list, for example `ModelDeploymentList`.
    pub kind: String,
    /// The objects, by name.
    pub items: Vec<T>,
    /// Place of the page in the list.
    pub metadata: ListMetadata,
}

/// Place of a page in its list, and the state that it shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMetadata {
    /// The state that the page shows; a watch from here misses nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// There is more: ask again with `continue` set to this.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    pub continue_: Option<String>,
}

/// Readiness of all resident models.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadinessView {
    /// True if all resident models are ready.
    pub ready: bool,
    /// The controller has planned at least once since it started.
    pub planned: bool,
    /// Deployments with `replicas.min` of 1 or more.
    pub expected: u32,
    /// The number of them that have a ready replica.
    pub available: u32,
    /// The first few that have none.
    pub missing: Vec<String>,
}

/// Versions of the server and of its objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VersionView {
    /// The server's version of Berth.
    pub version: String,
    /// The version of the objects: `berth.dev/v1`.
    pub api_version: String,
}

/// Name and labels: the metadata of everything but a deployment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Unique among objects of the kind.
    pub name: String,
    /// Labels set by users.
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub labels: std::collections::BTreeMap<String, String>,
}

impl Metadata {
    /// A name without labels.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

/// An object that comes in lists.
pub trait Kind {
    /// The word in `kind`, in the singular; the list's is this and `List`.
    const KIND: &'static str;
}

impl<T: Kind> List<T> {
    /// The whole of a list that is not paged.
    #[must_use]
    pub fn of(items: Vec<T>) -> Self {
        Self::page(items, ListMetadata::default())
    }

    /// One page of a list, with the way to the next in `metadata`.
    #[must_use]
    pub fn page(items: Vec<T>, metadata: ListMetadata) -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: format!("{}List", T::KIND), items, metadata }
    }
}
