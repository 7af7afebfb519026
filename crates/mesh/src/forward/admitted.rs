//! An inference that was let in, until it is answered: here, or by another node.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use berth_spec::{InferError, NameKey, RevisionId, inference::Shed};
use http::{HeaderMap, HeaderValue, Response, request::Parts};
use tokio::time::{Instant, timeout_at};

use crate::{
    admission::Permit,
    body::{
        reply::ReplyBody,
        upload::{Bounds, Upload},
    },
    calls::{self, Calls},
    deployment::{DeploymentState, VersionLease},
    endpoint::{
        InFlight,
        target::{LocalTarget, NextTarget, RemoteTarget},
    },
    forward::{
        buffered::{BufferedResponse, Failure},
        context::{Purpose, RequestContext},
        head::Head,
        retry_state::RetryState,
        run::Codec,
        runner::{LeasedReplica, LocalOutcome, Runner, RunningRequest},
    },
    local::{Model, Replica},
    metrics::{Outcome, Protocol},
    not_run::NotRun,
    payload::{Payloads, Tap},
    quota::metered::{LimitedModel, MeteredRequest},
    routes::alias::ResolvedAlias,
    stack::Stack,
    sticky::Caller,
};

/// When to try again after a deployment had all the requests that it takes: most inferences end sooner.
const RETRY_FULL: Duration = Duration::from_millis(500);

/// The facts about an inference that its head and caller tell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) model: NameKey<'a>,
    /// `None`: whichever version the route says.
    pub(crate) version: Option<&'a str>,
    /// The caller, for aliases whose requests keep together.
    pub(crate) caller: Caller<'a>,
    pub(crate) protocol: Protocol,
    /// The longest that the caller waits, if the head says so.
    pub(crate) timeout: Option<Duration>,
    pub(crate) purpose: Purpose,
}

/// A request that was let in. Dropping it accounts for it.
pub(crate) struct AdmittedRequest<'a> {
    context: RequestContext<'a>,
    protocol: Protocol,
    started: Instant,
    outcome: Outcome,
    permit: Option<Permit>,
    /// Limits that it counts against.
    metered: Option<Arc<MeteredRequest>>,
    /// The reason why the own replica could not answer, where another node may.
    left_here: Option<NotRun>,
    /// True for an inference; false for a question about a model.
    counted: bool,
    /// The alias by which it came.
    via: Option<ResolvedAlias>,
    /// The revision that it was given to last.
    revision: Option<RevisionId>,
    /// The own replica that it is for; `None`: of whichever revision the route says.
    pub(super) target: Option<LocalTarget>,
}

/// The answer of another node, and what is held until its last byte has gone.
pub(crate) struct ForwardedAnswer {
    pub(crate) response: BufferedResponse,
    deadline: Instant,
    guard: (InFlight, Option<RunningRequest>, Option<Permit>),
}

impl ForwardedAnswer {
    /// The answer to the client, which holds what is held until its last byte has gone.
    pub(crate) fn into_reply(self) -> Response<ReplyBody> {
        self.response.into_reply(self.guard, self.deadline)
    }
}

