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

mod admitted;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_spec::{InferError, NameKey, inference::Shed};
use bytes::Bytes;
use http::request::Parts;
use tokio::time::Instant;

pub(crate) use self::admitted::{Admitted, Ran};
use crate::{
    admit::Door,
    config::Limits,
    demand::Ledger,
    entry::{Entry, Leased, NoLease},
    hop::{
        head::{Head, Propagate},
        held::{Failure, Held},
        journey::{Errand, Forwarding, Here, Journey, Next},
        upload::{Bounds, Upload},
    },
    local::Replica,
    metrics::{Outcome, Protocol, Totals},
    parking::{Parking, refusal},
    routes::Routes,
};

/// When to try again after a deployment had all the requests that it takes.
const RETRY_FULL: Duration = Duration::from_millis(500);

/// When to try again while no controller has said what there is. Halved: clients ask twice as often in vain. Doubled: the
/// first answers after a cold start come later.
const RETRY_UNTOLD: Duration = Duration::from_secs(1);

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

impl Stack {
    /// A deployment that somebody declared.
    pub(crate) fn find(&self, model: &str) -> Result<Arc<Entry>, InferError> {
        self.routes.find(NameKey::in_default(model)).ok_or_else(|| {
            if let Err(untold) = self.told() {
                return untold;
            }
            let shown: String = model.chars().take(berth_spec::id::MAX_NAME).collect();
            InferError::NotFound(format!("model {shown:?} is not found: no deployment of that name is declared"))
        })
    }

    /// Refuses while nobody has said which deployments there are: a name that is not known may well be declared.
    pub(crate) fn told(&self) -> Result<(), InferError> {
        if !self.routes.never_told() {
            return Ok(());
        }
        let message = "this gateway has not been told yet which models there are; try again";
        Err(InferError::shed(Shed::Unavailable, message, RETRY_UNTOLD))
    }

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
                left_here: false,
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
        match entry.would_lease(version, &self.parking.replicas) {
            Ok(()) => Ok(!self.is_stopping()),
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

impl Errand<'_> {
    /// A lease here, if it can be had now.
    pub(crate) fn lease(&self, here: Option<&Here>) -> Option<Leased> {
        let replicas = &self.stack.parking.replicas;
        match here {
            Some(here) => self.entry.lease_of(here, replicas),
            None => self.entry.lease(self.version, replicas).ok(),
        }
    }
}

fn full(entry: &Entry, max: u32) -> InferError {
    let message = format!("model {:?} has {max} requests at once and takes no more; try again", entry.name.as_str());
    InferError::shed(Shed::QueueFull, message, RETRY_FULL)
}
