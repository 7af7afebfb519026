//! Effects of the controller.

use std::{fmt, sync::Arc};

use crate::{
    deployment::{FunctionSpec, Identity},
    status::{ArtifactStatus, Status},
};
use berth_spec::Time;

/// Number of a build and the deployment that follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

/// A function to build and deploy.
#[derive(Debug, Clone)]
pub struct Task {
    /// The parsed spec, read again from the text for each turn.
    pub spec: Arc<FunctionSpec>,
    /// The same as JSON text.
    pub text: Arc<str>,
    /// Digest of an artifact that a status names for exactly this desired state.
    pub known: Option<ArtifactStatus>,
    /// True if the artifact was proved before: its processes start with the first request.
    pub proved: bool,
    /// Digest of the artifact that an earlier deployment of this spec had, where the object asks for that one.
    pub kept: Option<String>,
    /// Number of the desired state.
    pub generation: i64,
    /// Time at which the controller heard of the desired state. A store does not tell when it was put.
    pub seen: Time,
    /// The trace that it belongs to: its annotation `traceparent`.
    pub traceparent: Option<String>,
}

/// Something to do.
#[derive(Debug)]
pub enum Effect {
    /// Build; answered by [`Event::Built`](super::Event::Built).
    Build(TaskId, Task),
    /// Deploy; answered by [`Event::Deployed`](super::Event::Deployed).
    Deploy(TaskId, Task, ArtifactStatus),
    /// Give up a build or a deployment. No answer is taken any more.
    Cancel(TaskId),
    /// Remove everything of a function; answered by [`Event::Removed`](super::Event::Removed).
    Remove(String),
    /// Delete the object, if it is still this one.
    Delete(String, Identity),
    /// Tell people that somebody else writes the status of a function again and again.
    Contended(String),
    /// Write a status; answered by [`Event::Written`](super::Event::Written).
    Write(String, Identity, Arc<Status>),
}