impl AdmittedRequest<'_> {
    /// Chooses the target of the request; waits where nothing is ready. The first time before the body is read.
    pub(super) async fn next(&mut self, retries: &mut RetryState) -> Result<NextTarget, InferError> {
        if let Some(why) = self.left_here.take() {
            retries.leave_here(why);
        }
        let next = retries.next(&self.context).await;
        next.map_err(|error| self.failed(error))
    }

    /// The bounds of its body, which counts against the memory of its key.
    pub(crate) fn bounds(&self) -> Bounds {
        self.context.stack.bounds_for(&self.context.holder)
    }

    /// The deployment that answers, where the client asked for an alias: as the value of a header.
    pub(crate) fn behind_alias(&self) -> Option<HeaderValue> {
        self.via.as_ref()?;
        HeaderValue::from_str(&self.context.entry.name.coded()).ok()
    }

    /// The payload processors; `None`: there are none.
    pub(super) fn payloads(&self) -> Option<&Payloads> {
        self.context.stack.payloads.as_deref()
    }

    /// Begins to count it in ModelMesh's metrics, from when it came.
    pub(super) fn counting(&self, calls: &Arc<Calls>, head: &Parts) -> calls::CountedCall {
        calls.begin(&self.context.entry.name, self.via.as_ref().map(|via| &via.alias.name), head, self.started)
    }

    /// The tap for processors that ask for this request; `None`: none does.
    pub(super) fn tap(&self, payloads: &Payloads, head: &Parts) -> Option<Tap> {
        payloads.tap(&self.context.entry.name, self.via.as_ref().map(|via| &via.alias.name), head)
    }

    /// The head by which it is sent to another node, with the names that answers are to have.
    pub(super) fn head(&mut self, codec: &impl Codec) -> Result<Head, InferError> {
        let head = codec.head(self.context.stack, &self.context.entry).map(|mut head| {
            if let Some(via) = &self.via {
                head.named(&via.alias.model_name);
            }
            head
        });
        head.map_err(|error| self.failed(error))
    }

    /// Sends the request to another node. `None`: it was not answered there, and may go elsewhere.
    pub(super) async fn forward(
        &mut self,
        retries: &mut RetryState,
        there: RemoteTarget,
        head: &Head,
        upload: &mut Upload,
    ) -> Result<Option<ForwardedAnswer>, Failure> {
        if let Err(error) = upload.gather(self.context.deadline).await {
            return Err(self.failed(error).into());
        }
        let running = match self.run() {
            Ok(running) => running,
            Err(error) => return Err(self.failed(error).into()),
        };
        self.revision = Some(there.revision.clone());
        let began = Instant::now();
        match retries.go(&self.context, there, head, upload).await {
            Ok(Some((response, in_flight))) => {
                self.ran(began, Instant::now());
                self.outcome = response.outcome(self.protocol);
                self.sent(response.len());
                let guard = (in_flight, running, self.permit.take());
                Ok(Some(ForwardedAnswer { response, deadline: self.context.deadline, guard }))
            }
            Ok(None) => Ok(None),
            Err(Failure::Infer(error)) => Err(self.failed(error).into()),
            Err(lost) => {
                self.outcome = Outcome::Lost;
                Err(lost)
            }
        }
    }

    /// Counts an inference as in flight, if the deployment's replicas together take one more.
    fn run(&self) -> Result<Option<RunningRequest>, InferError> {
        if !self.counted {
            return Ok(None);
        }
        let running = RunningRequest::enter(&self.context.entry);
        // What was said of it before, while it waited or its body came, did not say that it is in flight.
        self.context.stack.demand.list(&self.context.entry);
        match self.context.entry.route().bound().filter(|max| running.before >= *max) {
            Some(max) => Err(full(&self.context.entry, max)),
            None => Ok(Some(running)),
        }
    }

    /// Counts an inference as in flight in a replica of this node, if that takes one more.
    fn run_in(&self, replica: &Replica) -> Result<Option<RunningRequest>, InferError> {
        match replica.overfull().filter(|_| self.counted) {
            Some(max) => Err(full(&self.context.entry, max)),
            None => self.run(),
        }
    }

    /// An error of the own replica: fine if the request goes on elsewhere.
    fn failed_here(&mut self, error: InferError) -> Result<(), InferError> {
        if self.target.as_ref().is_some_and(|target| self.context.leaves(target, &error)) {
            let is_full = matches!(error, InferError::Shed { reason: Shed::QueueFull, .. });
            self.left_here = Some(if is_full { NotRun::Full } else { MOVED });
            return Ok(());
        }
        Err(self.failed(error))
    }

    /// Records the time that the model took, from `began` to `now`.
    fn ran(&self, began: Instant, now: Instant) {
        // How long the answer of a stream takes to begin says nothing of the model's queue.
        if self.counted && self.context.purpose == Purpose::Infer {
            let (entry, accounts) = (&self.context.entry, &self.context.stack.accounts);
            let (hot, max_wait) = (entry.hot(), entry.route().terms.limits.max_wait);
            let in_flight = hot.usage.in_flight.load(Relaxed);
            hot.pressure.ran(accounts.nanos(now), now - began, in_flight, max_wait);
        }
    }

    /// The error of a request whose deadline has passed outside the model's queue.
    fn timed_out(&self) -> InferError {
        let waited = self.started.elapsed().as_millis();
        let model = self.context.entry.name.as_str();
        InferError::TimedOut(format!("model {model:?} had not answered after {waited} ms"))
    }
}

