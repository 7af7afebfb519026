//! One request's way from endpoint to endpoint, until one answers it.
//!
//! ```text
//!            ┌────────── not sent, not run ─────────┐
//!            ▼                                      │
//!  next ─▶ there ──▶ send ──▶ answered              │
//!   │ ▲      │        ├──▶ broken ── may be sent again? ── no ──▶ lost
//!   │ │      │        └──▶ slow: may be sent again, and another endpoint is well
//!   │ │      └─ here: the own replica runs it
//!   │ └── a route, a hint or a member changed, or RECHECK_INTERVAL
//!   └──▶ parked: no endpoint is left in this round
//! ```
//!
//! An endpoint is tried once a round; a round ends by waiting. At most [`MAX_SENDS`] nodes get a request of which nobody knows afterwards
//! whether it was run; one that was certainly not run may go out as often as there is time. A node counts once, however often it is slow or
//! a line to it breaks: in a partition both happen until membership has given it up. Started anew it is another node.

use std::{sync::Arc, time::Duration};

use berth_peer::Peer;
use berth_spec::{InferError, inference::Shed};
use tokio::time::Instant;

use crate::{
    body::upload::{Upload, unrepeatable},
    endpoint::{
        Endpoint, InFlight,
        choose::TriedEndpoints,
        forwarding::Forwarding,
        target::{NextTarget, RemoteTarget},
    },
    forward::{
        buffered::{BufferedResponse, Failure},
        context::{Purpose, RequestContext},
        head::Head,
        patience,
        send::{SendError, Wait, send},
    },
    metrics::forward::{HopResult, Hops, RetryReason},
    not_run::NotRun,
    parking::Lookup,
};

/// The most nodes that may have run the request: two nodes may die at once, and a request that kills nodes kills three.
const MAX_SENDS: usize = 3;

/// The most lines that may break under one request: as many as a gateway has to a node. The lines to a node that is cut off break one after
/// the other, within two seconds, in which a request meets hardly more of two such nodes. Others' requests break with it: one that is the
/// cause itself must not go on for all its time.
const MAX_BREAKS: usize = 12;

/// When to try again after every replica's queue was full: inferences are short.
const RETRY_FULL: Duration = Duration::from_millis(500);

/// The attempts of one request.
#[derive(Default)]
pub(crate) struct RetryState {
    tried: TriedEndpoints,
    /// The nodes that may have run it: slow ones, and those whose line broke.
    unsure: Vec<Arc<Peer>>,
    /// The number of nodes that said that the request was lost there.
    lost: usize,
    /// The number of lines that broke.
    breaks: usize,
    begun: bool,
    /// The last replica that was asked has all the requests that it takes.
    full: bool,
}

