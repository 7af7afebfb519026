//! Durable decisions about one deployment. The store keeps it, so that a restart goes on where the
//! last plan stopped; only the controller writes it. A deployment without replicas has none, unless a rollout is stuck or
//! shares requests between two revisions.

use berth_spec::{ByteSize, Generation, RevisionId, Time, WorkerId};
use serde::{Deserialize, Serialize};

use crate::Revisions;

/// The durable part of one deployment's plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The plan's number when this was last changed.
    pub generation: Generation,
    /// The revision that serves, and the one that is on its way.
    pub rollout: Rollout,
    /// The places of its replicas, ordered by revision, then worker; a revision is on a worker at most once.
    pub replicas: Vec<Replica>,
    /// The revisions that `replicas` and `rollout` name: an older one is no longer in the deployment.
    pub revisions: Revisions,
}

/// One replica that a worker should hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Replica {
    /// The revision that is loaded there.
    pub revision: RevisionId,
    /// The worker that should hold it.
    pub worker: WorkerId,
    /// The memory set aside for it.
    pub claim: ByteSize,
    /// Time of the plan that put it there.
    pub placed: Time,
}

/// The step of a deployment between two revisions. The transitions are in `rollout.rs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum Rollout {
    /// The first revision is on its way; nothing has been ready yet.
    Starting {
        /// The deployment's only revision so far.
        revision: RevisionId,
    },
    /// One revision, which has been ready.
    Stable {
        /// The revision that serves.
        revision: RevisionId,
    },
    /// `from` serves while `to` is loaded beside it.
    Surging {
        /// The revision that serves.
        from: RevisionId,
        /// The revision that replaces it.
        to: RevisionId,
        /// Time at which `to` was first wanted; `rollout.deadline` counts from it, or from the placing of `to` if that is later.
        since: Time,
        /// Copies that `from` had when its successor was first wanted. It gets no more than those, however many are wanted
        /// by now: what is added is of the new revision at once. Records of before this was written say nothing of it.
        #[serde(default = "as_many_as_are_wanted")]
        copies: u32,
    },
    /// Both serve: `to` gets the share of requests that the spec says (`rollout.canary`), until it is promoted. The share is
    /// not kept here, so that another one changes the route alone.
    Canary {
        /// Serves, and gets the rest.
        from: RevisionId,
        /// Gets the share.
        to: RevisionId,
        /// Time at which `to` began to get its share.
        since: Time,
    },
    /// There was no room for both and the author chose not to wait: `from` was taken away to make room for `to`.
    Recreating {
        /// Served, and serves again if `to` fails.
        from: RevisionId,
        /// The revision that replaces it.
        to: RevisionId,
        /// Time at which `from` was taken away.
        since: Time,
    },
    /// `failed` did not become ready; `serving` goes on until the spec changes, or what made `failed` fail.
    Stuck {
        /// The revision that goes on serving.
        serving: RevisionId,
        /// Is not tried again.
        failed: RevisionId,
        /// The generation of the spec that asked for `failed`.
        generation: Generation,
        /// Time at which `failed` was given up.
        since: Time,
        /// The reason for people, with the failure of the load.
        reason: String,
        /// A store refused it: other credentials are a reason to try again. Records of before this was written say
        /// nothing of it.
        #[serde(default)]
        refused: bool,
    },
}

fn as_many_as_are_wanted() -> u32 {
    u32::MAX
}

impl Rollout {
    /// The revision that is to replace the one that serves, also if it could not.
    #[must_use]
    pub fn challenger(&self) -> Option<&RevisionId> {
        match self {
            Self::Starting { .. } | Self::Stable { .. } => None,
            Self::Surging { to, .. } | Self::Canary { to, .. } | Self::Recreating { to, .. } => Some(to),
            Self::Stuck { failed, .. } => Some(failed),
        }
    }

    /// The revision that gets the traffic, all but the share of a canary; `None` while nothing has been ready.
    #[must_use]
    pub fn serving(&self) -> Option<&RevisionId> {
        match self {
            Self::Starting { .. } => None,
            Self::Stable { revision } => Some(revision),
            Self::Surging { from, .. } | Self::Canary { from, .. } | Self::Recreating { from, .. } => Some(from),
            Self::Stuck { serving, .. } => Some(serving),
        }
    }

    /// The revisions that should have replicas, the serving one first.
    pub fn live(&self) -> impl Iterator<Item = &RevisionId> {
        let (first, second) = match self {
            Self::Starting { revision } | Self::Stable { revision } => (revision, None),
            Self::Surging { from, to, .. } | Self::Canary { from, to, .. } => (from, Some(to)),
            Self::Recreating { to, .. } => (to, None),
            Self::Stuck { serving, .. } => (serving, None),
        };
        std::iter::once(first).chain(second)
    }

    /// Returns true if another revision is about to take the place of this one. The old one of a canary stays, and so moves
    /// where it belongs.
    #[must_use]
    pub fn replaces(&self, revision: &RevisionId) -> bool {
        matches!(self, Self::Surging { from, .. } if from == revision)
    }

    /// Every revision that it names, whether it should have replicas or not, except one that failed.
    pub fn named(&self) -> impl Iterator<Item = &RevisionId> {
        let kept = match self {
            Self::Recreating { from, .. } => Some(from),
            _ => None,
        };
        self.live().chain(kept)
    }
}

impl Record {
    /// The replicas of one revision, by worker.
    pub fn of<'a>(&'a self, revision: &'a RevisionId) -> impl Iterator<Item = &'a Replica> {
        self.replicas.iter().filter(move |replica| replica.revision == *revision)
    }

    /// The replica of a revision on a worker; there is at most one.
    #[must_use]
    pub fn replica(&self, revision: &RevisionId, worker: &WorkerId) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.revision == *revision && replica.worker == *worker)
    }
}
