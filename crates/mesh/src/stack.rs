//! What happens to one inference, from the bottom (nearest to the model) to the top (nearest to the client).
//!
//! ```text
//!  head ─▶ find ─▶ door ─▶ full? ─▶ ready? ─▶ here: [ingress reads and decodes the body] ─▶ lease ─▶ model ─▶ account
//!                                   ▲  │  └──▶ there: the body goes as it comes ─▶ another node's replica ──▶ account
//!                                   │ park          │
//!                                   └──┴── moved ◀──┘  nothing was run: to the next place (`hop`)
//! ```
//!
//! * **account** is outermost, so that every end is counted, a client that went away included: it is the drop of
//!   [`Admitted`].
//! * **find** comes before everything that costs: unknown names are answered from the route table alone.
//! * **door** bounds all requests together and refuses at shutdown.
//! * **full?** sheds before the body is read what the deployment's own bound would shed after it.
//! * **ready?** parks before the body is read: a request that waits holds a few hundred bytes, not its tensors.
//! * **lease** comes after the body: a slow sender never keeps a replica from draining. A lease that is refused because
//!   the replica drains sends the request back to the route, and to parking: it is not an error.
//! * **there** runs under the same bounds as here; the place that runs it asks no routes and counts no demand.
//! * **model** runs under the deadline. Dropping it is how a cancelled request is taken out of the model's queue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_spec::{InferError, InferRequest, InferResponse, Signature, inference::Shed};
use bytes::Bytes;
use http::{Response, request::Parts};
use tokio::time::{Instant, timeout_at};

use crate::{
    admit::{Door, Pass},
    config::Limits,
    demand::Ledger,
    entry::{Entry, Leased, NoLease},
    hop::{
        head::{Head, Propagate},
        held::{Failure, Held},
        journey::{Errand, Forwarding, Here, Journey, Next, There},
        place::UnderWay,
        upload::{Bounds, Upload},
    },
    ingress::ReplyBody,
    local::Replica,
    metrics::{Outcome, Protocol, Totals},
    parking::{Parking, refusal},
    routes::Routes,
};

/// When to try again after a deployment had all the requests that it takes.
const RETRY_FULL: Duration = Duration::from_millis(500);

/// Everything that an inference passes through.
pub(crate) struct Stack {
    pub(crate) routes: Arc<Routes>,
    pub(crate) parking: Parking,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) door: Arc<Door>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) limits: Limits,
    /// The way to other nodes; `None`: there are none.
    pub(crate) forwarding: Option<Arc<Forwarding>>,
    /// It is going to stop: no more ready, while new requests are still taken.
    pub(crate) leaving: AtomicBool,
}

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
    errand: Errand<'a>,
    protocol: Protocol,
    started: Instant,
    outcome: Outcome,
    pass: Option<Pass>,
}

impl Stack {
    /// A deployment that somebody declared.
    pub(crate) fn find(&self, model: &str) -> Result<Arc<Entry>, InferError> {
        self.routes.find(model).ok_or_else(|| {
            let shown: String = model.chars().take(berth_spec::id::MAX_NAME).collect();
            InferError::NotFound(format!("model {shown:?} is not found: no deployment of that name is declared"))
        })
    }

    /// Lets a request in, or says why not. Reads nothing but its head.
    pub(crate) fn admit<'a>(&'a self, call: Call<'a>) -> Result<Admitted<'a>, InferError> {
        let started = Instant::now();
        let entry = match self.find(call.model) {
            Ok(entry) => entry,
            Err(error) => {
                self.totals.unknown.record(call.protocol, Outcome::NotFound, started.elapsed());
                return Err(error);
            }
        };
        let admit = || {
            let pass = self.door.enter()?;
            self.ledger.touch(&entry, started);
            let route = entry.route();
            if let Some(max) =
                route.terms.concurrency.max.filter(|max| entry.hot().usage.in_flight.load(Relaxed) >= *max)
            {
                return Err(full(&entry, max));
            }
            Ok((pass, call.timeout.map_or(route.terms.timeout, |timeout| timeout.min(self.limits.deadline))))
        };
        match admit() {
            Ok((pass, timeout)) => Ok(Admitted {
                errand: Errand { stack: self, entry, version: call.version, deadline: started + timeout },
                protocol: call.protocol,
                started,
                outcome: Outcome::Cancelled,
                pass: Some(pass),
            }),
            Err(error) => {
                self.totals.error(&error);
                entry.hot().stats.record(call.protocol, Outcome::of(&error), started.elapsed());
                Err(error)
            }
        }
    }

