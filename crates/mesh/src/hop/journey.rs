//! One request's way from place to place, until one answers it.
//!
//! ```text
//!            ┌────────── not sent, not run ─────────┐
//!            ▼                                      │
//!  next ─▶ there ──▶ send ──▶ answered              │
//!   │ ▲      │        ├──▶ broken ── may be sent again? ── no ──▶ lost
//!   │ │      │        └──▶ slow: may be sent again, and another place is well
//!   │ │      └─ here: the own replica runs it
//!   │ └── a route, a hint or a member changed, or RELOOK
//!   └──▶ parked: no place is left in this round
//! ```
//!
//! A place is tried once a round; a round ends by waiting. At most [`SENDS`] times a request goes out after which nobody
//! knows whether it was run; one that was certainly not run may go out as often as there is time.

use std::{sync::Arc, time::Duration};

use berth_spec::{InferError, RevisionId, inference::Shed};
use tokio::time::Instant;

use super::{
    budget::Budget,
    choose::Tried,
    fleet::{Fleet, Known, Remotes},
    head::{Head, Propagate},
    held::{Failure, Held, NotRun},
    patience,
    place::{Place, Places, UnderWay},
    send::{Unanswered, Wait, send},
    tick::Clock,
    upload::{Room, Upload, unrepeatable},
};
use crate::{
    config::Limits,
    entry::Entry,
    metrics::hop::{Again, Hops, Result as HopResult},
    parking::Look,
    stack::Stack,
};

/// How often a request is sent where it may have been run. Halved (and rounded up): the death of two nodes at once costs
/// requests. Doubled: a request that kills nodes kills twice as many.
const SENDS: u32 = 3;

/// When to try again after every replica's queue was full: inferences are short.
const RETRY_FULL: Duration = Duration::from_millis(500);

/// What forwarding needs, one per gateway.
pub(crate) struct Forwarding {
    pub(crate) remotes: Arc<Remotes>,
    pub(crate) budget: Budget,
    pub(crate) room: Arc<Room>,
    pub(crate) propagate: Option<Propagate>,
    pub(crate) hops: Hops,
}

/// Who asks for what, and until when.
pub(crate) struct Errand<'a> {
    pub(crate) stack: &'a Stack,
    pub(crate) entry: Arc<Entry>,
    /// `None`: whichever version the route says.
    pub(crate) version: Option<&'a str>,
    pub(crate) deadline: Instant,
}

/// Where it goes next.
pub(crate) enum Next {
    /// The own replica; `None`: of whichever revision the route says when it is leased.
    Here(Option<Here>),
    /// Another node.
    There(There),
}

/// The own replica of a revision.
pub(crate) struct Here {
    pub(crate) revision: RevisionId,
    pub(crate) version: Arc<str>,
}

/// A revision on another node.
pub(crate) struct There {
    pub(crate) place: Arc<Place>,
    pub(crate) known: Arc<Known>,
    /// The places that it was chosen from.
    pub(crate) places: Arc<Places>,
    /// The own replica could have answered, too.
    pub(crate) or_here: bool,
}

/// What one request has behind it.
#[derive(Default)]
pub(crate) struct Journey {
    tried: Tried,
    /// How often it may have been run.
    sends: u32,
    begun: bool,
    /// The last place that was asked has all the requests that it takes.
    full: bool,
}

impl Journey {
    /// Where to go now; waits where nothing is ready.
    pub(crate) async fn next(&mut self, errand: &Errand<'_>) -> Result<Next, InferError> {
        let (parking, tried, full) = (&errand.stack.parking, &mut self.tried, &mut self.full);
        let look = |look: Look| {
            if look == Look::Again {
                tried.clear();
            }
            let found = errand.entry.find(errand.version, &parking.replicas, tried);
            match found {
                Err(_) if std::mem::take(full) => Ok(None),
                found => found.map(Some),
            }
        };
        let found = parking.find(&errand.entry, errand.version, errand.deadline, look).await?;
        found.ok_or_else(|| {
            let message = format!("the replicas of model {:?} have full queues; try again", errand.entry.name.as_str());
            InferError::shed(Shed::QueueFull, message, RETRY_FULL)
        })
    }