impl Drop for AdmittedRequest<'_> {
    fn drop(&mut self) {
        if self.counted {
            let (hot, took) = (self.context.entry.hot(), self.started.elapsed());
            hot.stats.record(self.protocol, self.outcome, took);
            if let Some(via) = &self.via {
                via.counters.record(self.outcome);
            }
            if let Some(revision) = &self.revision {
                hot.outcomes.record(revision, self.outcome, took);
            }
        }
    }
}

/// The word for a replica that drains, which the loop does not look at: it asks the route again.
const MOVED: NotRun = NotRun::Draining;

impl Runner for AdmittedRequest<'_> {
    fn deadline(&self) -> Instant {
        self.context.deadline
    }

    fn shorten(&mut self, timeout: Option<Duration>) {
        if let Some(timeout) = timeout {
            self.context.deadline = self.context.deadline.min(self.started + timeout);
        }
    }

    fn model(&self) -> Option<Arc<dyn Model>> {
        self.context.model(self.target.as_ref())
    }

    fn model_name(&self) -> Arc<str> {
        match &self.via {
            Some(via) => Arc::clone(&via.alias.model_name),
            None => Arc::clone(&self.context.entry.hot().model_name),
        }
    }

    fn received(&self, bytes: usize) {
        if let Some(metered) = &self.metered {
            metered.received(&self.context.stack.accounts, bytes);
        }
        if self.counted {
            self.context.entry.hot().stats.request_bytes.fetch_add(bytes as u64, Relaxed);
        }
    }

    fn sent(&self, bytes: usize) {
        if self.counted {
            self.context.entry.hot().stats.response_bytes.fetch_add(bytes as u64, Relaxed);
        }
    }

    fn failed(&mut self, error: InferError) -> InferError {
        self.outcome = Outcome::of(&error);
        if let InferError::Shed { reason: Shed::QueueFull, .. } = error {
            self.context.entry.hot().pressure.refuse();
        }
        if self.counted {
            self.context.stack.totals.error(&error);
        }
        error
    }

    fn began(&mut self, head: &HeaderMap) {
        if let Some(status) = tonic::Status::from_header_map(head) {
            self.outcome = Outcome::of_grpc(&status);
        }
    }

    fn calls(&self) -> Option<&Arc<Calls>> {
        self.context.stack.calls.as_ref()
    }

    fn permit(&mut self) -> Option<Permit> {
        self.permit.take()
    }

    async fn lease(&mut self) -> Result<LocalOutcome<LeasedReplica>, InferError> {
        let leased = match self.context.lease(self.target.as_ref()) {
            Some(leased) => leased,
            None if self.context.stack.forwarding.is_some() => return Ok(LocalOutcome::Moved(MOVED)),
            None => {
                let context = &self.context;
                match context.stack.parking.lease(context.replica_request(), context.key).await {
                    Ok(leased) => leased,
                    Err(error) => return Err(self.failed(error)),
                }
            }
        };
        self.revision = Some(leased.lease.replica().revision().clone());
        match self.run_in(leased.lease.replica()) {
            Ok(running) => {
                let VersionLease { lease, version } = leased;
                Ok(LocalOutcome::Answered(LeasedReplica { lease, version, _running: running }))
            }
            Err(full) => self.failed_here(full).map(|()| LocalOutcome::Moved(MOVED)),
        }
    }

    async fn answered<T: Send>(
        &mut self,
        answer: impl Future<Output = Result<T, InferError>> + Send,
    ) -> Result<LocalOutcome<T>, InferError> {
        let began = Instant::now();
        let answer = match timeout_at(self.context.deadline, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(self.timed_out()),
        };
        match answer {
            Ok(answer) => {
                let now = Instant::now();
                self.ran(began, now);
                if let Some(target) = self.target.as_ref().filter(|_| self.counted) {
                    self.context.entry.ran_here(&target.revision, now - began);
                }
                self.outcome = Outcome::Ok;
                Ok(LocalOutcome::Answered(answer))
            }
            Err(error) => self.failed_here(error).map(|()| LocalOutcome::Moved(MOVED)),
        }
    }
}

