//! Descriptions of a deployment: of a replica here, or of the node that has one. A cold model is loaded to be described.

use std::{sync::Arc, time::Duration};

use berth_spec::{InferError, NameKey};
use bytes::Bytes;
use http::request::Parts;
use tokio::time::Instant;

use crate::{
    accounts::Key,
    body::upload::Upload,
    deployment::DeploymentState,
    forward::{
        admitted::ForwardedAnswer,
        buffered::{BufferedResponse, Failure},
        context::{Purpose, RequestContext},
        head::Head,
        retry_state::RetryState,
        run::{Codec, CodecAnswer, run},
        runner::{LocalOutcome, Runner},
    },
    local::Model,
    stack::Stack,
};

/// The source of a model's metadata, statistics or settings.
pub(crate) enum DescriptionSource {
    /// A model of this process, to be asked by the caller.
    Local { model: Arc<dyn Model> },
    /// The answer of another node, to be passed on.
    Remote(Box<BufferedResponse>),
}

/// Asks for the model itself; `head` is the same question for another node.
struct DescriptionRequest {
    head: Head,
}

/// The model of this process, or the answer of another node.
type Answer = Result<Arc<dyn Model>, Box<BufferedResponse>>;

impl CodecAnswer for Answer {
    fn relayed(forwarded: ForwardedAnswer) -> Self {
        Err(Box::new(forwarded.response))
    }
}

impl Codec for DescriptionRequest {
    type Answer = Answer;

    fn head(&self, _: &Stack, _: &DeploymentState) -> Result<Head, InferError> {
        Ok(self.head.clone())
    }

    async fn local<R: Runner>(
        &mut self,
        runner: &mut R,
        _: &mut Upload,
    ) -> Result<LocalOutcome<Self::Answer>, Failure> {
        Ok(runner.lease().await?.map(|held| Ok(held.lease.to_describe())))
    }
}

impl Stack {
    /// Finds who describes a deployment. `ask` is the request for another node.
    pub(crate) async fn describe(
        &self,
        model: NameKey<'_>,
        version: Option<&str>,
        timeout: Option<Duration>,
        ask: impl FnOnce() -> (Head, Bytes) + Send,
    ) -> Result<DescriptionSource, Failure> {
        let mut admitted = self.admit_uncounted(model, version, timeout)?;
        let (mut head, body) = ask();
        head.versions(self.versions(model).iter().map(|version| &**version));
        let mut upload = Upload::whole(body, self.bounds());
        Ok(match run(&mut admitted, &mut DescriptionRequest { head }, &mut upload).await? {
            Ok(model) => DescriptionSource::Local { model },
            Err(response) => DescriptionSource::Remote(response),
        })
    }

    /// Returns once a replica can be had, here or elsewhere.
    pub(crate) async fn reachable(&self, entry: &Arc<DeploymentState>, deadline: Instant) -> Result<(), InferError> {
        let holder = entry.hot().keys.of(None, &self.accounts);
        let context = self.description(Arc::clone(entry), holder, None, deadline);
        RetryState::default().next(&context).await.map(drop)
    }

    /// A request that asks about a model and runs nothing.
    pub(super) fn description<'a>(
        &'a self,
        entry: Arc<DeploymentState>,
        holder: Arc<Key>,
        version: Option<&'a str>,
        deadline: Instant,
    ) -> RequestContext<'a> {
        RequestContext { stack: self, entry, holder, version, key: None, deadline, purpose: Purpose::Describe }
    }

    /// The head of this request, for another node.
    pub(crate) fn head(&self, parts: &Parts) -> Head {
        Head::of(parts, self.propagate())
    }
}
