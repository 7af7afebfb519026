//! Replaces the old revision by the new one. Make before break: the old one serves until the new one is ready, and goes
//! on serving if it never is.
//!
//! ```text
//!             first ready                 wants another           enough ready
//! (none) → Starting ─────→ Stable ─────────────────────→ Surging ─────────────→ Stable (of the new one)
//!                             ▲     wants the old one again │  │ no room, whenFull: recreate
//!                             └─────────────────────────────┘  ▼
//!                                                         Recreating ──ready──→ Stable (of the new one)
//!            spec changes                                      │
//! Surging ◀──────────────── Stuck ◀──── failed, or too late ───┴── (from Surging too)
//!
//!            enough ready, rollout.canary            no rollout.canary any more, enough ready
//! Surging ────────────────────────────────▶ Canary ───────────────────────────────────────────▶ Stable (of the new one)
//!    ▲             wants a third one           │ │ wants the old one again
//!    └─────────────────────────────────────────┘ └────────▶ Stable; failed wherever it may go: Stuck
//! ```
//! While a revision is being replaced it gets no copies beyond those that it had: what an update adds is of the new revision
//! at once. A copy that is lost meanwhile is made up for with another one of the old revision, so that no less serves.
//!
//! `Stuck` serves the old revision and does not try the new one again until the spec changes, or what made it fail is no more:
//! a worker that was refused has other credentials. A refusal that is owed to credentials which the worker has no longer
//! makes nothing stuck: it is waited for until it may be tried again.
//!
//! `Canary` has no deadline: it lasts until the author promotes the new revision or goes back. Both revisions have all their
//! copies. After `Recreating` nothing is left to share requests with, so that there is no canary.

use berth_spec::{Deployment, Generation, RevisionId, Time, deployment::Percent, event::Severity, shortened};

use crate::{
    Rollout,
    draft::{Draft, Work},
    world::{Change, Verdict},
};

/// Most bytes of a cause in an event: the worker, the category and some 120 characters. The event of the load, and the status, have
/// all of it.
const CAUSE: usize = 160;

/// Inputs of a rollout's next step.
#[derive(Debug)]
struct RolloutInputs {
    wanted: RevisionId,
    generation: Generation,
    /// The cause of a failed load is gone.
    forgiven: bool,
    /// Replicas of the revision in place, wherever they are.
    copies: u32,
    /// Replicas of these that are ready.
    from_ready: u32,
    to_ready: u32,
    /// Replicas of the new one that have to be ready before it takes over.
    enough: u32,
    /// When the new one is given up.
    deadline: Option<Time>,
    /// The share of requests that the new one is to have; `None`: all.
    canary: Option<Percent>,
}

/// Moves the rollout of a deployment to its next step, as far as its replicas allow. Returns true if it has moved.
pub(crate) fn step(draft: &mut Draft<'_>, work: &mut Work<'_>) -> bool {
    let Some(before) = work.rollout.clone() else {
        if work.target > 0 {
            work.rollout = Some(Rollout::Starting { revision: work.entry.wanted() });
        }
        return work.target > 0;
    };
    let after = next(&before, &see(draft, work, &before), draft.now);
    let moves = after != before;
    if moves {
        announce(draft, work, &after);
        if matches!(after, Rollout::Canary { .. }) && matches!(work.verdict, Some(Verdict::SurgeWaits { .. })) {
            // There is no deadline any more: what lacks room is refused again, without one.
            work.verdict = None;
        }
    }
    if let Rollout::Surging { to, since, .. } | Rollout::Recreating { to, since, .. } = &after
        && let Some(deadline) = deadline(work, to, *since)
    {
        work.wake_at(deadline);
    }
    work.rollout = Some(after);
    moves
}

