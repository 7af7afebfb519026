//! A declared name for other deployments: requests under it are shared out among them by weight.

use std::collections::BTreeMap;

use crate::{DeploymentName, Generation, Origin, Time, routes::Stickiness};

/// An alias as the system holds it. Its targets are deployments of its own namespace.
#[derive(Debug, Clone, PartialEq)]
pub struct Alias {
    /// The name that clients use. No deployment has the same one.
    pub name: DeploymentName,
    /// Counts changes of targets and stickiness.
    pub generation: Generation,
    /// Free labels, for `berth get -l`.
    pub labels: BTreeMap<String, String>,
    /// The source that declared it.
    pub origin: Origin,
    /// The time of its first declaration.
    pub created: Time,
    /// Deployments with their weights; none twice. A weight of 0 gets no requests.
    pub targets: Vec<(DeploymentName, u32)>,
    /// The rule by which requests keep to one target.
    pub sticky: Stickiness,
}

/// The state of one target of an alias.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetStatus {
    /// The deployment that gets the share; it need not exist.
    pub deployment: DeploymentName,
    /// Its declared weight, compared with those of the other targets.
    pub weight: u32,
    /// Its share of the requests now, in percent: targets that do not exist get none.
    pub share: u32,
    /// The phase of the deployment; `None` where it does not exist.
    pub phase: Option<crate::status::Phase>,
}
