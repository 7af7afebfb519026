//! Chooses the replicas to evict for another one.
//!
//! May leave: what matters strictly less, and what matters the same if it is on demand or one copy of several, ready, and
//! nobody waits for it. Never: what is pinned; what is being loaded while requests wait for it; a resident of the same
//! priority or more. Where a worker's registry entry says so, nothing leaves for others, or nothing that matters the same.
//! What may not leave only because somebody waits for it, or because it has just come, is busy: it may
//! leave later. `leaving` says in which order they are looked at.

use berth_spec::{
    ByteSize, DeploymentName, RevisionId, Time, WorkerId,
    event::Severity,
    worker::{Eviction, EvictionStrategy},
};

use super::{
    Evicts, Rejection, leaving,
    shortfall::{Freed, Given, Shortfall},
};
use crate::{
    claim::{self, Cores},
    draft::Draft,
    drain, open,
    planned::Evicted,
    scale::{self, EvictionScope},
    world::{EvictionClass, Rank, TrackedDeployment, TrackedWorker},
};

/// The fewest replicas on a worker that give back what is lacking when they leave for a replica of `entry`, the least important and longest
/// unused first, of equals the cheapest to load back; those that would give back nothing of that are left alone. If all that may leave is
/// not enough nobody does, and the reason says how much there is. `freed` has left already.
pub(super) fn victims(
    draft: &Draft<'_>,
    entry: &TrackedDeployment,
    eviction_scope: EvictionScope,
    shortfall: &Shortfall<'_>,
    mut freed: Freed,
) -> Result<Vec<RevisionId>, Rejection> {
    let worker = shortfall.worker;
    let Some(tracked) = draft.world.workers.get(worker) else { return Err(Rejection::Lost) };
    let mut chosen: Vec<Given<'_>> = Vec::new();
    // Those that may leave now, and those that may later.
    let (mut both, mut again, mut held_back) = (freed.clone(), NEVER, false);
    let (priority, eviction) = (entry.deployment.spec.priority, tracked.eviction);
    let keeps = |rank: &Rank| stays(draft, tracked, rank, priority).is_some();
    for rank in leaving::order(draft, worker, tracked, keeps) {
        if shortfall.is_met_by(&freed) || !yields(rank, priority, eviction) {
            break;
        }
        if rank.revision.deployment() == &entry.deployment.name
            || !is_in_scope(eviction_scope, rank)
            || is_pinned(draft, rank)
        {
            continue;
        }
        let (memory, cores) = (claim_of(draft, tracked, worker, &rank.revision), cores_of(draft, &rank.revision));
        let given = shortfall.given(&rank.revision, memory, cores);
        if !shortfall.is_helped_by(&freed, &given) {
            continue;
        }
        both.add(&given);
        // Once one stays because it has only just come, nobody who was used since goes in its place; and where it and a few
        // others are enough, the thousands after them need no look.
        match stays(draft, tracked, rank, priority) {
            None if !held_back => {
                freed.add(&given);
                chosen.push(given);
            }
            stays => {
                again = again.min(stays.unwrap_or(NEVER));
                held_back |= again != NEVER;
            }
        }
        if held_back && shortfall.is_met_by(&both) {
            break;
        }
    }
    if !shortfall.is_met_by(&freed) {
        let short = shortfall.rejection(draft, &freed, &both, again);
        return Err(if eviction.automatic { short } else { Rejection::KeepsAll { short: Box::new(short) } });
    }
    // The last ones taken are the most valuable: let those stay that turn out not to be needed.
    let mut kept = Vec::new();
    for given in chosen.into_iter().rev() {
        freed.remove(&given);
        if !shortfall.is_met_by(&freed) {
            freed.add(&given);
            kept.push(given.revision.clone());
        }
    }
    kept.reverse();
    Ok(kept)
}

/// An event ends it, not time.
const NEVER: Time = Time(u64::MAX);

/// Returns true if a replica's importance lets it leave for something of `priority`, under the worker's eviction
/// settings.
fn yields(rank: &Rank, priority: u8, eviction: Eviction) -> bool {
    let among_equals = eviction.strategy == EvictionStrategy::Lru;
    eviction.automatic
        && (rank.priority < priority
            || (among_equals && rank.priority == priority && rank.class != EvictionClass::Resident))
}

/// Returns true if the eviction scope of the request includes a replica.
fn is_in_scope(eviction_scope: EvictionScope, rank: &Rank) -> bool {
    match eviction_scope {
        EvictionScope::Anything => true,
        EvictionScope::UnusedSince(since) => rank.class != EvictionClass::Resident && rank.last_used < since,
        EvictionScope::Nothing => false,
    }
}

pub(super) fn is_pinned(draft: &Draft<'_>, rank: &Rank) -> bool {
    draft.world.entries.get(rank.revision.deployment()).is_some_and(|entry| entry.deployment.spec.pinned)
}

