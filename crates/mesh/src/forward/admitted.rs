//! An inference that was let in, until it is answered: here, or by another node.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use berth_spec::{InferError, InferRequest, InferResponse, Signature, inference::Shed};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::Response;
use tokio::time::{Instant, timeout_at};

use crate::{
    admission::Permit,
    body::{reply::ReplyBody, upload::Upload},
    deployment::DeploymentState,
    endpoint::{
        InFlight,
        target::{LocalTarget, NextTarget, RemoteTarget},
    },
    forward::{
        buffered::{BufferedResponse, Failure},
        context::RequestContext,
        head::Head,
        retry_state::RetryState,
    },
    local::Model,
    metrics::{Outcome, Protocol},
    stack::Stack,
};

/// When to try again after a deployment had all the requests that it takes.
const RETRY_FULL: Duration = Duration::from_millis(500);

/// The head of an inference.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) model: &'a str,
    /// `None`: whichever version the route says.
    pub(crate) version: Option<&'a str>,
    pub(crate) protocol: Protocol,
    /// How long the caller waits, if it says so in the head.
    pub(crate) timeout: Option<Duration>,
}

/// An inference that was let in. Dropping it accounts for it.
pub(crate) struct Admitted<'a> {
    pub(super) context: RequestContext<'a>,
    pub(super) protocol: Protocol,
    pub(super) started: Instant,
    pub(super) outcome: Outcome,
    pub(super) permit: Option<Permit>,
    /// The own replica could not answer, and another node may.
    pub(super) left_here: bool,
}

/// What came of running a request here.
pub(crate) enum LocalOutcome {
    Answered(InferResponse),
    /// The replica drains, and nothing was run: the request goes on from where its body came.
    Moved,
}

/// The answer of another node, and what is held until its last byte has gone.
pub(crate) struct Forwarded {
    pub(crate) held: BufferedResponse,
    guard: (InFlight, Running, Option<Permit>),
}

impl Forwarded {
    /// As the answer to the client.
    pub(crate) fn into_reply(self) -> Response<ReplyBody> {
        self.held.into_reply(self.guard)
    }
}

