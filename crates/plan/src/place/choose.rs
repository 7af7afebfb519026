//! The best worker for one replica.

use std::{cmp::Reverse, collections::BTreeMap};

use berth_spec::{ByteSize, ModelFormat, Replicas, Revision, RevisionId, WorkerId, WorkerInfo, deployment::Spread};

use super::{
    Colocation, Evicts, HomeRegion, Mismatch, Rejection, Score, evict, filter,
    shortfall::{Freed, Shortfall},
};
use crate::{
    claim,
    draft::{Draft, LoadLevel, Queue, Work, WorkerBucket, WorkerDraft},
    lost,
    scale::EvictionScope,
    world::Standing,
};

/// Replica for which a worker is sought.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacementRequest<'a> {
    pub(crate) revision: &'a Revision,
    /// The places that it may be in.
    pub(crate) home: &'a HomeRegion,
    /// The memory that it takes where nothing else is known.
    pub(crate) memory: ByteSize,
    /// Replicas that may be evicted for it.
    pub(crate) eviction_scope: EvictionScope,
}

/// The place for a replica, and who leaves for it.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) worker: WorkerId,
    /// Memory set aside for it there.
    pub(crate) claim: ByteSize,
    pub(crate) score: Score,
    pub(crate) victims: Vec<RevisionId>,
    /// The second best, of those that were looked at, and why it is.
    pub(crate) over: Option<(WorkerId, String)>,
}

/// One worker that cannot take it.
pub(crate) type Refusal = (WorkerId, Rejection);

/// The best worker; if there is none, why each of them is not.
pub(crate) fn choose(
    draft: &mut Draft<'_>,
    work: &Work<'_>,
    request: &PlacementRequest<'_>,
) -> Result<Choice, Vec<Refusal>> {
    draft.sort_into_buckets();
    let draft = &*draft;
    let preferences = ModelPreferences::of(draft, work, request.revision);
    if let Some(choice) = best(with_room(draft, work, request, &preferences).into_iter()) {
        return Ok(choice);
    }
    let mut refusals = Vec::new();
    let mut choices = Vec::new();
    for worker in draft.world.workers.keys() {
        match consider(draft, work, request, &preferences, worker) {
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

/// Workers looked at in the best bucket: the best, and one to compare it with.
const LOOKED_AT: usize = 2;

/// The workers that need not evict, as far as one of them may be the best. In a bucket the order by free memory is the
/// order of [`Score`], and a bucket that is worse than another is so with all that is in it: no need to look at 1,000.
fn with_room<'w>(
    draft: &Draft<'w>,
    work: &Work<'_>,
    request: &PlacementRequest<'_>,
    preferences: &ModelPreferences<'_>,
) -> Vec<Choice> {
    let fits = |candidate: WorkerDraft<'w>| {
        let claim = need_at(request, &candidate);
        let free = filter::reject(draft, work, request, &candidate).is_none()
            && Shortfall::of(draft, work.entry, &request.revision.id, &candidate, claim).is_none();
        free.then(|| Choice {
            worker: candidate.id.clone(),
            claim,
            score: preferences.score(draft, &candidate, Evicts::default()),
            victims: Vec::new(),
            over: None,
        })
    };
    let there = |bucket: &WorkerBucket<'_>| match request.home {
        HomeRegion::In(region) => bucket.region == Some(region),
        HomeRegion::Floating | HomeRegion::Anywhere => true,
    };
    let buckets = draft.buckets().into_iter().flat_map(|buckets| buckets.roomy(request.memory));
    let buckets = buckets
        .filter(|(bucket, _)| there(bucket))
        .map(|(bucket, workers)| (preferences.bucket_score(bucket), workers));
    let mut buckets: Vec<_> = buckets.collect();
    buckets.sort_by_key(|(preferences, _)| *preferences);
    let mut choices: Vec<Choice> = Vec::with_capacity(LOOKED_AT);
    let mut best = None;
    for (bucket_score, workers) in buckets {
        if choices.len() >= LOOKED_AT && best < Some(bucket_score) && !preferences.has_preferred() {
            break;
        }
        let looked_at = if preferences.has_preferred() { usize::MAX } else { LOOKED_AT };
        choices.extend(workers.filter_map(|worker| fits(draft.worker_at(worker))).take(looked_at));
        if best.is_none() && !choices.is_empty() {
            best = Some(bucket_score);
        }
    }
    choices.extend(preferences.strays.iter().filter_map(|worker| fits(draft.worker(worker)?)));
    choices
}

fn need_at(request: &PlacementRequest<'_>, candidate: &WorkerDraft<'_>) -> ByteSize {
    claim::need_at(candidate.tracked, request.revision, request.memory)
}

/// Evaluates one worker for a request.
pub(crate) fn view(
    draft: &Draft<'_>,
    work: &Work<'_>,
    request: &PlacementRequest<'_>,
    worker: &WorkerId,
) -> Result<Choice, Rejection> {
    consider(draft, work, request, &ModelPreferences::of(draft, work, request.revision), worker)
}

fn consider(
    draft: &Draft<'_>,
    work: &Work<'_>,
    request: &PlacementRequest<'_>,
    preferences: &ModelPreferences<'_>,
    worker: &WorkerId,
) -> Result<Choice, Rejection> {
    let Some(candidate) = draft.worker(worker) else { return Err(Rejection::Lost) };
    if let Some(rejection) = filter::reject(draft, work, request, &candidate) {
        return Err(rejection);
    }
    let claim = need_at(request, &candidate);
    let shortfall = Shortfall::of(draft, work.entry, &request.revision.id, &candidate, claim);
    let victims = if shortfall.is_none() {
        Vec::new()
    } else {
        evict::victims(draft, work.entry, request.eviction_scope, &shortfall, Freed::default())?
    };
    let evicts = evict::cost(draft, worker, &victims);
    Ok(Choice {
        worker: worker.clone(),
        claim,
        score: preferences.score(draft, &candidate, evicts),
        victims,
        over: None,
    })
}

