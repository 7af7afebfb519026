//! An inference that was let in, until it is answered: here, or by another node.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use berth_spec::{InferError, InferRequest, InferResponse, Signature};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::Response;
use tokio::time::{Instant, timeout_at};

use super::full;
use crate::{
    admit::Pass,
    entry::Entry,
    hop::{
        head::Head,
        held::{Failure, Held},
        journey::{Errand, Here, Journey, Next, There},
        place::UnderWay,
        upload::Upload,
    },
    ingress::ReplyBody,
    local::Model,
    metrics::{Outcome, Protocol},
};

/// An inference that was let in. Dropping it accounts for it.
pub(crate) struct Admitted<'a> {
    pub(super) errand: Errand<'a>,
    pub(super) protocol: Protocol,
    pub(super) started: Instant,
    pub(super) outcome: Outcome,
    pub(super) pass: Option<Pass>,
    /// The own replica could not answer, and another node may.
    pub(super) left_here: bool,
}

/// What came of running a request here.
pub(crate) enum Ran {
    Answered(InferResponse),
    /// The replica drains, and nothing was run: the request goes on from where its body came.
    Moved,
}

/// The answer of another node, and what is held until its last byte has gone.
pub(crate) struct Passed {
    pub(crate) held: Held,
    guard: (UnderWay, Running, Option<Pass>),
}

impl Passed {
    /// As the answer to the client.
    pub(crate) fn into_reply(self) -> Response<ReplyBody> {
        self.held.into_reply(self.guard)
    }
}