fn see(draft: &Draft<'_>, work: &Work<'_>, rollout: &Rollout) -> RolloutInputs {
    let ready = |revision: &RevisionId| work.ready(draft.world, revision);
    let (from, to, since) = match rollout {
        Rollout::Starting { revision } | Rollout::Stable { revision } => (revision, None, draft.now),
        Rollout::Surging { from, to, since, .. }
        | Rollout::Canary { from, to, since }
        | Rollout::Recreating { from, to, since } => (from, Some(to), *since),
        Rollout::Stuck { serving, since, .. } => (serving, None, *since),
    };
    // What is assumed must not be outnumbered by less; it is no reason to go on either.
    let from_ready = if to.is_some() { work.answering(draft.world, from) } else { ready(from) };
    RolloutInputs {
        wanted: work.entry.wanted(),
        generation: work.entry.deployment.generation,
        forgiven: work.entry.warm.as_ref().is_some_and(|warm| warm.forgiven),
        copies: work.copies(from),
        from_ready,
        to_ready: to.map_or(0, ready),
        // As many as serve now: where the old one has not all that it wants, the new one need not either.
        enough: from_ready.min(work.target).max(1),
        deadline: to.and_then(|to| deadline(work, to, since)),
        canary: work.entry.deployment.spec.rollout.canary,
    }
}

/// When a revision should have become ready: counted from when its first replica was placed, not from when it was
/// wanted, since it may have to wait for room. One that was a canary is waited for from its promotion.
fn deadline(work: &Work<'_>, to: &RevisionId, since: Time) -> Option<Time> {
    let placed = work.replicas.iter().filter(|replica| replica.revision == *to).map(|replica| replica.placed).min();
    placed.map(|placed| placed.max(since) + work.entry.deployment.spec.rollout.deadline)
}

fn next(state: &Rollout, seen: &RolloutInputs, now: Time) -> Rollout {
    let wanted = seen.wanted.clone();
    let late = seen.deadline.is_some_and(|deadline| deadline <= now);
    match state {
        Rollout::Starting { revision } if *revision != wanted => Rollout::Starting { revision: wanted },
        Rollout::Starting { revision } if seen.from_ready > 0 => Rollout::Stable { revision: revision.clone() },
        Rollout::Stable { revision } if *revision != wanted => {
            if seen.copies > 0 {
                Rollout::Surging { from: revision.clone(), to: wanted, since: now, copies: seen.copies }
            } else {
                Rollout::Starting { revision: wanted }
            }
        }
        Rollout::Surging { from, .. } if *from == wanted => Rollout::Stable { revision: wanted },
        Rollout::Recreating { from, .. } if *from == wanted => Rollout::Starting { revision: wanted },
        Rollout::Surging { from, to, copies, .. } if *to != wanted => {
            Rollout::Surging { from: from.clone(), to: wanted, since: now, copies: *copies }
        }
        Rollout::Recreating { from, to, .. } if *to != wanted => {
            Rollout::Recreating { from: from.clone(), to: wanted, since: now }
        }
        Rollout::Canary { from, .. } if *from == wanted => Rollout::Stable { revision: wanted },
        Rollout::Canary { from, to, .. } if *to != wanted => another(from, wanted, seen, now),
        Rollout::Surging { from, to, .. } if seen.to_ready >= seen.enough && seen.canary.is_some() => {
            Rollout::Canary { from: from.clone(), to: to.clone(), since: now }
        }
        Rollout::Surging { to, .. } | Rollout::Recreating { to, .. } if seen.to_ready >= seen.enough => {
            Rollout::Stable { revision: to.clone() }
        }
        Rollout::Canary { to, .. } if seen.to_ready >= seen.enough && seen.canary.is_none() => {
            Rollout::Stable { revision: to.clone() }
        }
        // Promoted, and not ready any more: an update like any other.
        Rollout::Canary { from, to, .. } if seen.canary.is_none() && seen.copies > 0 => {
            Rollout::Surging { from: from.clone(), to: to.clone(), since: now, copies: seen.copies }
        }
        Rollout::Surging { from, to, .. } | Rollout::Recreating { from, to, .. } if late => Rollout::Stuck {
            serving: from.clone(),
            failed: to.clone(),
            generation: seen.generation,
            since: now,
            reason: "it was not ready before rollout.deadline".to_owned(),
            refused: false,
        },
        Rollout::Stuck { serving, generation, .. } if *generation != seen.generation || seen.forgiven => {
            if *serving == wanted {
                Rollout::Stable { revision: wanted }
            } else {
                Rollout::Surging { from: serving.clone(), to: wanted, since: now, copies: seen.copies }
            }
        }
        _ => state.clone(),
    }
}

