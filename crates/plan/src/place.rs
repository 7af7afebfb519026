//! Places replicas and evicts others for them. `place/README.md` states the problem before the algorithm.

mod choose;
mod evict;
mod filter;
mod fix_overcommit;
mod homes;
mod leaving;
mod queue;
mod refuse;
mod rejection;
mod score;
mod shortfall;
mod wants;

use std::fmt::Write as _;

use berth_spec::{DeploymentName, event::Severity};

pub(crate) use choose::{Choice, PlacementRequest, Refusal, choose, view};
pub(crate) use filter::forbidden;
pub(crate) use homes::{HomeRegion, homes};
use queue::WantQueue;
pub(crate) use refuse::never;
pub use rejection::Rejection;
pub use score::{Colocation, Evicts, Mismatch, Score};
pub(crate) use wants::next_home;
use wants::{Want, wants_of};

use crate::{
    Replica, claim,
    draft::{Draft, Work, WorkIndex},
    drain, lost, scale,
};

/// Finds a place for everything that is wanted and has none.
pub(crate) fn step(draft: &mut Draft<'_>) {
    fix_overcommit::step(draft);
    let mut lacking: Vec<WorkIndex> = draft.works().by_name().collect();
    // What had no place is tried again until nothing moves: those who left may have made more room than was asked for.
    // So planning again finds the same, down to the numbers in the reasons.
    while place_all(draft, &lacking) {
        let unplaced = draft.works().numbered().filter(|(_, work)| work.unplaced);
        lacking = unplaced.map(|(slot, _)| slot).collect();
    }
}

/// Tries each replica that these deployments lack once, in order. Says whether anything moved.
fn place_all(draft: &mut Draft<'_>, lacking: &[WorkIndex]) -> bool {
    let mut wants = Vec::with_capacity(lacking.len());
    for slot in lacking {
        let _ = draft.at(*slot, |draft, work| {
            let lacks = wants_of(draft, work);
            if !lacks.is_empty() {
                (work.verdict, work.unplaced) = (None, false);
            }
            wants.extend(lacks.into_iter().map(|want| (want, *slot)));
        });
    }
    let mut queue = WantQueue::of(wants);
    draft.events.reserve(queue.len()); // each tells where it goes
    let mut moved = false;
    // Whoever is evicted and wanted matters strictly less than the one it made room for, so it comes later in the
    // order and this ends.
    while let Some((want, slot)) = queue.pop() {
        let Some(settled) = draft.at(slot, |draft, work| settle(draft, work, &want)) else { continue };
        moved |= settled.moved;
        for name in settled.again {
            let Some((slot, work)) = draft.works().found(&name) else { continue };
            queue.extend(wants_of(draft, work).into_iter().map(|want| (want, slot)));
        }
    }
    moved
}

/// Outcome of placing one replica that is wanted.
#[derive(Debug, Default)]
struct Settled {
    /// Something is elsewhere than before.
    moved: bool,
    /// The deployments whose wants have changed by it.
    again: Vec<DeploymentName>,
}

/// Places one replica, or says why not.
fn settle<'w>(draft: &mut Draft<'w>, work: &mut Work<'w>, want: &Want) -> Settled {
    let wants = wants_of(draft, work);
    if !wants.contains(want) {
        // What was placed since has changed what is lacking.
        return Settled { moved: false, again: wants.first().map(|_| work.name().clone()).into_iter().collect() };
    }
    let Some(revision) = work.revision(&want.revision) else { return Settled::default() };
    let (memory, _) = claim::need(draft.world, work.entry, &revision);
    let eviction_scope = scale::eviction_scope(draft, work, want.extra);
    let request = PlacementRequest { revision: &revision, home: &want.home, memory, eviction_scope };
    match choose(draft, work, &request) {
        Ok(choice) => put(draft, work, want, &choice),
        Err(refusals) => refuse::refuse(draft, work, want, memory, &refusals),
    }
}

/// Says where a replica goes, and what that is better than. There is one such text per replica.
fn placed(want: &Want, choice: &Choice) -> String {
    let mut text = String::with_capacity(160);
    // A string takes all that is written.
    let _ = write!(text, "{} goes to {}, which sets {} aside", want.revision, choice.worker, choice.claim);
    if let Some((other, why)) = &choice.over {
        let _ = write!(text, ", rather than to {other}: {why}");
    }
    text
}

/// Places a replica on the chosen worker, after the evictions that make room for it.
fn put<'w>(draft: &mut Draft<'w>, work: &mut Work<'w>, want: &Want, choice: &Choice) -> Settled {
    let (name, worker) = (work.name(), &choice.worker);
    for victim in &choice.victims {
        evict::evict(draft, victim, worker, Some(name));
    }
    let replica =
        Replica { revision: want.revision.clone(), worker: worker.clone(), claim: choice.claim, placed: draft.now };
    draft.put(work, replica);
    draft.tell(Severity::Normal, "Placed", name, Some(worker), placed(want, choice));
    drain::shed(draft, work, &want.revision); // what it takes the place of may go
    lost::wait(draft, work); // what is taken back may answer at once, so that what is lost can be waited for
    Settled { moved: true, again: choice.victims.iter().map(|victim| victim.deployment().clone()).collect() }
}
