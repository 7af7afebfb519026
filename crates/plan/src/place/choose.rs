//! The best worker for one replica.

use std::{cmp::Reverse, collections::BTreeMap};

use berth_spec::{ByteSize, Replicas, Revision, RevisionId, WorkerId, deployment::Spread};

use super::{
    Evicts, Home, Mismatch, Pace, Queue, Rejection, Score, Shelf, Together, evict, filter,
    lack::{Freed, Lack},
};
use crate::{
    claim,
    draft::{Draft, Site, Work},
    lost,
    scale::Reach,
    world::Standing,
};

/// What is asked of a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) revision: &'a Revision,
    /// Where it may be.
    pub(crate) home: &'a Home,
    /// The memory that it takes where nothing else is known.
    pub(crate) memory: ByteSize,
    /// Who may leave for it.
    pub(crate) reach: Reach,
}

/// Where a replica goes, and who leaves for it.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) worker: WorkerId,
    /// What is set aside for it there.
    pub(crate) claim: ByteSize,
    pub(crate) score: Score,
    pub(crate) victims: Vec<RevisionId>,
    /// The second best, of those that were looked at, and why it is.
    pub(crate) over: Option<(WorkerId, String)>,
}

/// One worker that cannot take it.
pub(crate) type Refusal = (WorkerId, Rejection);

/// The best worker; if there is none, why each of them is not.
pub(crate) fn choose(draft: &mut Draft<'_>, work: &Work<'_>, asked: &Asked<'_>) -> Result<Choice, Vec<Refusal>> {
    draft.shelve();
    let draft = &*draft;
    let taste = Taste::of(draft, work, &asked.revision.id);
    if let Some(choice) = best(with_room(draft, work, asked, &taste).into_iter()) {
        return Ok(choice);
    }
    let mut refusals = Vec::new();
    let mut choices = Vec::new();
    for worker in draft.world.workers.keys() {
        match consider(draft, work, asked, &taste, worker) {
            Ok(choice) => choices.push(choice),
            Err(rejection) => refusals.push((worker.clone(), rejection)),
        }
    }
    best(choices.into_iter()).ok_or(refusals)
}

/// The best of several, with what speaks for it against the second best.
fn best(choices: impl Iterator<Item = Choice>) -> Option<Choice> {
    let (mut first, mut second): (Option<Choice>, Option<Choice>) = (None, None);
    for choice in choices {
        if first.as_ref().is_some_and(|first| first.worker == choice.worker) {
            continue;
        }
        if first.as_ref().is_none_or(|first| choice.score < first.score) {
            second = first.replace(choice);
        } else if second.as_ref().is_none_or(|second| choice.score < second.score) {
            second = Some(choice);
        }
    }
    let mut first = first?;
    first.over = second.map(|second| (second.worker, first.score.beats(&second.score)));
    Some(first)
}

/// How many workers are looked at where the first is the best: it, and one to say what it is better than.
const LOOKED_AT: usize = 2;

/// The workers that need not evict, as far as one of them may be the best. On a shelf the order by free memory is the
/// order of [`Score`], and a shelf that is worse than another is so with all that is on it: no need to look at 1,000.
fn with_room(draft: &Draft<'_>, work: &Work<'_>, asked: &Asked<'_>, taste: &Taste<'_>) -> Vec<Choice> {
    let fits = |worker: &WorkerId| {
        let site = draft.site(worker)?;
        let claim = need_at(asked, &site);
        let free = filter::reject(draft, work, (&asked.revision.id, asked.home), &site).is_none()
            && Lack::of(draft, work.entry, &site, claim).is_none();
        free.then(|| Choice {
            worker: worker.clone(),
            claim,
            score: taste.score(draft, &site, Evicts::default()),
            victims: Vec::new(),
            over: None,
        })
    };
    let there = |shelf: &Shelf<'_>| match asked.home {
        Home::In(region) => shelf.region == Some(region),
        Home::Roams | Home::Anywhere => true,
    };
    let shelves = draft.shelves().into_iter().flat_map(|shelves| shelves.roomy(asked.memory));
    let shelves = shelves.filter(|(shelf, _)| there(shelf)).map(|(shelf, workers)| (taste.of_shelf(shelf), workers));
    let mut shelves: Vec<_> = shelves.collect();
    shelves.sort_by_key(|(taste, _)| *taste);
    let mut choices: Vec<Choice> = Vec::new();
    let mut best = None;
    for (of_shelf, workers) in shelves {
        if choices.len() >= LOOKED_AT && best < Some(of_shelf) && !taste.has_preferred() {
            break;
        }
        let looked_at = if taste.has_preferred() { usize::MAX } else { LOOKED_AT };
        choices.extend(workers.filter_map(fits).take(looked_at));
        if best.is_none() && !choices.is_empty() {
            best = Some(of_shelf);
        }
    }
    let strays = draft.world.strays.range((asked.revision.id.clone(), first_worker())..);
    let strays = strays.take_while(|(id, _)| *id == asked.revision.id).filter_map(|(_, worker)| fits(worker));
    choices.extend(strays);
    choices
}

fn need_at(asked: &Asked<'_>, site: &Site<'_>) -> ByteSize {
    claim::need_at(site.seats, asked.revision, asked.memory)
}

/// What one worker could do for it.
pub(crate) fn view(
    draft: &Draft<'_>,
    work: &Work<'_>,
    asked: &Asked<'_>,
    worker: &WorkerId,
) -> Result<Choice, Rejection> {
    consider(draft, work, asked, &Taste::of(draft, work, &asked.revision.id), worker)
}