    /// Sends the request there. `None`: it was not answered, and may go elsewhere.
    pub(crate) async fn go(
        &mut self,
        errand: &Errand<'_>,
        there: There,
        head: &Head,
        upload: &mut Upload,
    ) -> Result<Option<(Held, UnderWay)>, Failure> {
        let Some(forwarding) = errand.stack.forwarding.as_deref() else { return Ok(None) };
        let Some(body) = upload.again() else { return Err(unrepeatable().into()) };
        if !std::mem::replace(&mut self.begun, true) {
            forwarding.budget.request();
        }
        let near = there.known.near;
        let request = head.request((&there.places.revision, &there.places.version), errand.deadline, body);
        let started = Instant::now();
        let wait = self.wait((errand, forwarding), &there, upload, started);
        let sent = send(&there.place, &there.known, request, wait, || upload.fault()).await;
        let (hops, took) = (&forwarding.hops, started.elapsed());
        match sent {
            Ok(answered) if answered.0.is_lost() => {
                hops.sent(HopResult::Broken, near, took);
                self.sends += 1;
                // What it says itself is the best that can be said then.
                if self.forbids(errand, forwarding, upload).is_some() {
                    return Ok(Some(answered));
                }
                hops.again(Again::Broken);
                self.tried.add(there.place);
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
                if !upload.is_repeatable() {
                    return Err(unrepeatable().into());
                }
                hops.again(Again::of(why));
                self.full = why == NotRun::Full;
                self.tried.add(there.place);
                Ok(None)
            }
            Err(Unanswered::NotSent) => {
                hops.sent(HopResult::NotSent, near, took);
                if !upload.is_repeatable() {
                    return Err(unrepeatable().into());
                }
                hops.again(Again::NotSent);
                self.tried.add(there.place);
                Ok(None)
            }
            Err(Unanswered::Broken) => {
                hops.sent(HopResult::Broken, near, took);
                self.sends += 1;
                if let Some(why) = self.forbids(errand, forwarding, upload) {
                    return Err(Failure::Lost { model: errand.entry.name.to_string(), why });
                }
                hops.again(Again::Broken);
                self.tried.add(there.place);
                Ok(None)
            }
            Err(Unanswered::Slow) => {
                hops.sent(HopResult::Late, near, took);
                hops.again(Again::Late);
                self.sends += 1;
                self.tried.add(there.place);
                Ok(None)
            }
            Err(Unanswered::Late) => {
                hops.sent(HopResult::Late, near, took);
                Err(errand.timed_out().into())
            }
        }
    }

    /// Goes on elsewhere: the own replica was tried.
    pub(crate) fn leave_here(&mut self) {
        self.tried.add_here();
    }

    /// How long a place is waited for. A request leaves it only for another one that is well, and where it could be sent
    /// again had the line broken: who asks for that has taken the retry.
    fn wait(
        &self,
        (errand, forwarding): (&Errand<'_>, &Forwarding),
        there: &There,
        upload: &Upload,
        now: Instant,
    ) -> Wait<impl FnOnce() -> bool> {
        let clock = forwarding.remotes.clock();
        let left = errand.deadline.saturating_duration_since(now);
        let idempotent = errand.entry.route().terms.idempotent;
        let patience = idempotent.then(|| patience::of(there.places.expected(clock.at(now)), left)).flatten();
        let leaves = move || {
            let elsewhere = there.or_here || there.places.others(&there.place, &self.tried, clock.now());
            elsewhere && self.sends + 1 < SENDS && upload.is_repeatable() && forwarding.budget.take(clock.now())
        };
        Wait { deadline: errand.deadline, patience: patience.map(|patience| now + patience), leaves }
    }

    /// Why a request that may have been run is not sent again.
    fn forbids(&self, errand: &Errand<'_>, forwarding: &Forwarding, upload: &Upload) -> Option<&'static str> {
        if !errand.entry.route().terms.idempotent {
            return Some("the model is declared as not idempotent");
        }
        if !upload.is_repeatable() {
            return Some("its body was longer than what is kept to send it again");
        }
        if self.sends >= SENDS {
            return Some("it was sent to three places already");
        }
        let taken = forwarding.budget.take(forwarding.remotes.clock().now());
        (!taken).then_some("too many requests are being sent again already")
    }
}

impl Errand<'_> {
    /// Whether a request that failed on the own replica of `here` goes on elsewhere: another node holds the revision, and
    /// the request was not run, or may be run again.
    pub(crate) fn leaves(&self, here: &Here, error: &InferError) -> bool {
        let Some(forwarding) = self.stack.forwarding.as_deref() else { return false };
        let again = match error {
            InferError::Shed { reason: Shed::Unavailable, .. } => true,
            InferError::Lost(_) => self.entry.route().terms.idempotent,
            _ => false,
        };
        let taken =
            || matches!(error, InferError::Shed { .. }) || forwarding.budget.take(forwarding.remotes.clock().now());
        again && self.entry.is_elsewhere(&here.revision) && taken()
    }

    /// The error of a request whose deadline has passed outside a model's queue.
    pub(crate) fn timed_out(&self) -> InferError {
        InferError::TimedOut(format!(
            "model {:?} had not answered when the request's time was over",
            self.entry.name.as_str()
        ))
    }
}

impl Forwarding {
    pub(crate) fn new(fleet: Fleet, limits: &Limits, propagate: Option<Propagate>) -> Self {
        Self {
            remotes: Arc::new(Remotes::new(fleet, Clock::start())),
            budget: Budget::new(limits.retry_burst),
            room: Room::new(limits.replay_total),
            propagate,
            hops: Hops::default(),
        }
    }
}
