//! Targets: where a built function runs.

mod azure;
pub mod local;
mod replica;

pub(crate) use azure::AzureTarget;
pub(crate) use replica::ReplicaTarget;

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::{
    controller::{Deployed, Failure, Task},
    status::{ArtifactStatus, Revision, SpecText},
};

/// A place where functions run.
pub trait Target: Send + Sync {
    /// Deploys an artifact beside what runs, proves it, and lets it take over. What ran before stays where this fails or is
    /// dropped.
    fn deploy<'a>(&'a self, task: &'a Task, artifact: &'a ArtifactStatus) -> BoxFuture<'a, Result<Deployed, Failure>>;

    /// Removes everything of a function. What is not there is no error.
    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Failure>>;
}

/// The spec of a task, for the record of its version, which serves since `deployed`.
fn revision(task: &Task, artifact: &ArtifactStatus, deployed: String) -> Revision {
    Revision {
        generation: task.generation,
        deployed,
        artifact: artifact.digest.clone(),
        spec: SpecText(Arc::clone(&task.text)),
    }
}
