//! Stands for a platform that this controller cannot deploy to.

use std::time::Duration;

use futures::{FutureExt as _, future::BoxFuture};

use super::Target;
use crate::{
    controller::{Deployed, Failure, Task},
    status::ArtifactStatus,
};

/// Refuses deployments to Azure Functions, and says what to do.
pub(crate) struct Unavailable;

impl Unavailable {
    /// The refusal.
    pub(crate) fn failure() -> Failure {
        Failure {
            reason: "PlatformUnavailable",
            message: "this version of Berth does not deploy to Azure Functions: start it with --function-target local, or write \
                      spec.target.platform: local"
                .to_owned(),
            transient: false,
            log_tail: String::new(),
            took: Duration::ZERO,
        }
    }
}

impl Target for Unavailable {
    fn deploy<'a>(&'a self, _: &'a Task, _: &'a ArtifactStatus) -> BoxFuture<'a, Result<Deployed, Failure>> {
        async { Err(Self::failure()) }.boxed()
    }

    fn remove<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        async { Ok(()) }.boxed()
    }
}
