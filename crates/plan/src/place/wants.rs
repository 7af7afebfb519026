//! The replicas that a deployment still has to get.

use std::cmp::Reverse;

use berth_spec::{RevisionId, Time};

use super::homes::{self, HomeRegion};
use crate::{
    Replica,
    draft::{Draft, Work},
    drain, lost,
    scale::Extra,
};

/// One replica that is wanted and has no place. In the order in which they get theirs: what must be before what may
/// be, what matters most first, then residents, then what serves before what comes next, then what was used last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Want {
    pub(super) extra: Extra,
    priority: Reverse<u8>,
    on_demand: bool,
    surge: bool,
    last_used: Reverse<Time>,
    pub(super) revision: RevisionId,
    pub(super) home: HomeRegion,
    nth: u32,
}

/// The replicas that a deployment still has to get.
pub(super) fn wants_of(draft: &Draft<'_>, work: &Work<'_>) -> Vec<Want> {
    let Some(rollout) = work.rollout.as_ref().filter(|_| work.target > 0) else { return Vec::new() };
    let spec = &work.entry.deployment.spec;
    let mut wants = Vec::new();
    for (place, revision) in rollout.live().enumerate() {
        let counting: Vec<&Replica> = work
            .replicas
            .iter()
            .filter(|replica| replica.revision == *revision && lost::counts(draft, work, replica))
            .collect();
        let (target, have) = (work.target_of(revision), counting.len());
        let mut homes = homes::homes(draft, work, revision, target, &drain::best_first(draft, counting));
        if rollout.replaces(revision) {
            // Nor does it move: where copies belong now, the next revision goes.
            homes.lacking.truncate((target as usize).saturating_sub(have));
        }
        let must = (work.least() as usize).saturating_sub(homes.kept.len());
        wants.extend(homes.lacking.into_iter().enumerate().map(|(at, (home, nth))| Want {
            priority: Reverse(spec.priority),
            on_demand: spec.replicas.min == 0,
            surge: place > 0,
            last_used: Reverse(work.entry.last_used),
            extra: if at < must { Extra::No } else { Extra::Yes },
            revision: revision.clone(),
            home,
            nth,
        }));
    }
    wants
}

/// The region of the next replica of a deployment, were there one more.
pub(crate) fn next_home(draft: &Draft<'_>, work: &Work<'_>) -> HomeRegion {
    match wants_of(draft, work).into_iter().next() {
        Some(want) => want.home,
        None if work.entry.deployment.spec.regions.is_empty() => HomeRegion::Anywhere,
        None => HomeRegion::Floating,
    }
}
