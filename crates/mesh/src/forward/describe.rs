//! Asks for the description of a deployment: of a replica here, or of the node that has one.

use std::{sync::Arc, time::Duration};

use berth_spec::InferError;
use bytes::Bytes;
use http::request::Parts;
use tokio::time::Instant;

use crate::{
    body::upload::Upload,
    deployment::DeploymentState,
    endpoint::target::NextTarget,
    forward::{
        buffered::{BufferedResponse, Failure},
        context::RequestContext,
        head::Head,
        retry_state::RetryState,
    },
    local::Replica,
    stack::Stack,
};

/// What speaks for a deployment.
pub(crate) enum Described {
    /// A replica of this process.
    Local { entry: Arc<DeploymentState>, replica: Arc<Replica> },
    /// The answer of another node.
    Remote(Box<BufferedResponse>),
}

impl Stack {
    /// What describes a deployment: a replica here, or the answer of an endpoint that has one. A miss like any other: a cold
    /// model is loaded to be described. `ask` is the request for another node.
    pub(crate) async fn describe(
        &self,
        (model, version): (&str, Option<&str>),
        timeout: Option<Duration>,
        ask: impl FnOnce() -> (Head, Bytes) + Send,
    ) -> Result<Described, Failure> {
        let entry = self.find(model)?;
        let _permit = self.admission.enter()?;
        let timeout = timeout.unwrap_or(entry.route().terms.timeout).min(self.limits.deadline);
        let context = RequestContext { stack: self, entry, version, deadline: Instant::now() + timeout };
        let (mut retries, mut ask, mut asked) = (RetryState::default(), Some(ask), None);
        loop {
            match retries.next(&context).await? {
                NextTarget::Local(here) => {
                    let leased = context.lease(here.as_ref());
                    if let Some(leased) = leased {
                        let replica = Arc::clone(leased.lease.replica());
                        return Ok(Described::Local { entry: Arc::clone(&context.entry), replica });
                    }
                }
                NextTarget::Remote(there) => {
                    if let Some(ask) = ask.take() {
                        let (mut head, body) = ask();
                        head.versions(context.entry.route().targets.iter().map(|target| &*target.version));
                        asked = Some((head, Upload::whole(body, self.bounds())));
                    }
                    let Some((head, upload)) = &mut asked else { continue };
                    if let Some((held, _)) = retries.go(&context, there, head, upload).await? {
                        return Ok(Described::Remote(Box::new(held)));
                    }
                }
            }
        }
    }

    /// Returns once a replica can be had, here or elsewhere.
    pub(crate) async fn reachable(&self, entry: &Arc<DeploymentState>, deadline: Instant) -> Result<(), InferError> {
        let context = RequestContext { stack: self, entry: Arc::clone(entry), version: None, deadline };
        RetryState::default().next(&context).await.map(drop)
    }

    /// The head of this request, for another node.
    pub(crate) fn head(&self, parts: &Parts) -> Head {
        Head::of(parts, self.propagate())
    }
}
