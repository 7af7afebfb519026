//! Where replicas go, and who leaves for them. `place/README.md` states the problem before the algorithm.

mod choose;
mod evict;
mod filter;
mod refuse;
mod relieve;
mod score;

use std::{cmp::Reverse, collections::BTreeSet};

use berth_spec::{DeploymentName, RevisionId, event::Severity};

pub(crate) use choose::{Choice, Refusal, choose, view};
pub use filter::Rejection;
pub(crate) use filter::forbidden;
pub(crate) use refuse::never;
pub use score::{Evicts, Score};

use crate::{
    Replica, claim,
    draft::{Draft, Work},
    lost,
};

/// One replica that is wanted and has no place. In the order in which they get theirs: what matters most first, then
/// residents, then what serves before what comes next.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Want {
    priority: Reverse<u8>,
    on_demand: bool,
    surge: bool,
    deployment: DeploymentName,
    revision: RevisionId,
    nth: u32,
}

/// Finds a place for everything that is wanted and has none.
pub(crate) fn step(draft: &mut Draft<'_>) {
    relieve::step(draft);
    let mut wants: BTreeSet<Want> = draft.works().values().flat_map(|work| wants_of(draft, work)).collect();
    // What had no place is tried again until nothing moves: those who left may have made more room than was asked for.
    // So planning again finds the same, down to the numbers in the reasons.
    while place_all(draft, wants) {
        wants = draft.works().values().filter(|work| work.unplaced).flat_map(|work| wants_of(draft, work)).collect();
    }
}

/// Tries each once, in order. Says whether anything moved.
fn place_all(draft: &mut Draft<'_>, mut wants: BTreeSet<Want>) -> bool {
    let mut moved = false;
    for name in wants.iter().map(|want| want.deployment.clone()).collect::<BTreeSet<_>>() {
        let _ = draft.with(&name, |_, work| (work.verdict, work.unplaced) = (None, false));
    }
    // Whoever is evicted and wanted matters strictly less than the one it made room for, so it comes later in the
    // order and this ends.
    while let Some(want) = wants.pop_first() {
        let name = want.deployment.clone();
        let Some(settled) = draft.with(&name, |draft, work| settle(draft, work, &want)) else { continue };
        moved |= settled.moved;
        for name in settled.again {
            let more = draft.works().get(&name).map(|work| wants_of(draft, work)).unwrap_or_default();
            wants.extend(more);
        }
    }
    moved
}

/// What came of a want.
#[derive(Debug, Default)]
struct Settled {
    /// Something is elsewhere than before.
    moved: bool,
    /// The deployments whose wants have changed by it.
    again: Vec<DeploymentName>,
}

/// The replicas that a deployment still has to get.
fn wants_of(draft: &Draft<'_>, work: &Work<'_>) -> Vec<Want> {
    let Some(rollout) = work.rollout.as_ref().filter(|_| work.target > 0) else { return Vec::new() };
    let answers = rollout.live().any(|revision| work.ready(draft.world, revision) > 0);
    let spec = &work.entry.deployment.spec;
    let mut wants = Vec::new();
    for (place, revision) in rollout.live().enumerate() {
        // While nothing answers, a replica on a lost worker does not count: waiting for its return would be an outage.
        let counts = |replica: &&Replica| {
            replica.revision == *revision && (answers || !lost::is_lost(draft.world.workers.get(&replica.worker)))
        };
        let have = u32::try_from(work.replicas.iter().filter(counts).count()).unwrap_or(u32::MAX);
        wants.extend((have..work.target).map(|nth| Want {
            priority: Reverse(spec.priority),
            on_demand: spec.replicas.min == 0,
            surge: place > 0,
            deployment: work.name().clone(),
            revision: revision.clone(),
            nth,
        }));
    }
    wants
}

/// Places one replica, or says why not.
fn settle(draft: &mut Draft<'_>, work: &mut Work<'_>, want: &Want) -> Settled {
    if !wants_of(draft, work).contains(want) {
        return Settled::default();
    }
    let Some(revision) = work.revision(&want.revision) else { return Settled::default() };
    let (need, _) = claim::need(draft.world, work.entry, &revision);
    match choose(draft, work, &revision, need) {
        Ok(choice) => seat(draft, work, want, &choice),
        Err(refusals) => refuse::refuse(draft, work, want, need, &refusals),
    }
}

/// Puts a replica where it was chosen to go, after whoever has to leave.
fn seat(draft: &mut Draft<'_>, work: &mut Work<'_>, want: &Want, choice: &Choice) -> Settled {
    let name = work.name().clone();
    let worker = &choice.worker;
    for victim in &choice.victims {
        evict::evict(draft, victim, worker, Some(&name));
    }
    let replica =
        Replica { revision: want.revision.clone(), worker: worker.clone(), claim: choice.claim, placed: draft.now };
    draft.claim(work.entry, &replica);
    work.replicas.push(replica);
    work.replicas.sort();
    draft.tell(
        Severity::Normal,
        "Placed",
        (&name, Some(worker)),
        format!("{} goes to {worker}, which sets {} aside", want.revision, choice.claim),
    );
    let of = work.replicas.iter().filter(|replica| replica.revision == want.revision).count();
    if of > work.target as usize {
        // It stands in for one on a lost worker.
        let stands_in = work
            .replicas
            .iter()
            .find(|replica| {
                replica.revision == want.revision && lost::is_lost(draft.world.workers.get(&replica.worker))
            })
            .cloned();
        draft.drop_replicas(work, |replica| Some(replica) == stands_in.as_ref());
    }
    Settled { moved: true, again: choice.victims.iter().map(|victim| victim.deployment().clone()).collect() }
}