impl Stack {
    /// Lets a question about a model in. It is no inference, and is not counted as one.
    pub(super) fn admit_uncounted<'a>(
        &'a self,
        model: NameKey<'_>,
        version: Option<&'a str>,
        timeout: Option<Duration>,
    ) -> Result<AdmittedRequest<'a>, InferError> {
        let (started, (entry, via)) = (Instant::now(), self.find_to_describe(model, version)?);
        let holder = entry.hot().keys.of(None, &self.accounts);
        let permit = self.admission.enter()?;
        let deadline = started + timeout.unwrap_or(entry.route().terms.timeout).min(self.limits.deadline);
        Ok(AdmittedRequest {
            context: self.description(entry, holder, version, deadline),
            protocol: Protocol::Rest,
            started,
            outcome: Outcome::Cancelled,
            permit: Some(permit),
            metered: None,
            left_here: None,
            counted: false,
            via,
            revision: None,
            target: None,
        })
    }

    /// Lets a request in, or says why not. Reads nothing but its head.
    pub(crate) fn admit<'a>(&'a self, call: Call<'a>) -> Result<AdmittedRequest<'a>, InferError> {
        let started = Instant::now();
        let chosen = match call.caller.may_infer(&self.access, &self.audit, call.model) {
            true => self.choose(call.model, call.version, &call.caller),
            false => Err(self.unknown(call.model)),
        };
        let (entry, via) = match chosen {
            Ok(chosen) => chosen,
            Err(error) => {
                self.totals.error(&error);
                self.totals.unknown.record(call.protocol, Outcome::of(&error), started.elapsed());
                return Err(error);
            }
        };
        let admit = || {
            let Caller { asker, headers, .. } = call.caller;
            let holder = entry.hot().keys.of(asker, &self.accounts);
            let permit = self.admission.enter_for(&holder)?;
            let route = entry.route();
            let model = LimitedModel { entry: &entry, limits: &route.terms.limits };
            let metered = self.meter(asker, Some(model), headers, started)?;
            let permit = permit.metered(metered.clone());
            self.demand.touch(&entry, started);
            if let Some(max) = route.bound().filter(|max| entry.hot().usage.in_flight.load(Relaxed) >= *max) {
                return Err(full(&entry, max));
            }
            let otherwise = match call.purpose {
                Purpose::Exchange => self.limits.deadline,
                Purpose::Infer | Purpose::Describe => route.terms.timeout,
            };
            let timeout = call.timeout.map_or(otherwise, |timeout| timeout.min(self.limits.deadline));
            let (hot, own) = (entry.hot(), holder.inside.held());
            hot.pressure.check(&entry.name, hot.usage.in_flight.load(Relaxed), own, timeout)?;
            Ok((permit, holder, metered, timeout))
        };
        match admit() {
            Ok((permit, holder, metered, timeout)) => Ok(AdmittedRequest {
                context: RequestContext {
                    stack: self,
                    entry,
                    holder,
                    version: call.version,
                    key: via.as_ref().and_then(|via| via.key),
                    deadline: started + timeout,
                    purpose: call.purpose,
                },
                protocol: call.protocol,
                started,
                outcome: Outcome::Cancelled,
                permit: Some(permit),
                metered,
                left_here: None,
                counted: true,
                via,
                revision: None,
                target: None,
            }),
            Err(error) => {
                self.totals.error(&error);
                entry.hot().stats.record(call.protocol, Outcome::of(&error), started.elapsed());
                if let Some(via) = via {
                    via.counters.record(Outcome::of(&error));
                }
                Err(error)
            }
        }
    }
}

fn full(entry: &DeploymentState, max: u32) -> InferError {
    let message = format!("model {:?} has {max} requests at once and takes no more; try again", entry.name.as_str());
    InferError::shed(Shed::QueueFull, message, RETRY_FULL)
}