impl RetryState {
    /// Chooses the target now; waits where nothing is ready.
    pub(crate) async fn next(&mut self, context: &RequestContext<'_>) -> Result<NextTarget, InferError> {
        let (parking, tried, full) = (&context.stack.parking, &mut self.tried, &mut self.full);
        let look = |look: Lookup| {
            if look == Lookup::Repeated {
                tried.clear();
            }
            let found = context.entry.find(context.wanted(), &parking.replicas, tried);
            match found {
                Err(_) if std::mem::take(full) => Ok(None),
                found => found.map(Some),
            }
        };
        let found = parking.find(context.replica_request(), look).await?;
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
        let request = head.request(&there.endpoints.revision, &there.endpoints.version, context.deadline, body);
        let started = Instant::now();
        let wait = self.wait(context, forwarding, &there, upload, started);
        let sent = send(&there.endpoint, &there.known, request, wait, || upload.fault()).await;
        let (hops, took) = (&forwarding.hops, started.elapsed());
        match sent {
            Ok(answered) if answered.0.is_lost() => {
                hops.sent(HopResult::Broken, near, took);
                self.lost += 1;
                // What it says itself is the best that can be said then.
                if self.forbids(context, forwarding, upload).is_some() {
                    return Ok(Some(answered));
                }
                hops.retried(RetryReason::Broken);
                self.tried.add(there.endpoint);
                Ok(None)
            }
            Ok(answered) => {
                hops.sent(HopResult::Answered, near, took);
                Ok(Some(answered))
            }
            Err(SendError::Client(fault)) => {
                hops.sent(HopResult::Client, near, took);
                Err(fault.into())
            }
            Err(SendError::NotRun(why)) => {
                hops.sent(HopResult::NotRun, near, took);
                self.full = why == NotRun::Full;
                self.not_run(there.endpoint, RetryReason::of(why), hops, upload)?;
                Ok(None)
            }
            Err(SendError::NotSent) => {
                hops.sent(HopResult::NotSent, near, took);
                self.not_run(there.endpoint, RetryReason::NotSent, hops, upload)?;
                Ok(None)
            }
            Err(SendError::Broken) => {
                hops.sent(HopResult::Broken, near, took);
                self.breaks += 1;
                self.may_have_run(&there.known.peer);
                if let Some(why) = self.forbids(context, forwarding, upload) {
                    return Err(Failure::Lost { model: context.entry.name.to_string(), why });
                }
                hops.retried(RetryReason::Broken);
                self.tried.add(there.endpoint);
                Ok(None)
            }
            Err(SendError::Slow) => {
                hops.sent(HopResult::Late, near, took);
                hops.retried(RetryReason::Late);
                self.may_have_run(&there.known.peer);
                self.tried.add(there.endpoint);
                Ok(None)
            }
            Err(SendError::Late) => {
                hops.sent(HopResult::Late, near, took);
                Err(context.timed_out().into())
            }
        }
    }

    /// Leaves an endpoint that ran nothing, where the body can be sent to another one.
    fn not_run(
        &mut self,
        endpoint: Arc<Endpoint>,
        why: RetryReason,
        hops: &Hops,
        upload: &Upload,
    ) -> Result<(), Failure> {
        if !upload.is_repeatable() {
            return Err(unrepeatable().into());
        }
        hops.retried(why);
        self.tried.add(endpoint);
        Ok(())
    }

    /// Counts a node, once.
    fn may_have_run(&mut self, node: &Arc<Peer>) {
        if self.is_new(node) {
            self.unsure.push(Arc::clone(node));
        }
    }

    fn is_new(&self, node: &Arc<Peer>) -> bool {
        !self.unsure.iter().any(|known| Arc::ptr_eq(known, node))
    }

    fn sends(&self) -> usize {
        self.unsure.len() + self.lost
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
        context: &RequestContext<'_>,
        forwarding: &Forwarding,
        there: &RemoteTarget,
        upload: &Upload,
        now: Instant,
    ) -> Wait<impl FnOnce() -> bool> {
        let clock = forwarding.remotes.clock();
        let left = context.deadline.saturating_duration_since(now);
        let patience = (context.is_idempotent() && context.purpose != Purpose::Exchange)
            .then(|| patience::of(there.endpoints.expected(clock.at(now)), left))
            .flatten();
        let leaves = move || {
            let elsewhere = there.or_here || there.endpoints.others(&there.endpoint, &self.tried, clock.now());
            elsewhere
                && self.sends() + usize::from(self.is_new(&there.known.peer)) < MAX_SENDS
                && upload.is_repeatable()
                && forwarding.budget.take(clock.now())
        };
        Wait { deadline: context.deadline, patience: patience.map(|patience| now + patience), leaves }
    }

    /// The reason why a request that may have been run is not sent again.
    fn forbids(&self, context: &RequestContext<'_>, forwarding: &Forwarding, upload: &Upload) -> Option<&'static str> {
        if !context.is_idempotent() {
            return Some("the model is declared as not idempotent");
        }
        if !upload.is_repeatable() {
            return Some("its body was longer than what is kept to send it again");
        }
        if self.sends() >= MAX_SENDS {
            return Some("it was sent to three nodes already");
        }
        if self.breaks >= MAX_BREAKS {
            return Some("twelve lines broke under it already");
        }
        let taken = forwarding.budget.take(forwarding.remotes.clock().now());
        (!taken).then_some("too many requests are being sent again already")
    }
}
