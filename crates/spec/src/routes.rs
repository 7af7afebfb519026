//! Routes: the ways of gateways from a name to ready replicas.

use std::time::Duration;

use crate::{DeploymentName, RevisionId, Time, UseLimits, WorkerId, deployment::Concurrency};

/// One deployment's way from its name to ready replicas. Every deployment has one; a cold one has nothing ready.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// The name that clients use.
    pub deployment: DeploymentName,
    /// The revisions that share the traffic, with weights; empty until something was ready once.
    pub split: Vec<(RevisionId, u32)>,
    /// Every revision that clients can reach, by version name. Those outside `split` answer to their version only.
    pub versions: Vec<Version>,
    /// The reaction to a request while nothing is ready.
    pub on_miss: OnMiss,
    /// Loaded by requests, and may be paged out (`replicas.min` is 0).
    pub on_demand: bool,
    /// The longest a request may take when the caller sets no deadline.
    pub timeout: Duration,
    /// Limits of requests at once per replica, and of parked ones.
    pub concurrency: Concurrency,
    /// Limits on its use by all callers together.
    pub limits: UseLimits,
    /// A request may be sent to another replica when it is not known whether the first one ran it.
    pub idempotent: bool,
    /// The path at which the gateway answers in the model's own JSON.
    pub endpoint: Option<Box<str>>,
}

/// One reachable revision.
#[derive(Debug, Clone, PartialEq)]
pub struct Version {
    /// The name that clients use.
    pub name: String,
    /// The revision behind the name.
    pub revision: RevisionId,
    /// Workers on which it is ready, or assumed to be.
    pub ready: Vec<WorkerId>,
}

/// A gateway's reaction to a request when nothing is ready.
#[derive(Debug, Clone, PartialEq)]
pub enum OnMiss {
    /// Park it and tell the controller: the model will be, or is being, loaded.
    Park,
    /// Refuse at once: no worker can hold it.
    NoCapacity {
        /// For people: why, and what to do.
        message: String,
        /// When it is tried again; `None`: only a change of the spec or of the workers helps.
        retry_at: Option<Time>,
    },
    /// Refuse at once: loading failed.
    Failed {
        /// For people: what went wrong, and what to do.
        message: String,
        /// When it is tried again; `None`: only a change helps.
        retry_at: Option<Time>,
    },
    /// Refuse at once: it is meant to have no replica.
    ScaledDown,
    /// Refuse at once: it was loaded, and the processes of all its replicas have died and are started again.
    Restarting {
        /// For people: which process, and how it died.
        message: String,
        /// When the first of them is started.
        again_at: Time,
    },
}

/// The routes on the wire: what differs from `base`. Whole when `base` is `None`: what is not named is gone.
/// A gateway that does not route by exactly `base` asks for the whole.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RouteChange {
    /// The number of the state that this leads to.
    pub seq: u64,
    /// The number of the state that this builds on.
    pub base: Option<u64>,
    /// Routes that are new or changed.
    pub set: Vec<Route>,
    /// Names that are gone, of deployments and aliases alike. They go before `set` and `aliases` come.
    pub unset: Vec<DeploymentName>,
    /// Aliases that are new or changed.
    pub aliases: Vec<AliasRoute>,
    /// Readiness of everything that should be resident.
    pub readiness: Readiness,
}

/// Readiness of everything that should be resident: the answer of `/v2/health/ready`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Readiness {
    /// The controller has planned at least once since it started.
    pub planned: bool,
    /// Deployments with `replicas.min` of 1 or more.
    pub expected: u32,
    /// The number of them that have a ready replica.
    pub ready: u32,
    /// The first few that have none.
    pub missing: Vec<DeploymentName>,
}

/// A declared name that leads to deployments. Requests are shared out among the deployments that the gateway knows, then
/// among the revisions of the chosen one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AliasRoute {
    /// The name that clients use.
    pub name: DeploymentName,
    /// Deployments with weights above 0, in declared order.
    pub targets: Vec<(DeploymentName, u32)>,
    /// The rule by which requests keep to one target.
    pub sticky: Stickiness,
}

/// The property by which requests keep to one target of a split. Requests that lack it are shared out smoothly.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Stickiness {
    /// No property: smooth over time.
    #[default]
    None,
    /// A header, or gRPC metadata, by its name in lower case.
    Header(String),
    /// The client's address.
    Client,
    /// A field of a JSON body: names with dots between them.
    Field(String),
}