/// Preferences of a replica, beside its hard constraints.
struct ModelPreferences<'a> {
    /// The workers on which it is ready, left from before.
    strays: Vec<&'a WorkerId>,
    format: &'a ModelFormat,
    preferred: Vec<(&'a String, &'a String)>,
    /// Its other replicas by region, and by region and zone.
    by_region: BTreeMap<Option<&'a str>, u32>,
    by_zone: BTreeMap<(Option<&'a str>, Option<&'a str>), u32>,
    /// The region that most requests come from.
    near: Option<&'a str>,
    load_level: LoadLevel,
    needs_gpu: bool,
}

impl<'a> ModelPreferences<'a> {
    fn of(draft: &'a Draft<'_>, work: &'a Work<'_>, revision: &'a Revision) -> Self {
        let spec = &work.entry.deployment.spec;
        let of_type = filter::by_type(&draft.world.policy, spec).map(|selector| &selector.preferred);
        let preferred = spec.selector.preferred.iter().chain(of_type.into_iter().flatten());
        let mut preferences = Self {
            strays: draft.world.strays_of(&revision.id).collect(),
            format: &revision.format,
            preferred: preferred.collect(),
            by_region: BTreeMap::new(),
            by_zone: BTreeMap::new(),
            near: near(draft, work),
            load_level: load_level(draft, work),
            needs_gpu: spec.gpu.is_some(),
        };
        if spec.spread == Spread::Worker {
            return preferences;
        }
        let staying = |replica: &&crate::Replica| {
            replica.revision == revision.id && lost::standing(draft, work, replica) == Standing::Stays
        };
        for replica in work.replicas.iter().filter(staying) {
            let Some(info) = draft.world.workers.get(&replica.worker).and_then(|tracked| tracked.info.as_ref()) else {
                continue;
            };
            *preferences.by_region.entry(info.region()).or_default() += 1;
            *preferences.by_zone.entry((info.region(), info.zone())).or_default() += 1;
        }
        preferences
    }

    fn has_preferred(&self) -> bool {
        !self.preferred.is_empty()
    }

    /// The number of preferred labels that a worker lacks, and its runtime for the model.
    fn unpreferred(&self, info: Option<&WorkerInfo>) -> usize {
        if self.preferred.is_empty() {
            return 0;
        }
        let offer = info.and_then(|info| Some((info, info.runtime_for(self.format)?)));
        let lacks = |(key, value): &&(&String, &String)| {
            offer.and_then(|(info, runtime)| info.label(runtime, key)) != Some(*value)
        };
        self.preferred.iter().filter(lacks).count()
    }

    fn bucket_score(&self, bucket: &WorkerBucket<'_>) -> BucketScore {
        BucketScore {
            replaced: bucket.replaced,
            short: bucket.short,
            colocation: Colocation {
                region: self.by_region.get(&bucket.region).copied().unwrap_or(0),
                zone: self.by_zone.get(&(bucket.region, bucket.zone)).copied().unwrap_or(0),
            },
            far: self.near.is_some() && self.near != bucket.region,
            queue: bucket.queue,
            mismatch: Mismatch::of(self.load_level, bucket.load_level),
            spares_no_gpu: bucket.gpus && !self.needs_gpu,
        }
    }

    fn score<'w>(&self, draft: &Draft<'w>, candidate: &WorkerDraft<'w>, evicts: Evicts) -> Score {
        let BucketScore { replaced, short, colocation, far, queue, mismatch, spares_no_gpu } =
            self.bucket_score(&draft.bucket(candidate));
        Score {
            evicts,
            cold: !self.strays.contains(&candidate.id),
            replaced,
            short,
            unpreferred: self.unpreferred(candidate.tracked.info.as_ref()),
            colocation,
            far,
            queue,
            mismatch,
            spares_no_gpu,
            free: Reverse(candidate.free()),
            worker: candidate.id.clone(),
        }
    }
}

/// The fields of [`Score`] that are the same for all workers in a bucket, in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BucketScore {
    replaced: bool,
    short: bool,
    colocation: Colocation,
    far: bool,
    queue: Queue,
    mismatch: Mismatch,
    spares_no_gpu: bool,
}

/// The region whose gateways have the most requests for it, waiting or in flight.
fn near<'a>(draft: &'a Draft<'_>, work: &Work<'_>) -> Option<&'a str> {
    let used = draft.world.used_of(work.entry, draft.now).into_iter();
    let used = used.map(|(region, used)| (used.waiting.saturating_add(used.in_flight), Reverse(region)));
    let (requests, Reverse(region)) = used.max()?;
    (requests > 0 && !region.is_empty()).then_some(region)
}

/// Load of each copy, now or expected. A deployment that requests wait for has no rate yet: it takes part in neither
/// preference.
fn load_level(draft: &Draft<'_>, work: &Work<'_>) -> LoadLevel {
    if work.entry.waiting() > 0 {
        return LoadLevel::Steady;
    }
    let Replicas { min, .. } = work.entry.deployment.spec.replicas;
    let copies = work.target.max(min).max(1);
    let per_minute: f32 = draft.world.used_of(work.entry, draft.now).values().map(|used| used.per_minute).sum();
    LoadLevel::of_rate(per_minute / copies as f32)
}