    /// What describes a deployment: a replica here, or the answer of a place that has one. A miss like any other: a cold
    /// model is loaded to be described. `ask` is the request for another node.
    pub(crate) async fn describe(
        &self,
        (model, version): (&str, Option<&str>),
        timeout: Option<Duration>,
        ask: impl FnOnce() -> (Head, Bytes) + Send,
    ) -> Result<Described, Failure> {
        let entry = self.find(model)?;
        let _pass = self.door.enter()?;
        let timeout = timeout.unwrap_or(entry.route().terms.timeout).min(self.limits.deadline);
        let errand = Errand { stack: self, entry, version, deadline: Instant::now() + timeout };
        let (mut journey, mut ask, mut asked) = (Journey::default(), Some(ask), None);
        loop {
            match journey.next(&errand).await? {
                Next::Here(here) => {
                    let leased = errand.lease(here.as_ref());
                    if let Some(leased) = leased {
                        let replica = Arc::clone(leased.lease.replica());
                        return Ok(Described::Here { entry: Arc::clone(&errand.entry), replica });
                    }
                }
                Next::There(there) => {
                    if let Some(ask) = ask.take() {
                        let (mut head, body) = ask();
                        head.versions(errand.entry.route().targets.iter().map(|target| &*target.version));
                        asked = Some((head, Upload::whole(body, self.bounds())));
                    }
                    let Some((head, upload)) = &mut asked else { continue };
                    if let Some((held, _)) = journey.go(&errand, there, head, upload).await? {
                        return Ok(Described::There(Box::new(held)));
                    }
                }
            }
        }
    }

    /// Returns once a replica can be had, here or elsewhere.
    pub(crate) async fn reachable(&self, entry: &Arc<Entry>, deadline: Instant) -> Result<(), InferError> {
        let errand = Errand { stack: self, entry: Arc::clone(entry), version: None, deadline };
        Journey::default().next(&errand).await.map(drop)
    }

    /// Whether a request for this model and version would be answered at once.
    pub(crate) fn is_ready(&self, model: &str, version: Option<&str>) -> Result<bool, InferError> {
        let entry = self.find(model)?;
        match entry.lease(version, &self.parking.replicas) {
            Ok(_) => Ok(!self.is_stopping()),
            Err(no @ (NoLease::Gone | NoLease::NoSuchVersion)) => Err(refusal(&entry, version, no)),
            Err(_) => Ok(!self.is_stopping() && entry.route().is_elsewhere(version)),
        }
    }

    /// The head of this request, for another node.
    pub(crate) fn head(&self, parts: &Parts) -> Head {
        Head::of(parts, self.propagate())
    }

    /// What continues traces elsewhere.
    pub(crate) fn propagate(&self) -> Option<&Propagate> {
        self.forwarding.as_ref()?.propagate.as_ref()
    }

    /// What bounds the bodies of requests.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds::new(&self.limits, self.forwarding.as_ref().map(|forwarding| &forwarding.room))
    }

    /// It stops, or is going to.
    pub(crate) fn is_stopping(&self) -> bool {
        self.leaving.load(Relaxed) || self.door.is_closed()
    }

    /// Whether everything that should be resident answers, and the gateway is not stopping.
    pub(crate) fn ready(&self) -> bool {
        let readiness = self.routes.readiness();
        readiness.planned && readiness.ready == readiness.expected && !self.is_stopping()
    }
}

/// What speaks for a deployment.
pub(crate) enum Described {
    /// A replica of this process.
    Here { entry: Arc<Entry>, replica: Arc<Replica> },
    /// The answer of another node.
    There(Box<Held>),
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

impl Errand<'_> {
    /// A lease here, if it can be had now.
    fn lease(&self, here: Option<&Here>) -> Option<Leased> {
        let replicas = &self.stack.parking.replicas;
        match here {
            Some(here) => self.entry.lease_of(here, replicas),
            None => self.entry.lease(self.version, replicas).ok(),
        }
    }
}

impl Admitted<'_> {
    /// Where the request goes; waits where nothing is ready. The first time before the body is read.
    pub(crate) async fn next(&mut self, journey: &mut Journey) -> Result<Next, InferError> {
        let next = journey.next(&self.errand).await;
        next.map_err(|error| self.failed(error))
    }

    /// The model's signature, to read bodies that do not say what they are; `None` if it was taken away meanwhile.
    pub(crate) fn signature(&self, here: Option<&Here>) -> Option<Arc<Signature>> {
        self.errand.lease(here).map(|leased| Arc::clone(leased.lease.model().signature()))
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
        let leased = match self.errand.lease(here) {
            Some(leased) => leased,
            None if self.errand.stack.forwarding.is_some() => return Ok(Ran::Moved),
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
                match timeout_at(deadline, model.infer(request, deadline.into_std())).await {
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
            Ok(outputs) => {
                self.outcome = Outcome::Ok;
                Ok(Ran::Answered(InferResponse {
                    model_name: Arc::clone(&self.errand.entry.hot().model_name),
                    model_version: leased.version,
                    id,
                    parameters: Default::default(),
                    outputs,
                }))
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

fn full(entry: &Entry, max: u32) -> InferError {
    let message = format!("model {:?} has {max} requests at once and takes no more; try again", entry.name.as_str());
    InferError::shed(Shed::QueueFull, message, RETRY_FULL)
}
