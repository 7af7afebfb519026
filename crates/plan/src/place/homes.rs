//! Finds the region that each replica belongs in, for deployments that count them by region.
//!
//! * Each region has its least, as long as it has a worker that may hold one: its replicas there are **home**.
//! * The rest of the target **floats**: in any of the regions that has fewer than its most.
//! * What a region without workers should have, **stands in** elsewhere: anywhere, beyond the most of others.
//!
//! Whatever is there already stays as far as these rules let it. What they do not let stay is beyond: it goes on
//! answering until what belongs elsewhere is ready (see `drain`). So replicas leave a region that is lost, come back when
//! it is back, and at no time fewer answer.

use std::collections::BTreeMap;

use berth_spec::{ByteSize, Replicas, Revision, RevisionId, WorkerId};

use super::{Rejection, filter};
use crate::{
    Replica, claim,
    draft::{Draft, Work},
    world::TrackedWorker,
};

/// A place that a replica may have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HomeRegion {
    /// In this region, which lacks one of its least.
    In(String),
    /// In any of the deployment's regions that has fewer than its most.
    Floating,
    /// Anywhere: it stands in for one of a region that has no worker for it, or regions are not counted.
    Anywhere,
}

/// Replicas of a revision compared with the region counts of their deployment.
#[derive(Debug, Default)]
pub(crate) struct RegionLayout {
    /// The workers of those that count.
    pub(crate) kept: Vec<WorkerId>,
    /// Missing replicas, each with a number of its own.
    pub(super) lacking: Vec<(HomeRegion, u32)>,
}

/// Replicas of one revision that count, the best first, and what is lacking of `target`. As many are kept as are
/// wanted, and no more.
pub(crate) fn homes(
    draft: &Draft<'_>,
    work: &Work<'_>,
    revision: &RevisionId,
    target: u32,
    best_first: &[&Replica],
) -> RegionLayout {
    if work.entry.deployment.spec.regions.is_empty() {
        let kept: Vec<WorkerId> =
            best_first.iter().take(target as usize).map(|replica| replica.worker.clone()).collect();
        let have = u32::try_from(kept.len()).unwrap_or(u32::MAX);
        return RegionLayout { lacking: (have..target).map(|nth| (HomeRegion::Anywhere, nth)).collect(), kept };
    }
    let mut slots = RegionSlots::new(draft, work, revision, target);
    let mut kept = Vec::new();
    let mut rest = Vec::new();
    for replica in best_first {
        match region_of(draft, &replica.worker) {
            Region::Known(region) if slots.at_home(region) => kept.push(replica.worker.clone()),
            Region::Known(region) => rest.push((*replica, Some(region))),
            Region::None => rest.push((*replica, None)),
            // Its worker has not come back since the controller started: it is taken to be where one is lacking.
            Region::Unknown if slots.at_any_home() => kept.push(replica.worker.clone()),
            Region::Unknown => rest.push((*replica, None)),
        }
    }
    for (replica, region) in rest {
        if slots.takes_floating(region) || slots.stands_in() {
            kept.push(replica.worker.clone());
        }
    }
    RegionLayout { kept, lacking: slots.lacking() }
}

/// Places that are still to be filled.
struct RegionSlots<'w> {
    /// Replicas that each region lacks of its least.
    homes: BTreeMap<&'w str, u32>,
    /// Replicas that each region may have beside those.
    more: BTreeMap<&'w str, u32>,
    /// Replicas beyond the least of regions, and how many of them stand in for those of a region without workers.
    floating: u32,
    standing_in: u32,
}

impl<'w> RegionSlots<'w> {
    fn new(draft: &Draft<'_>, work: &Work<'w>, revision: &RevisionId, target: u32) -> Self {
        let regions = &work.entry.deployment.spec.regions;
        let revision = work.look_up(revision);
        let (mut homes, mut more, mut standing_in) = (BTreeMap::new(), BTreeMap::new(), 0_u32);
        let mut left = target;
        for (region, Replicas { min, max }) in regions {
            let least = if has_worker(draft, work, revision.as_deref(), region) {
                *min
            } else {
                standing_in = standing_in.saturating_add(*min);
                0
            };
            let least = least.min(left);
            left -= least;
            homes.insert(region.as_str(), least);
            more.insert(region.as_str(), max.saturating_sub(least));
        }
        Self { homes, more, floating: left, standing_in: standing_in.min(left) }
    }