/// Until when a replica must stay; `None`: it may leave.
fn stays(draft: &Draft<'_>, tracked: &TrackedWorker, rank: &Rank, priority: u8) -> Option<Time> {
    let entry = draft.world.entries.get(rank.revision.deployment())?;
    let (since, waited_for) = (tracked.ready_since(&rank.revision), entry.waiting() > 0);
    if rank.priority < priority {
        return (since.is_none() && waited_for).then_some(NEVER);
    }
    if rank.class == EvictionClass::Surplus && since.is_some() && !is_stood_in_for(draft, rank, tracked) {
        return Some(NEVER);
    }
    // Among equals nobody leaves who has only just come: each load serves for a while.
    let until = since.map_or(NEVER, |since| since + leaving::residence(&draft.world.policy, tracked, &rank.revision));
    if waited_for { Some(NEVER) } else { (draft.now < until).then_some(until) }
}

/// Returns true if enough other copies answer without the one on a worker.
fn is_stood_in_for(draft: &Draft<'_>, rank: &Rank, tracked: &TrackedWorker) -> bool {
    let name = rank.revision.deployment();
    let recorded = || draft.world.record(name).map_or(&[][..], |record| &record.replicas);
    let replicas = draft.works().get(name).map_or_else(recorded, |work| &work.replicas);
    let others = replicas.iter().filter(|replica| {
        let there = draft.world.workers.get(&replica.worker);
        replica.revision == rank.revision
            && there.is_some_and(|there| !std::ptr::eq(there, tracked) && there.ready(&rank.revision))
    });
    let least = draft.world.entries.get(name).map_or(1, |entry| entry.deployment.spec.replicas.min.max(1));
    others.count() >= least as usize
}

/// Claim of a replica, as changed by this plan.
pub(super) fn claim_of(
    draft: &Draft<'_>,
    tracked: &TrackedWorker,
    worker: &WorkerId,
    revision: &RevisionId,
) -> ByteSize {
    let in_plan = draft.works().get(revision.deployment()).and_then(|work| {
        work.replicas.iter().find(|replica| replica.worker == *worker && replica.revision == *revision)
    });
    match in_plan {
        Some(replica) => replica.claim,
        None => tracked.assigned.get(revision).map_or(ByteSize::ZERO, |placed| placed.claim),
    }
}

fn cores_of(draft: &Draft<'_>, revision: &RevisionId) -> Cores {
    let entry = draft.world.entries.get(revision.deployment());
    entry.map_or(Cores::ZERO, |entry| claim::cores(&entry.deployment.spec))
}

/// Cost of evicting victims: the highest priority and latest use among them, and the sum of their memory.
pub(super) fn cost(draft: &Draft<'_>, worker: &WorkerId, victims: &[RevisionId]) -> Evicts {
    if victims.is_empty() {
        return Evicts::default(); // nearly always
    }
    let Some(tracked) = draft.world.workers.get(worker) else { return Evicts::default() };
    victims.iter().fold(Evicts::default(), |cost, victim| {
        let entry = draft.world.entries.get(victim.deployment());
        Evicts {
            priority: cost.priority.max(entry.map_or(0, |entry| entry.deployment.spec.priority)),
            last_used: cost.last_used.max(entry.map_or(Time::ZERO, |entry| entry.last_used)),
            bytes: cost.bytes + claim_of(draft, tracked, worker, victim),
        }
    })
}

/// Takes a replica away. One copy of several leaves alone, and there are to be fewer; an on-demand deployment that nobody
/// waits for leaves whole; any other one wants it back.
pub(super) fn evict(draft: &mut Draft<'_>, victim: &RevisionId, worker: &WorkerId, whom: Option<&DeploymentName>) {
    let name = victim.deployment().clone();
    let _ = open::with(draft, &name, |draft, work| {
        let this = |replica: &crate::Replica| replica.revision == *victim && replica.worker == *worker;
        let copies = work.copies(victim);
        if copies > work.least() && work.target > work.least() {
            draft.drop_replicas(work, this);
            drain::settle_for(draft, work, copies - 1);
        } else if work.entry.deployment.spec.replicas.min == 0 && work.entry.waiting() == 0 {
            scale::evict_idle(draft, work);
        } else {
            draft.drop_replicas(work, this);
        }
        let why = match whom {
            Some(whom) => format!("to make room for {whom}"),
            None => "because its worker has less room than it claims".to_owned(),
        };
        draft.tell(Severity::Normal, "Evicted", &name, Some(worker), format!("{victim} leaves {worker} {why}"));
        let (at, revision, worker, whom) = (draft.now, victim.clone(), worker.clone(), whom.cloned());
        draft.evicted.push(Evicted { at, revision, worker, whom });
    });
}
