//! One request's way from endpoint to endpoint, until one answers it.
//!
//! ```text
//!            ┌────────── not sent, not run ─────────┐
//!            ▼                                      │
//!  next ─▶ there ──▶ send ──▶ answered              │
//!   │ ▲      │        ├──▶ broken ── may be sent again? ── no ──▶ lost
//!   │ │      │        └──▶ slow: may be sent again, and another endpoint is well
//!   │ │      └─ here: the own replica runs it
//!   │ └── a route, a hint or a member changed, or RELOOK
//!   └──▶ parked: no endpoint is left in this round
//! ```
//!
//! An endpoint is tried once a round; a round ends by waiting. At most [`SENDS`] times a request goes out after which nobody
//! knows whether it was run; one that was certainly not run may go out as often as there is time. An endpoint that was left because
//! it was slow, and whose line then breaks, counts once.

use std::{sync::Arc, time::Duration};

use berth_spec::{InferError, inference::Shed};
use tokio::time::Instant;

use crate::{
    body::upload::{Upload, unrepeatable},
    endpoint::{
        Endpoint, InFlight,
        choose::Tried,
        forwarding::Forwarding,
        target::{NextTarget, RemoteTarget},
    },
    forward::{
        buffered::{BufferedResponse, Failure},
        context::RequestContext,
        head::Head,
        patience,
        send::{Unanswered, Wait, send},
    },
    metrics::forward::{Again, HopResult, Hops},
    not_run::NotRun,
    parking::Look,
};

/// The most attempts where each may have run the request: two nodes may die at once, and a request that kills nodes
/// kills three.
const SENDS: u32 = 3;

/// When to try again after every replica's queue was full: inferences are short.
const RETRY_FULL: Duration = Duration::from_millis(500);

/// The attempts of one request.
#[derive(Default)]
pub(crate) struct RetryState {
    tried: Tried,
    /// The number of times that it may have been run.
    sends: u32,
    /// The endpoints that were left because they were slow: each counts among `sends`.
    slow: Vec<Arc<Endpoint>>,
    begun: bool,
    /// The last replica that was asked has all the requests that it takes.
    full: bool,
}

impl RetryState {
    /// Chooses the target now; waits where nothing is ready.
    pub(crate) async fn next(&mut self, context: &RequestContext<'_>) -> Result<NextTarget, InferError> {
        let (parking, tried, full) = (&context.stack.parking, &mut self.tried, &mut self.full);
        let look = |look: Look| {
            if look == Look::Again {
                tried.clear();
            }
            let found = context.entry.find(context.wanted(), &parking.replicas, tried);
            match found {
                Err(_) if std::mem::take(full) => Ok(None),
                found => found.map(Some),
            }
        };
        let found =
            parking.find((&context.entry, &context.holder), context.version, context.latest_start(), look).await?;
        found.ok_or_else(|| {
            let message =
                format!("the replicas of model {:?} have full queues; try again", context.entry.name.as_str());
            InferError::shed(Shed::QueueFull, message, RETRY_FULL)
        })
    }