impl Admitted<'_> {
    /// Where the request goes; waits where nothing is ready. The first time before the body is read.
    pub(crate) async fn next(&mut self, journey: &mut Journey) -> Result<Next, InferError> {
        if std::mem::take(&mut self.left_here) {
            journey.leave_here();
        }
        let next = journey.next(&self.errand).await;
        next.map_err(|error| self.failed(error))
    }

    /// The model's signature, to read bodies that do not say what they are; `None` if it was taken away meanwhile.
    pub(crate) fn signature(&self, here: Option<&Here>) -> Option<Arc<Signature>> {
        self.errand.lease(here).map(|leased| Arc::clone(leased.lease.model().signature()))
    }

    /// The deployment that it is for.
    pub(crate) fn name(&self) -> &str {
        self.errand.entry.name.as_str()
    }

    /// The point in time after which nobody waits for the answer.
    pub(crate) fn deadline(&self) -> Instant {
        self.errand.deadline
    }

    /// The caller said inside the body how long it waits.
    pub(crate) fn shorten(&mut self, timeout: Option<Duration>) {
        if let Some(timeout) = timeout {
            self.errand.deadline = self.errand.deadline.min(self.started + timeout);
        }
    }

    /// Counts the bytes of the request's body.
    pub(crate) fn received(&self, bytes: usize) {
        self.errand.entry.hot().stats.request_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts the bytes of the answer's body.
    pub(crate) fn sent(&self, bytes: usize) {
        self.errand.entry.hot().stats.response_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Sends the request to another node. `None`: it was not answered there, and may go elsewhere.
    pub(crate) async fn forward(
        &mut self,
        journey: &mut Journey,
        there: There,
        head: &Head,
        upload: &mut Upload,
    ) -> Result<Option<Passed>, Failure> {
        if let Err(error) = upload.gather(self.errand.deadline).await {
            return Err(self.failed(error).into());
        }
        let running = match self.run() {
            Ok(running) => running,
            Err(error) => return Err(self.failed(error).into()),
        };
        match journey.go(&self.errand, there, head, upload).await {
            Ok(Some((held, under_way))) => Ok(Some(self.passed(held, (under_way, running)))),
            Ok(None) => Ok(None),
            Err(Failure::Infer(error)) => Err(self.failed(error).into()),
            Err(lost) => {
                self.outcome = Outcome::Lost;
                Err(lost)
            }
        }
    }

    fn passed(&mut self, held: Held, (under_way, running): (UnderWay, Running)) -> Passed {
        self.outcome = held.outcome(self.protocol);
        self.sent(held.len());
        Passed { held, guard: (under_way, running, self.pass.take()) }
    }

    /// Counts the request as in flight, if the deployment takes one more.
    fn run(&self) -> Result<Running, InferError> {
        let running = Running::enter(&self.errand.entry);
        // What was said of it before, while it waited or its body came, did not say that it is in flight.
        self.errand.stack.ledger.list(&self.errand.entry);
        let max = self.errand.entry.route().terms.concurrency.max;
        match max.filter(|max| running.before >= *max) {
            Some(max) => Err(full(&self.errand.entry, max)),
            None => Ok(running),
        }
    }

    /// Runs the request on a replica of this process.
    pub(crate) async fn infer(&mut self, mut request: InferRequest, here: Option<&Here>) -> Result<Ran, InferError> {
        let id = request.id.take();
        let ran = self.run_here(here, |model, deadline| model.infer(request, deadline)).await?;
        Ok(ran.map_or(Ran::Moved, |(outputs, model_version)| {
            Ran::Answered(InferResponse {
                model_name: Arc::clone(&self.errand.entry.hot().model_name),
                model_version,
                id,
                parameters: Default::default(),
                outputs,
            })
        }))
    }

    /// Answers a JSON document of the model's own on a replica of this process. `None`: the replica drains, and nothing
    /// was run.
    pub(crate) async fn call(&mut self, body: Bytes, here: Option<&Here>) -> Result<Option<Bytes>, InferError> {
        let ran = self.run_here(here, |model, deadline| model.call(body, deadline)).await?;
        Ok(ran.map(|(answer, _)| answer))
    }

    /// Leases a replica of this process and runs something on it. `None`: there is none, and the request goes on from where
    /// its body came.
    async fn run_here<T: Send>(
        &mut self,
        here: Option<&Here>,
        run: impl for<'m> FnOnce(&'m Arc<dyn Model>, std::time::Instant) -> BoxFuture<'m, Result<T, InferError>> + Send,
    ) -> Result<Option<(T, Arc<str>)>, InferError> {
        let leased = match self.errand.lease(here) {
            Some(leased) => leased,
            None if self.errand.stack.forwarding.is_some() => return Ok(None),
            None => {
                let Errand { entry, version, deadline, stack } = &self.errand;
                match stack.parking.lease(entry, *version, *deadline).await {
                    Ok(leased) => leased,
                    Err(error) => return Err(self.failed(error)),
                }
            }
        };
        let answer = match self.run() {
            Err(full) => Err(full),
            Ok(_running) => {
                let (model, began, deadline) = (leased.lease.model(), Instant::now(), self.errand.deadline);
                match timeout_at(deadline, run(model, deadline.into_std())).await {
                    Ok(answer) => {
                        if let Some(here) = here.filter(|_| answer.is_ok()) {
                            self.errand.entry.ran_here(&here.revision, began.elapsed());
                        }
                        answer
                    }
                    Err(_) => Err(self.timed_out()),
                }
            }
        };
        match answer {
            Ok(answer) => {
                self.outcome = Outcome::Ok;
                Ok(Some((answer, leased.version)))
            }
            Err(error) if here.is_some_and(|here| self.errand.leaves(here, &error)) => {
                self.left_here = true;
                Ok(None)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// The error of a request whose deadline has passed outside the model's queue.
    pub(crate) fn timed_out(&self) -> InferError {
        let waited = self.started.elapsed().as_millis();
        let model = self.errand.entry.name.as_str();
        InferError::TimedOut(format!("model {model:?} had not answered after {waited} ms"))
    }

    /// Notes that the request ends with this error.
    pub(crate) fn failed(&mut self, error: InferError) -> InferError {
        self.outcome = Outcome::of(&error);
        self.errand.stack.totals.error(&error);
        error
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.errand.entry.hot().stats.record(self.protocol, self.outcome, self.started.elapsed());
    }
}

/// A request that runs, and how many ran before it.
pub(crate) struct Running {
    entry: Arc<Entry>,
    before: u32,
}

impl Running {
    fn enter(entry: &Arc<Entry>) -> Self {
        let before = entry.hot().usage.in_flight.fetch_add(1, Relaxed);
        Self { entry: Arc::clone(entry), before }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.entry.hot().usage.in_flight.fetch_sub(1, Relaxed);
    }
}