fn consider(
    draft: &Draft<'_>,
    work: &Work<'_>,
    asked: &Asked<'_>,
    taste: &Taste<'_>,
    worker: &WorkerId,
) -> Result<Choice, Rejection> {
    let Some(site) = draft.site(worker) else { return Err(Rejection::Lost) };
    if let Some(rejection) = filter::reject(draft, work, (&asked.revision.id, asked.home), &site) {
        return Err(rejection);
    }
    let claim = need_at(asked, &site);
    let lack = Lack::of(draft, work.entry, &site, claim);
    let victims = if lack.is_none() {
        Vec::new()
    } else {
        evict::victims(draft, work.entry, asked.reach, &lack, Freed::default())?
    };
    let evicts = evict::cost(draft, worker, &victims);
    Ok(Choice { worker: worker.clone(), claim, score: taste.score(draft, &site, evicts), victims, over: None })
}

/// What a replica likes, beside what it must have.
struct Taste<'a> {
    revision: &'a RevisionId,
    preferred: Vec<(&'a String, &'a String)>,
    /// Its other replicas by region, and by region and zone.
    by_region: BTreeMap<Option<&'a str>, u32>,
    by_zone: BTreeMap<(Option<&'a str>, Option<&'a str>), u32>,
    /// The region that most requests come from.
    near: Option<&'a str>,
    pace: Pace,
    needs_gpu: bool,
}

impl<'a> Taste<'a> {
    fn of(draft: &'a Draft<'_>, work: &'a Work<'_>, revision: &'a RevisionId) -> Self {
        let spec = &work.entry.deployment.spec;
        let of_type = filter::by_type(&draft.world.policy, spec).map(|selector| &selector.preferred);
        let preferred = spec.selector.preferred.iter().chain(of_type.into_iter().flatten());
        let mut taste = Self {
            revision,
            preferred: preferred.collect(),
            by_region: BTreeMap::new(),
            by_zone: BTreeMap::new(),
            near: near(draft, work),
            pace: pace(draft, work),
            needs_gpu: spec.gpu.is_some(),
        };
        if spec.spread == Spread::Worker {
            return taste;
        }
        let staying = |replica: &&crate::Replica| {
            replica.revision == *revision && lost::standing(draft, work, replica) == Standing::Stays
        };
        for replica in work.replicas.iter().filter(staying) {
            let Some(info) = draft.world.workers.get(&replica.worker).and_then(|seats| seats.info.as_ref()) else {
                continue;
            };
            *taste.by_region.entry(info.region()).or_default() += 1;
            *taste.by_zone.entry((info.region(), info.zone())).or_default() += 1;
        }
        taste
    }

    fn has_preferred(&self) -> bool {
        !self.preferred.is_empty()
    }

    /// What a shelf is to it.
    fn of_shelf(&self, shelf: &Shelf<'_>) -> OfShelf {
        OfShelf {
            replaced: shelf.replaced,
            short: shelf.short,
            together: Together {
                region: self.by_region.get(&shelf.region).copied().unwrap_or(0),
                zone: self.by_zone.get(&(shelf.region, shelf.zone)).copied().unwrap_or(0),
            },
            far: self.near.is_some() && self.near != shelf.region,
            queue: shelf.queue,
            mismatch: Mismatch::of(self.pace, shelf.pace),
            spares_no_gpu: shelf.gpus && !self.needs_gpu,
        }
    }

    fn score<'w>(&self, draft: &Draft<'w>, site: &Site<'w>, evicts: Evicts) -> Score {
        let OfShelf { replaced, short, together, far, queue, mismatch, spares_no_gpu } =
            self.of_shelf(&draft.shelf(site));
        let labels = site.seats.info.as_ref().map(|info| &info.labels);
        let lacks = |(key, value): &&(&String, &String)| labels.and_then(|labels| labels.get(*key)) != Some(*value);
        Score {
            evicts,
            cold: !draft.world.strays.contains(&(self.revision.clone(), site.id.clone())),
            replaced,
            short,
            unpreferred: self.preferred.iter().filter(lacks).count(),
            together,
            far,
            queue,
            mismatch,
            spares_no_gpu,
            free: Reverse(site.free()),
            worker: site.id.clone(),
        }
    }
}

/// What a shelf is to a replica: the fields of [`Score`] that are the same for all workers on it, in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct OfShelf {
    replaced: bool,
    short: bool,
    together: Together,
    far: bool,
    queue: Queue,
    mismatch: Mismatch,
    spares_no_gpu: bool,
}

/// The region whose gateways have the most requests for it, waiting or in flight.
fn near<'a>(draft: &'a Draft<'_>, work: &Work<'_>) -> Option<&'a str> {
    let used = draft.world.used_where(work.name(), draft.now).into_iter();
    let used = used.map(|(region, used)| (used.waiting.saturating_add(used.in_flight), Reverse(region)));
    let (requests, Reverse(region)) = used.max()?;
    (requests > 0 && !region.is_empty()).then_some(region)
}

/// How busy each copy is, or will be. What is waited for has no rate yet: it takes part in neither preference.
fn pace(draft: &Draft<'_>, work: &Work<'_>) -> Pace {
    if work.entry.waiting() > 0 {
        return Pace::Steady;
    }
    let Replicas { min, .. } = work.entry.deployment.spec.replicas;
    let copies = work.target.max(min).max(1);
    Pace::of_rate(draft.world.used(work.name(), draft.now).per_minute / copies as f32)
}

/// The smallest name that a worker could have.
fn first_worker() -> WorkerId {
    WorkerId::new("0").expect("a digit is a name")
}
