//! What happens to one inference, from the bottom (nearest to the model) to the top (nearest to the client).
//!
//! ```text
//!  head ─▶ find ─▶ door ─▶ full? ─▶ ready? ──(park)──▶ [ingress reads and decodes the body] ─▶ lease ─▶ model ─▶ account
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
//! * **model** runs under the deadline. Dropping it is how a cancelled request is taken out of the model's queue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_spec::{InferError, InferRequest, InferResponse, Signature, inference::Shed};
use tokio::time::{Instant, timeout_at};

use crate::{
    admit::{Door, Pass},
    config::Limits,
    demand::Ledger,
    entry::{Entry, NoLease},
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
    stack: &'a Stack,
    entry: Arc<Entry>,
    version: Option<&'a str>,
    protocol: Protocol,
    started: Instant,
    deadline: Instant,
    outcome: Outcome,
    _pass: Pass,
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
                stack: self,
                version: call.version,
                protocol: call.protocol,
                started,
                deadline: started + timeout,
                outcome: Outcome::Cancelled,
                entry,
                _pass: pass,
            }),
            Err(error) => {
                self.totals.error(&error);
                entry.hot().stats.record(call.protocol, Outcome::of(&error), started.elapsed());
                Err(error)
            }
        }
    }

    /// The replica that describes a deployment. A miss like any other: a cold model is loaded to be described.
    pub(crate) async fn describe(
        &self,
        model: &str,
        version: Option<&str>,
        timeout: Option<Duration>,
    ) -> Result<Described, InferError> {
        let entry = self.find(model)?;
        let _pass = self.door.enter()?;
        let timeout = timeout.unwrap_or(entry.route().terms.timeout).min(self.limits.deadline);
        let leased = self.parking.lease(&entry, version, Instant::now() + timeout).await?;
        Ok(Described { replica: Arc::clone(leased.lease.replica()), entry })
    }

    /// Whether a request for this model and version would be answered at once.
    pub(crate) fn is_ready(&self, model: &str, version: Option<&str>) -> Result<bool, InferError> {
        let entry = self.find(model)?;
        match entry.lease(version, &self.parking.replicas) {
            Ok(_) => Ok(!self.door.is_closed()),
            Err(no @ (NoLease::Gone | NoLease::NoSuchVersion)) => Err(refusal(&entry, version, no)),
            Err(_) => Ok(false),
        }
    }

    /// Whether everything that should be resident answers, and the gateway is not stopping.
    pub(crate) fn ready(&self) -> bool {
        let readiness = self.routes.readiness();
        readiness.planned && readiness.ready == readiness.expected && !self.door.is_closed()
    }
}

/// A deployment and a replica that speaks for it.
pub(crate) struct Described {
    pub(crate) entry: Arc<Entry>,
    pub(crate) replica: Arc<Replica>,
}

impl Admitted<'_> {
    /// Waits until a replica is ready, if none is: before the body is read.
    pub(crate) async fn ready(&mut self) -> Result<(), InferError> {
        if self.version.is_none() && self.entry.route().any_ready() {
            return Ok(());
        }
        let leased = self.stack.parking.lease(&self.entry, self.version, self.deadline).await;
        leased.map(drop).map_err(|error| self.failed(error))
    }

    /// Calls `with` with the model's signature; an empty one if it was taken away meanwhile.
    pub(crate) fn with_signature<T>(&self, with: impl FnOnce(&Signature) -> T) -> T {
        match self.entry.lease(self.version, &self.stack.parking.replicas) {
            Ok(leased) => with(leased.lease.model().signature()),
            Err(_) => with(&Signature::default()),
        }
    }

    /// The point in time after which nobody waits for the answer.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The caller said inside the body how long it waits.
    pub(crate) fn shorten(&mut self, timeout: Option<Duration>) {
        if let Some(timeout) = timeout {
            self.deadline = self.deadline.min(self.started + timeout);
        }
    }

    /// Counts the bytes of the request's body.
    pub(crate) fn received(&self, bytes: usize) {
        self.entry.hot().stats.request_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts the bytes of the answer's body.
    pub(crate) fn sent(&self, bytes: usize) {
        self.entry.hot().stats.response_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Runs the request on a replica.
    pub(crate) async fn infer(&mut self, mut request: InferRequest) -> Result<InferResponse, InferError> {
        let id = request.id.take();
        let leased = match self.stack.parking.lease(&self.entry, self.version, self.deadline).await {
            Ok(leased) => leased,
            Err(error) => return Err(self.failed(error)),
        };
        let answer = {
            let hot = self.entry.hot();
            let running = Running::enter(&hot.usage.in_flight);
            // What was said of it before, while it waited or its body came, did not say that it is in flight.
            self.stack.ledger.list(&self.entry);
            let max = self.entry.route().terms.concurrency.max;
            if let Some(max) = max.filter(|max| running.before >= *max) {
                Err(full(&self.entry, max))
            } else {
                let model = leased.lease.model();
                match timeout_at(self.deadline, model.infer(request, self.deadline.into_std())).await {
                    Ok(answer) => answer,
                    Err(_) => Err(self.timed_out()),
                }
            }
        };
        match answer {
            Ok(outputs) => {
                self.outcome = Outcome::Ok;
                Ok(InferResponse {
                    model_name: Arc::clone(&self.entry.hot().model_name),
                    model_version: leased.version,
                    id,
                    parameters: Default::default(),
                    outputs,
                })
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// The error of a request whose deadline has passed outside the model's queue.
    pub(crate) fn timed_out(&self) -> InferError {
        let waited = self.started.elapsed().as_millis();
        InferError::TimedOut(format!("model {:?} had not answered after {waited} ms", self.entry.name.as_str()))
    }

    /// Notes that the request ends with this error.
    pub(crate) fn failed(&mut self, error: InferError) -> InferError {
        self.outcome = Outcome::of(&error);
        self.stack.totals.error(&error);
        error
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.entry.hot().stats.record(self.protocol, self.outcome, self.started.elapsed());
    }
}

/// A request that runs, and how many ran before it.
struct Running<'a> {
    in_flight: &'a AtomicU32,
    before: u32,
}

impl<'a> Running<'a> {
    fn enter(in_flight: &'a AtomicU32) -> Self {
        Self { in_flight, before: in_flight.fetch_add(1, Relaxed) }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }
}

fn full(entry: &Entry, max: u32) -> InferError {
    let message = format!("model {:?} has {max} requests at once and takes no more; try again", entry.name.as_str());
    InferError::shed(Shed::QueueFull, message, RETRY_FULL)
}
