//! The reason why a deployment is where it is, or why it is nowhere: every worker, with numbers.

use berth_spec::{
    ByteSize, DeploymentName, RevisionId, Time, WorkerId,
    deployment::GpuNeed,
    status::{Status, Truth},
};

use super::why;
use crate::{
    Basis, Cores, Evicted, Rejection, Score, World, claim,
    draft::{Draft, Work},
    open,
    place::{self, PlacementRequest},
    scale::EvictionScope,
    world::TrackedWorker,
};

/// The reason why a deployment is where it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The deployment that is explained.
    pub deployment: DeploymentName,
    /// The revision that a new replica would have.
    pub revision: RevisionId,
    /// Replicas that are wanted now.
    pub desired: u32,
    /// The memory that one replica takes.
    pub need: ByteSize,
    /// The origin of `need`.
    pub basis: Basis,
    /// The cores that one replica takes.
    pub cores: Cores,
    /// The GPUs that one replica takes.
    pub gpu: Option<GpuNeed>,
    /// The answer in a sentence.
    pub summary: String,
    /// The last evictions that it was part of, the oldest first: what left for it, and what it left for.
    pub evictions: Vec<Evicted>,
    /// Every worker, by name.
    pub workers: Vec<WorkerView>,
}

/// One worker from a deployment's point of view.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// The worker's name.
    pub worker: WorkerId,
    /// Memory that models may take there.
    pub memory: ByteSize,
    /// Claimed share of its memory.
    pub used: ByteSize,
    /// Share that its process takes beside its models, as far as that keeps a replica out.
    pub overhead: ByteSize,
    /// The worker's verdict: it holds a replica, could hold one, or cannot.
    pub verdict: WorkerVerdict,
    /// The reason why it is better than others, or others are better than it, where it holds or could hold a replica.
    pub why: Option<String>,
}

/// Verdict of a worker on one deployment, with its numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerVerdict {
    /// Has a replica, ready or not.
    Holds {
        /// The revision that it holds; an older one during a rollout.
        revision: RevisionId,
        /// The memory set aside for it.
        claim: ByteSize,
        /// Reported residency; `None`: nothing yet; `Unknown`: its worker is lost.
        residency: Option<String>,
    },
    /// Could hold one.
    Fits {
        /// Rank among workers; smaller is better.
        score: Score,
        /// Replicas that would be evicted.
        evicts: Vec<RevisionId>,
    },
    /// Cannot hold one.
    Rejected(Rejection),
}

/// Explains where a deployment is and where it could be; `None`: no such.
#[must_use]
pub fn explain(world: &World, name: &DeploymentName, now: Time) -> Option<Explanation> {
    let status = super::status(world, name, now)?;
    let mut draft = Draft::new(world, now);
    let (revision, need, basis, workers) = open::with(&mut draft, name, |draft, work| {
        // What a new replica would be: of the revision that is coming, or the one that serves where that is given up.
        let live = work.rollout.as_ref().and_then(|rollout| rollout.live().last().cloned());
        let id = live.unwrap_or_else(|| work.entry.wanted());
        let revision = work.revision(&id)?;
        let (need, basis) = claim::need(world, work.entry, &revision);
        let home = place::next_home(draft, work);
        let request = PlacementRequest {
            revision: &revision,
            home: &home,
            memory: need,
            eviction_scope: EvictionScope::Anything,
        };
        let workers = world.workers.iter().map(|(id, tracked)| view_of(draft, work, &request, id, tracked));
        let mut workers: Vec<WorkerView> = workers.collect();
        why::compare(draft, work, &request, &mut workers);
        Some((id, need, basis, workers))
    })??;
    let spec = &world.deployment(name)?.spec;
    Some(Explanation {
        deployment: name.clone(),
        revision,
        desired: status.desired,
        need,
        basis,
        cores: claim::cores(spec),
        gpu: spec.gpu.clone(),
        summary: summary(&status),
        evictions: world
            .entries
            .get(name)
            .and_then(|e| e.warm.as_ref())
            .map(|w| w.evictions.clone())
            .unwrap_or_default(),
        workers,
    })
}

fn view_of(
    draft: &Draft<'_>,
    work: &Work<'_>,
    request: &PlacementRequest<'_>,
    worker: &WorkerId,
    tracked: &TrackedWorker,
) -> WorkerView {
    let held = draft.world.record(work.name()).and_then(|record| {
        let mut here = record.replicas.iter().filter(|replica| replica.worker == *worker);
        // Of two revisions on one worker, the one that is spoken of.
        here.clone().find(|replica| replica.revision == request.revision.id).or_else(|| here.next())
    });
    let verdict = match held {
        Some(replica) => WorkerVerdict::Holds {
            revision: replica.revision.clone(),
            claim: replica.claim,
            residency: match tracked.lost_at() {
                Some(_) => Some("Unknown".to_owned()),
                None => tracked.inventory.get(&replica.revision).map(|residency| residency.as_str().to_owned()),
            },
        },
        None => match place::view(draft, work, request, worker) {
            Ok(choice) => WorkerVerdict::Fits { score: choice.score, evicts: choice.victims },
            Err(rejection) => WorkerVerdict::Rejected(rejection),
        },
    };
    // As the verdict counts it.
    let claim = claim::need_at(tracked, request.revision, request.memory);
    WorkerView {
        worker: worker.clone(),
        memory: tracked.memory(),
        used: tracked.used,
        overhead: tracked.overhead_beside(claim),
        verdict,
        why: None,
    }
}

/// The first condition that is not as it should be, or where it is.
fn summary(status: &Status) -> String {
    let said = |kind: &str| status.conditions.iter().find(|condition| condition.kind == kind);
    let trouble = said("Available")
        .filter(|condition| condition.status != Truth::True || condition.reason == "Degraded")
        .or_else(|| said("Progressing").filter(|condition| condition.reason != "Settled"));
    let message = trouble.or_else(|| said("Scheduled")).map_or("", |condition| condition.message.as_str());
    format!("{}: {message}", status.phase.as_str())
}