impl Admitted<'_> {
    /// Where the request goes; waits where nothing is ready. The first time before the body is read.
    pub(crate) async fn next(&mut self, retries: &mut RetryState) -> Result<NextTarget, InferError> {
        if std::mem::take(&mut self.left_here) {
            retries.leave_here();
        }
        let next = retries.next(&self.context).await;
        next.map_err(|error| self.failed(error))
    }

    /// The model's signature, to read bodies that do not say what they are; `None` if it was taken away meanwhile.
    pub(crate) fn signature(&self, here: Option<&LocalTarget>) -> Option<Arc<Signature>> {
        self.context.lease(here).map(|leased| Arc::clone(leased.lease.model().signature()))
    }

    /// The deployment that it is for.
    pub(crate) fn name(&self) -> &str {
        self.context.entry.name.as_str()
    }

    /// The point in time after which nobody waits for the answer.
    pub(crate) fn deadline(&self) -> Instant {
        self.context.deadline
    }

    /// The caller said inside the body how long it waits.
    pub(crate) fn shorten(&mut self, timeout: Option<Duration>) {
        if let Some(timeout) = timeout {
            self.context.deadline = self.context.deadline.min(self.started + timeout);
        }
    }

    /// Counts the bytes of the request's body.
    pub(crate) fn received(&self, bytes: usize) {
        self.context.entry.hot().stats.request_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts the bytes of the answer's body.
    pub(crate) fn sent(&self, bytes: usize) {
        self.context.entry.hot().stats.response_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Sends the request to another node. `None`: it was not answered there, and may go elsewhere.
    pub(crate) async fn forward(
        &mut self,
        retries: &mut RetryState,
        there: RemoteTarget,
        head: &Head,
        upload: &mut Upload,
    ) -> Result<Option<Forwarded>, Failure> {
        if let Err(error) = upload.gather(self.context.deadline).await {
            return Err(self.failed(error).into());
        }
        let running = match self.run() {
            Ok(running) => running,
            Err(error) => return Err(self.failed(error).into()),
        };
        match retries.go(&self.context, there, head, upload).await {
            Ok(Some((held, in_flight_guard))) => Ok(Some(self.passed(held, (in_flight_guard, running)))),
            Ok(None) => Ok(None),
            Err(Failure::Infer(error)) => Err(self.failed(error).into()),
            Err(lost) => {
                self.outcome = Outcome::Lost;
                Err(lost)
            }
        }
    }

    fn passed(&mut self, held: BufferedResponse, (in_flight_guard, running): (InFlight, Running)) -> Forwarded {
        self.outcome = held.outcome(self.protocol);
        self.sent(held.len());
        Forwarded { held, guard: (in_flight_guard, running, self.permit.take()) }
    }

    /// Counts the request as in flight, if the deployment takes one more.
    fn run(&self) -> Result<Running, InferError> {
        let running = Running::enter(&self.context.entry);
        // What was said of it before, while it waited or its body came, did not say that it is in flight.
        self.context.stack.demand.list(&self.context.entry);
        let max = self.context.entry.route().terms.concurrency.max;
        match max.filter(|max| running.before >= *max) {
            Some(max) => Err(full(&self.context.entry, max)),
            None => Ok(running),
        }
    }

    /// Runs the request on a replica of this process.
    pub(crate) async fn infer(
        &mut self,
        mut request: InferRequest,
        here: Option<&LocalTarget>,
    ) -> Result<LocalOutcome, InferError> {
        let id = request.id.take();
        let ran = self.run_here(here, |model, deadline| model.infer(request, deadline)).await?;
        Ok(ran.map_or(LocalOutcome::Moved, |(outputs, model_version)| {
            LocalOutcome::Answered(InferResponse {
                model_name: Arc::clone(&self.context.entry.hot().model_name),
                model_version,
                id,
                parameters: Default::default(),
                outputs,
            })
        }))
    }

    /// Answers a JSON document of the model's own on a replica of this process. `None`: the replica drains, and nothing
    /// was run.
    pub(crate) async fn call(&mut self, body: Bytes, here: Option<&LocalTarget>) -> Result<Option<Bytes>, InferError> {
        let ran = self.run_here(here, |model, deadline| model.call(body, deadline)).await?;
        Ok(ran.map(|(answer, _)| answer))
    }

    /// Leases a replica of this process and runs something on it. `None`: there is none, and the request goes on from where
    /// its body came.
    async fn run_here<T: Send>(
        &mut self,
        here: Option<&LocalTarget>,
        run: impl for<'m> FnOnce(&'m Arc<dyn Model>, std::time::Instant) -> BoxFuture<'m, Result<T, InferError>> + Send,
    ) -> Result<Option<(T, Arc<str>)>, InferError> {
        let leased = match self.context.lease(here) {
            Some(leased) => leased,
            None if self.context.stack.forwarding.is_some() => return Ok(None),
            None => {
                let RequestContext { entry, version, deadline, stack } = &self.context;
                match stack.parking.lease(entry, *version, *deadline).await {
                    Ok(leased) => leased,
                    Err(error) => return Err(self.failed(error)),
                }
            }
        };
        let answer = match self.run() {
            Err(full) => Err(full),
            Ok(_running) => {
                let (model, began, deadline) = (leased.lease.model(), Instant::now(), self.context.deadline);
                match timeout_at(deadline, run(model, deadline.into_std())).await {
                    Ok(answer) => {
                        if let Some(here) = here.filter(|_| answer.is_ok()) {
                            self.context.entry.ran_here(&here.revision, began.elapsed());
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
            Err(error) if here.is_some_and(|here| self.context.leaves(here, &error)) => {
                self.left_here = true;
                Ok(None)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// The error of a request whose deadline has passed outside the model's queue.
    pub(crate) fn timed_out(&self) -> InferError {
        let waited = self.started.elapsed().as_millis();
        let model = self.context.entry.name.as_str();
        InferError::TimedOut(format!("model {model:?} had not answered after {waited} ms"))
    }

    /// Notes that the request ends with this error.
    pub(crate) fn failed(&mut self, error: InferError) -> InferError {
        self.outcome = Outcome::of(&error);
        self.context.stack.totals.error(&error);
        error
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.context.entry.hot().stats.record(self.protocol, self.outcome, self.started.elapsed());
    }
}

/// A request that runs, and how many ran before it.
pub(crate) struct Running {
    entry: Arc<DeploymentState>,
    before: u32,
}

impl Running {
    fn enter(entry: &Arc<DeploymentState>) -> Self {
        let before = entry.hot().usage.in_flight.fetch_add(1, Relaxed);
        Self { entry: Arc::clone(entry), before }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.entry.hot().usage.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Stack {
    /// Lets a request in, or says why not. Reads nothing but its head.
    pub(crate) fn admit<'a>(&'a self, call: Call<'a>) -> Result<Admitted<'a>, InferError> {
        let started = Instant::now();
        let entry = match self.find(call.model) {
            Ok(entry) => entry,
            Err(error) => {
                self.totals.error(&error);
                self.totals.unknown.record(call.protocol, Outcome::of(&error), started.elapsed());
                return Err(error);
            }
        };
        let admit = || {
            let permit = self.admission.enter()?;
            self.demand.touch(&entry, started);
            let route = entry.route();
            if let Some(max) =
                route.terms.concurrency.max.filter(|max| entry.hot().usage.in_flight.load(Relaxed) >= *max)
            {
                return Err(full(&entry, max));
            }
            Ok((permit, call.timeout.map_or(route.terms.timeout, |timeout| timeout.min(self.limits.deadline))))
        };
        match admit() {
            Ok((permit, timeout)) => Ok(Admitted {
                context: RequestContext { stack: self, entry, version: call.version, deadline: started + timeout },
                protocol: call.protocol,
                started,
                outcome: Outcome::Cancelled,
                permit: Some(permit),
                left_here: false,
            }),
            Err(error) => {
                self.totals.error(&error);
                entry.hot().stats.record(call.protocol, Outcome::of(&error), started.elapsed());
                Err(error)
            }
        }
    }
}

fn full(entry: &DeploymentState, max: u32) -> InferError {
    let message = format!("model {:?} has {max} requests at once and takes no more; try again", entry.name.as_str());
    InferError::shed(Shed::QueueFull, message, RETRY_FULL)
}