    /// Sends the request there. `None`: it was not answered, and may go elsewhere.
    pub(crate) async fn go(
        &mut self,
        context: &RequestContext<'_>,
        there: RemoteTarget,
        head: &Head,
        upload: &mut Upload,
    ) -> Result<Option<(BufferedResponse, InFlight)>, Failure> {
        let Some(forwarding) = context.stack.forwarding.as_deref() else { return Ok(None) };
        let Some(body) = upload.again() else { return Err(unrepeatable().into()) };
        if !std::mem::replace(&mut self.begun, true) {
            forwarding.budget.request();
        }
        let near = there.known.near;
        let request = head.request((&there.endpoints.revision, &there.endpoints.version), context.deadline, body);
        let started = Instant::now();
        let wait = self.wait((context, forwarding), &there, upload, started);
        let sent = send(&there.endpoint, &there.known, request, wait, || upload.fault()).await;
        let (hops, took) = (&forwarding.hops, started.elapsed());
        match sent {
            Ok(answered) if answered.0.is_lost() => {
                hops.sent(HopResult::Broken, near, took);
                self.sends += 1;
                // What it says itself is the best that can be said then.
                if self.forbids(context, forwarding, upload).is_some() {
                    return Ok(Some(answered));
                }
                hops.again(Again::Broken);
                self.tried.add(there.endpoint);
                Ok(None)
            }
            Ok(answered) => {
                hops.sent(HopResult::Answered, near, took);
                Ok(Some(answered))
            }
            Err(Unanswered::Client(fault)) => {
                hops.sent(HopResult::Client, near, took);
                Err(fault.into())
            }
            Err(Unanswered::NotRun(why)) => {
                hops.sent(HopResult::NotRun, near, took);
                self.full = why == NotRun::Full;
                self.not_run(there.endpoint, (Again::of(why), hops), upload)?;
                Ok(None)
            }
            Err(Unanswered::NotSent) => {
                hops.sent(HopResult::NotSent, near, took);
                self.not_run(there.endpoint, (Again::NotSent, hops), upload)?;
                Ok(None)
            }
            Err(Unanswered::Broken) => {
                hops.sent(HopResult::Broken, near, took);
                self.broke(&there.endpoint);
                if let Some(why) = self.forbids(context, forwarding, upload) {
                    return Err(Failure::Lost { model: context.entry.name.to_string(), why });
                }
                hops.again(Again::Broken);
                self.tried.add(there.endpoint);
                Ok(None)
            }
            Err(Unanswered::Slow) => {
                hops.sent(HopResult::Late, near, took);
                hops.again(Again::Late);
                self.sends += 1;
                self.slow.push(Arc::clone(&there.endpoint));
                self.tried.add(there.endpoint);
                Ok(None)
            }
            Err(Unanswered::Late) => {
                hops.sent(HopResult::Late, near, took);
                Err(context.timed_out().into())
            }
        }
    }

    /// Leaves an endpoint that ran nothing, where the body can be sent to another one.
    fn not_run(
        &mut self,
        endpoint: Arc<Endpoint>,
        (again, hops): (Again, &Hops),
        upload: &Upload,
    ) -> Result<(), Failure> {
        if !upload.is_repeatable() {
            return Err(unrepeatable().into());
        }
        hops.again(again);
        self.tried.add(endpoint);
        Ok(())
    }

    /// Counts a line that broke. Where the endpoint had been slow before, it is the same node that is lost: nodes that cannot be reached
    /// any more use up one attempt each.
    fn broke(&mut self, endpoint: &Arc<Endpoint>) {
        match self.slow.iter().position(|slow| Arc::ptr_eq(slow, endpoint)) {
            Some(at) => drop(self.slow.swap_remove(at)),
            None => self.sends += 1,
        }
    }

    /// Goes on elsewhere: the own replica was tried.
    pub(crate) fn leave_here(&mut self, why: NotRun) {
        self.full = why == NotRun::Full;
        self.tried.add_here();
    }

    /// The time that an endpoint gets. A request leaves it only for another one that is well, and where it could be
    /// sent again had the line broken: an idempotent model takes the retry.
    fn wait(
        &self,
        (context, forwarding): (&RequestContext<'_>, &Forwarding),
        there: &RemoteTarget,
        upload: &Upload,
        now: Instant,
    ) -> Wait<impl FnOnce() -> bool> {
        let clock = forwarding.remotes.clock();
        let left = context.deadline.saturating_duration_since(now);
        let idempotent = context.entry.route().terms.idempotent;
        let patience = (idempotent && !context.exchange)
            .then(|| patience::of(there.endpoints.expected(clock.at(now)), left))
            .flatten();
        let leaves = move || {
            let elsewhere = there.or_here || there.endpoints.others(&there.endpoint, &self.tried, clock.now());
            elsewhere && self.sends + 1 < SENDS && upload.is_repeatable() && forwarding.budget.take(clock.now())
        };
        Wait { deadline: context.deadline, patience: patience.map(|patience| now + patience), leaves }
    }

    /// The reason why a request that may have been run is not sent again.
    fn forbids(&self, context: &RequestContext<'_>, forwarding: &Forwarding, upload: &Upload) -> Option<&'static str> {
        if !context.entry.route().terms.idempotent {
            return Some("the model is declared as not idempotent");
        }
        if !upload.is_repeatable() {
            return Some("its body was longer than what is kept to send it again");
        }
        if self.sends >= SENDS {
            return Some("it was sent to three endpoints already");
        }
        let taken = forwarding.budget.take(forwarding.remotes.clock().now());
        (!taken).then_some("too many requests are being sent again already")
    }
}
