//! Places replicas and evicts others for them. `place/README.md` states the problem before the algorithm.

mod choose;
mod evict;
mod filter;
mod fix_overcommit;
mod homes;
mod leaving;
mod refuse;
mod rejection;
mod score;
mod shortfall;
mod wants;

use std::{collections::BTreeSet, fmt::Write as _};

use berth_spec::{DeploymentName, event::Severity};

pub(crate) use choose::{Choice, PlacementRequest, Refusal, choose, view};
pub(crate) use filter::forbidden;
pub(crate) use homes::{HomeRegion, homes};
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
    let mut wants: Wants = draft.works().numbered().flat_map(|(slot, work)| numbered(draft, slot, work)).collect();
    // What had no place is tried again until nothing moves: those who left may have made more room than was asked for.
    // So planning again finds the same, down to the numbers in the reasons.
    while place_all(draft, wants) {
        let unplaced = draft.works().numbered().filter(|(_, work)| work.unplaced);
        wants = unplaced.flat_map(|(slot, work)| numbered(draft, slot, work)).collect();
    }
}

/// Wanted replicas, in order, with their deployments.
type Wants = BTreeSet<(Want, WorkIndex)>;

fn numbered(draft: &Draft<'_>, slot: WorkIndex, work: &Work<'_>) -> impl Iterator<Item = (Want, WorkIndex)> {
    wants_of(draft, work).into_iter().map(move |want| (want, slot))
}

/// Tries each once, in order. Says whether anything moved.
fn place_all(draft: &mut Draft<'_>, mut wants: Wants) -> bool {
    let mut moved = false;
    for (_, slot) in &wants {
        let _ = draft.at(*slot, |_, work| (work.verdict, work.unplaced) = (None, false));
    }
    // Whoever is evicted and wanted matters strictly less than the one it made room for, so it comes later in the
    // order and this ends.
    while let Some((want, slot)) = wants.pop_first() {
        let Some(settled) = draft.at(slot, |draft, work| settle(draft, work, &want)) else { continue };
        moved |= settled.moved;
        for name in settled.again {
            wants.extend(draft.works().found(&name).into_iter().flat_map(|(slot, work)| numbered(draft, slot, work)));
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
    let name = work.name().clone();
    let worker = &choice.worker;
    for victim in &choice.victims {
        evict::evict(draft, victim, worker, Some(&name));
    }
    let replica =
        Replica { revision: want.revision.clone(), worker: worker.clone(), claim: choice.claim, placed: draft.now };
    draft.put(work, replica);
    draft.tell(Severity::Normal, "Placed", &name, Some(worker), placed(want, choice));
    drain::shed(draft, work, &want.revision); // what it takes the place of may go
    lost::wait(draft, work); // what is taken back may answer at once, so that what is lost can be waited for
    Settled { moved: true, again: choice.victims.iter().map(|victim| victim.deployment().clone()).collect() }
}