/// The next step of a canary whose new revision is replaced by a third one.
fn another(from: &RevisionId, wanted: RevisionId, seen: &RolloutInputs, now: Time) -> Rollout {
    if seen.copies > 0 {
        Rollout::Surging { from: from.clone(), to: wanted, since: now, copies: seen.copies }
    } else if seen.canary.is_some() {
        // Nothing is loaded, so that nothing has to be waited for: the next request loads both.
        Rollout::Canary { from: from.clone(), to: wanted, since: now }
    } else {
        Rollout::Starting { revision: wanted }
    }
}

/// Gives the coming revision up because it failed wherever it may go. Says whether there was one.
pub(crate) fn give_up(draft: &mut Draft<'_>, work: &mut Work<'_>, reason: &str) -> bool {
    let Some(
        Rollout::Surging { from, to, .. } | Rollout::Canary { from, to, .. } | Rollout::Recreating { from, to, .. },
    ) = work.rollout.clone()
    else {
        return false;
    };
    let stuck = Rollout::Stuck {
        serving: from,
        failed: to.clone(),
        generation: work.entry.deployment.generation,
        since: draft.now,
        reason: reason.to_owned(),
        refused: work.entry.refusals(&to, draft.now).next().is_some(),
    };
    announce(draft, work, &stuck);
    draft.drop_replicas(work, |replica| replica.revision == to);
    work.rollout = Some(stuck);
    true
}

/// Takes the old revision away to make room for the new one. Says whether there was one to take.
pub(crate) fn recreate(draft: &mut Draft<'_>, work: &mut Work<'_>) -> bool {
    let Some(Rollout::Surging { from, to, since, .. }) = work.rollout.clone() else { return false };
    let name = work.name().clone();
    draft.tell(
        Severity::Normal,
        "RolloutRecreates",
        &name,
        None,
        format!("{name}: no room for {from} and {to} together, {from} leaves first"),
    );
    draft.drop_replicas(work, |replica| replica.revision == from);
    work.rollout = Some(Rollout::Recreating { from, to, since });
    true
}

fn announce(draft: &mut Draft<'_>, work: &Work<'_>, after: &Rollout) {
    let name = work.name().clone();
    let completes =
        matches!(work.rollout, Some(Rollout::Surging { .. } | Rollout::Canary { .. } | Rollout::Recreating { .. }));
    let (severity, reason, message) = match after {
        Rollout::Surging { from, to, .. } => {
            (Severity::Normal, "RolloutStarted", format!("{name}: {to} is loaded beside {from}"))
        }
        Rollout::Canary { from, to, .. } => {
            let percent = work.entry.deployment.spec.rollout.canary.map_or(0, Percent::get);
            let message = format!("{name}: {to} gets {percent} % of requests, {from} the others, until it is promoted");
            (Severity::Normal, "RolloutCanary", message)
        }
        Rollout::Stable { revision } if completes => {
            (Severity::Normal, "RolloutCompleted", format!("{name}: {revision} serves"))
        }
        Rollout::Stuck { serving, failed, reason, .. } => {
            let (what, reason) = (remedy(after, &work.entry.deployment), shortened(reason.clone(), CAUSE));
            let message =
                format!("{name}: {failed} is given up, {serving} goes on serving: {reason}; {what} to try again");
            (Severity::Warning, "RolloutStuck", message)
        }
        _ => return,
    };
    draft.tell(severity, reason, &name, None, message);
}

/// Advice on a rollout that is stuck.
pub(crate) fn remedy(rollout: &Rollout, deployment: &Deployment) -> String {
    match rollout {
        Rollout::Stuck { refused: true, .. } => "change the credentials of its worker, or the spec,".to_owned(),
        _ => format!("change {}", Change::of(deployment)),
    }
}