    fn at_home(&mut self, region: &str) -> bool {
        take(self.homes.get_mut(region))
    }

    fn at_any_home(&mut self) -> bool {
        take(self.homes.values_mut().find(|lacks| **lacks > 0))
    }

    fn takes_floating(&mut self, region: Option<&str>) -> bool {
        let may = self.floating > 0 && take(region.and_then(|region| self.more.get_mut(region)));
        if may {
            self.floating -= 1;
            self.standing_in = self.standing_in.min(self.floating);
        }
        may
    }

    fn stands_in(&mut self) -> bool {
        take(Some(&mut self.standing_in)) && take(Some(&mut self.floating))
    }

    fn lacking(self) -> Vec<(HomeRegion, u32)> {
        let homes = self
            .homes
            .into_iter()
            .flat_map(|(region, lacks)| numbered(lacks).map(move |nth| (HomeRegion::In(region.to_owned()), nth)));
        let standing_in = numbered(self.standing_in).map(|nth| (HomeRegion::Anywhere, nth));
        let floating = numbered(self.floating - self.standing_in).map(|nth| (HomeRegion::Floating, nth));
        homes.chain(standing_in).chain(floating).collect()
    }
}

/// Numbers for what is lacking, so that those that are left keep theirs when the first one has a place.
fn numbered(lacks: u32) -> impl Iterator<Item = u32> {
    u32::MAX - lacks..u32::MAX
}

/// Takes one from a counter that is there and above 0.
fn take(from: Option<&mut u32>) -> bool {
    match from {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    }
}

/// The region of a worker, as far as it is known.
enum Region<'w> {
    Known(&'w str),
    None,
    Unknown,
}

fn region_of<'w>(draft: &Draft<'w>, worker: &WorkerId) -> Region<'w> {
    match draft.world.workers.get(worker).and_then(|tracked| tracked.info.as_ref()) {
        Some(info) => info.region().map_or(Region::None, Region::Known),
        None => Region::Unknown,
    }
}

/// Returns true if a region has a worker that could hold a replica of a revision if nothing else were there.
fn has_worker(draft: &Draft<'_>, work: &Work<'_>, revision: Option<&Revision>, region: &str) -> bool {
    let deployment = &work.entry.deployment;
    let spec = &deployment.spec;
    let memory = revision.and_then(|revision| revision.memory).unwrap_or(ByteSize::ZERO);
    let forbidden = |tracked: &TrackedWorker| {
        revision.and_then(|revision| filter::forbidden(draft.world, tracked, deployment, revision)).is_some()
    };
    let could = |tracked: &&TrackedWorker| {
        tracked.info.as_ref().is_some_and(|info| {
            info.memory >= memory
                && claim::Cores::in_all(info) >= claim::cores(spec)
                && spec.gpu.as_ref().is_none_or(|need| claim::gpus::suiting(&info.gpus, need) >= need.count)
        }) && !forbidden(tracked)
    };
    draft.open_in(region).iter().any(could)
}

/// The reason why a replica of a revision may not be on a worker because of where that is.
pub(super) fn elsewhere(
    draft: &Draft<'_>,
    work: &Work<'_>,
    revision: &RevisionId,
    home: &HomeRegion,
    tracked: &TrackedWorker,
) -> Option<Rejection> {
    let has = tracked.info.as_ref().and_then(|info| info.region());
    let not_in = |wanted: String| Some(Rejection::Region { wanted, has: has.map(str::to_owned) });
    match home {
        HomeRegion::Anywhere => None,
        HomeRegion::In(region) if has == Some(region) => None,
        HomeRegion::In(region) => not_in(region.clone()),
        HomeRegion::Floating => {
            let regions = &work.entry.deployment.spec.regions;
            let Some((region, replicas)) = has.and_then(|region| regions.get_key_value(region)) else {
                return not_in(regions.keys().map(String::as_str).collect::<Vec<_>>().join(" or "));
            };
            let there = work.replicas.iter().filter(|replica| {
                replica.revision == *revision
                    && matches!(region_of(draft, &replica.worker), Region::Known(other) if other == region)
            });
            (there.count() >= replicas.max as usize)
                .then(|| Rejection::RegionFull { region: region.clone(), max: replicas.max })
        }
    }
}
