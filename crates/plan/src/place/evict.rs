//! Who leaves for a replica.
//!
//! May leave: what matters strictly less, and what matters the same if it is on demand, ready, and nobody waits for it.
//! Never: what is being loaded while requests wait for it; a resident of the same priority or more. What may not leave
//! only because somebody waits for it, or because it has just come, is busy: it may leave later.

use berth_spec::{ByteSize, DeploymentName, RevisionId, Time, WorkerId, event::Severity};

use super::Evicts;
use crate::{
    draft::Draft,
    world::{Entry, Rank, Seats},
};

/// The fewest replicas on a worker that give back `lacking` when they leave for a replica of `entry`, the least
/// important and longest unused first. If all that may leave is not enough: how much that is, and how much is busy.
pub(super) fn victims(
    draft: &Draft<'_>,
    entry: &Entry,
    worker: &WorkerId,
    lacking: ByteSize,
) -> Result<Vec<RevisionId>, Short> {
    let Some(seats) = draft.world.workers.get(worker) else { return Err(Short::default()) };
    let mut chosen: Vec<(&Rank, ByteSize)> = Vec::new();
    let mut freed = ByteSize::ZERO;
    let mut short = Short::default();
    let priority = entry.deployment.spec.priority;
    let mine = &entry.deployment.name;
    for rank in draft.sitting(worker) {
        if freed >= lacking || rank.priority > priority || (rank.priority == priority && rank.resident) {
            break;
        }
        if rank.revision.deployment() == mine {
            continue;
        }
        let claim = claim_of(draft, seats, worker, &rank.revision);
        // Once one stays because it has only just come, nobody who was used since goes in its place.
        match stays(draft, seats, rank, priority) {
            None if short.again == NEVER => {
                freed += claim;
                chosen.push((rank, claim));
            }
            stays => {
                short.busy += claim;
                short.again = short.again.min(stays.unwrap_or(NEVER));
            }
        }
    }
    if freed < lacking {
        return Err(Short { evictable: freed, ..short });
    }
    // The last ones taken are the most valuable: let those stay that turn out not to be needed.
    let mut kept = Vec::new();
    for (rank, claim) in chosen.into_iter().rev() {
        if freed - claim >= lacking {
            freed -= claim;
        } else {
            kept.push(rank.revision.clone());
        }
    }
    kept.reverse();
    Ok(kept)
}

/// What there is to evict where it is not enough.
#[derive(Debug, Clone, Copy)]
pub(super) struct Short {
    /// What may leave now.
    pub(super) evictable: ByteSize,
    /// What may leave later.
    pub(super) busy: ByteSize,
    /// When the first of it may, as far as that is a matter of time rather than of requests.
    pub(super) again: Time,
}

impl Default for Short {
    fn default() -> Self {
        Self { evictable: ByteSize::ZERO, busy: ByteSize::ZERO, again: NEVER }
    }
}

/// It takes an event, not time.
const NEVER: Time = Time(u64::MAX);

/// Until when a replica must stay; `None`: it may leave.
fn stays(draft: &Draft<'_>, seats: &Seats, rank: &Rank, priority: u8) -> Option<Time> {
    let entry = draft.world.entries.get(rank.revision.deployment())?;
    let (since, waited_for) = (seats.ready_since(&rank.revision), entry.waiting() > 0);
    if rank.priority < priority {
        return (since.is_none() && waited_for).then_some(NEVER);
    }
    // Among equals nobody leaves who has only just come: each load serves for a while.
    let until = since.map_or(NEVER, |since| since + draft.world.policy.min_residence);
    if waited_for { Some(NEVER) } else { (draft.now < until).then_some(until) }
}

/// What a replica claims now, in the plan if it has touched it.
fn claim_of(draft: &Draft<'_>, seats: &Seats, worker: &WorkerId, revision: &RevisionId) -> ByteSize {
    let in_plan = draft.works().get(revision.deployment()).and_then(|work| {
        work.replicas.iter().find(|replica| replica.worker == *worker && replica.revision == *revision)
    });
    match in_plan {
        Some(replica) => replica.claim,
        None => seats.assigned.get(revision).map_or(ByteSize::ZERO, |placed| placed.claim),
    }
}

/// What it costs to have victims leave.
pub(super) fn cost(draft: &Draft<'_>, worker: &WorkerId, victims: &[RevisionId]) -> Evicts {
    let Some(seats) = draft.world.workers.get(worker) else { return Evicts::default() };
    victims.iter().fold(Evicts::default(), |cost, victim| {
        let entry = draft.world.entries.get(victim.deployment());
        Evicts {
            priority: cost.priority.max(entry.map_or(0, |entry| entry.deployment.spec.priority)),
            last_used: cost.last_used.max(entry.map_or(Time::ZERO, |entry| entry.last_used)),
            bytes: cost.bytes + claim_of(draft, seats, worker, victim),
        }
    })
}

/// Takes a replica away. An on-demand deployment that nobody waits for leaves whole; any other one wants it back.
pub(super) fn evict(draft: &mut Draft<'_>, victim: &RevisionId, worker: &WorkerId, whom: Option<&DeploymentName>) {
    let name = victim.deployment().clone();
    let _ = draft.with(&name, |draft, work| {
        if work.entry.deployment.spec.replicas.min == 0 && work.entry.waiting() == 0 {
            draft.drop_replicas(work, |_| true);
            work.target = 0;
            work.unplaced = false;
        } else {
            draft.drop_replicas(work, |replica| replica.revision == *victim && replica.worker == *worker);
        }
        let why = match whom {
            Some(whom) => format!("to make room for {whom}"),
            None => "because its worker is over its memory".to_owned(),
        };
        draft.tell(Severity::Normal, "Evicted", (&name, Some(worker)), format!("{victim} leaves {worker} {why}"));
    });
}
