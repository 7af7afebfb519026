//! Handles a replica that has no place.

use berth_spec::{ByteSize, RevisionId, Time, WorkerId, deployment::WhenFull};

use super::{
    Refusal, Rejection, Settled, Want, evict,
    shortfall::{Freed, Shortfall},
};
use crate::{
    Rollout, World, claim,
    draft::{Draft, Work},
    lost, rollout,
    scale::{self, Extra, MakesDo},
    world::{Change, Prospect, TrackedDeployment, Verdict},
};

/// Workers named in a message: enough to act on, and one line.
const MAX_NAMED_WORKERS: usize = 3;

/// Notes why a replica has no place, or makes one.
pub(super) fn refuse<'w>(
    draft: &mut Draft<'w>,
    work: &mut Work<'w>,
    want: &Want,
    need: ByteSize,
    refusals: &[Refusal],
) -> Settled {
    if want.extra == Extra::Yes && is_shared(work, &want.revision) {
        // A canary may last for days: what serves meanwhile keeps its copies.
        return Settled::default();
    }
    match scale::make_do(draft, work, &want.revision, want.extra) {
        // What it has matters more now than as one of several: others may have less to hope for.
        MakesDo::Without => return Settled { moved: true, again: Vec::new() },
        MakesDo::LetsGo => return Settled { moved: true, again: vec![work.name().clone()] },
        MakesDo::No => work.unplaced = true,
    }
    let mut verdict = verdict(draft, work, need, refusals);
    if let (Verdict::NoCapacity { text, .. }, Some(until)) = (&verdict, lost::may_return(draft, work)) {
        let text = format!("its worker was lost, and is waited for until {until}; elsewhere: {text}");
        verdict = Verdict::WaitsForRoom { text, until };
    }
    let coming = match &work.rollout {
        Some(Rollout::Surging { to, .. } | Rollout::Recreating { to, .. }) => *to == want.revision,
        // Once as many answer as must, it is like any other that is to be elsewhere.
        Some(Rollout::Canary { to, .. }) => *to == want.revision && !answers(draft.world, work, &want.revision),
        _ => false,
    };
    if coming && let Some(settled) = surge(draft, work, want, &verdict, refusals) {
        return settled;
    }
    if answers(draft.world, work, &want.revision) {
        // As many answer as must, though some of them are to be elsewhere.
        if let Some(until) = verdict.ends() {
            work.wake_at(until);
        }
        let text = verdict.message();
        work.verdict.get_or_insert(Verdict::LeaveWaits { text });
        return Settled::default();
    }
    if work.verdict.is_none() || matches!(work.verdict, Some(Verdict::SurgeWaits { .. })) {
        work.verdict = Some(verdict);
    }
    Settled::default()
}

/// Returns true for the new revision of a canary.
fn is_shared(work: &Work<'_>, revision: &RevisionId) -> bool {
    let canary = work.entry.deployment.spec.rollout.canary;
    canary.is_some() && matches!(&work.rollout, Some(Rollout::Canary { to, .. }) if to == revision)
}

/// Returns true if as many replicas of a revision answer as must.
fn answers(world: &World, work: &Work<'_>, revision: &RevisionId) -> bool {
    work.ready(world, revision) >= work.least().min(work.target_of(revision))
}

/// Handles a rollout whose next revision has no place.
fn surge<'w>(
    draft: &mut Draft<'w>,
    work: &mut Work<'w>,
    want: &Want,
    verdict: &Verdict,
    refusals: &[Refusal],
) -> Option<Settled> {
    let has_any = work.replicas.iter().any(|replica| replica.revision == want.revision);
    if let Verdict::Failed { text, .. } = verdict
        && !has_any
    {
        if work.entry.refusals(&want.revision, draft.now).any(|refusal| refusal.outdated) {
            return None; // it is tried again before long
        }
        if rollout::give_up(draft, work, text) {
            work.unplaced = false;
            return Some(Settled { moved: true, again: vec![work.name().clone()] });
        }
    }
    let when_full = work.entry.deployment.spec.rollout.when_full;
    let replaceable = !takes_over(draft, work, want) && fits_without_old(draft, work, want, refusals);
    if when_full == WhenFull::Recreate && replaceable && rollout::recreate(draft, work) {
        return Some(Settled { moved: true, again: vec![work.name().clone()] });
    }
    let overdue = match work.rollout {
        Some(Rollout::Surging { since, .. }) => Some(since + work.entry.deployment.spec.rollout.deadline),
        Some(Rollout::Canary { .. }) => None,
        _ => return None,
    };
    let prospect = match verdict {
        Verdict::NoCapacity { .. } if overdue.is_some_and(|overdue| overdue <= draft.now) => Prospect::Overdue,
        Verdict::NoCapacity { .. } => Prospect::Blocked,
        _ => Prospect::Soon,
    };
    if let (Prospect::Blocked, Some(overdue)) = (prospect, overdue) {
        work.wake_at(overdue);
    }
    let mut text = verdict.message();
    if replaceable && overdue.is_some() {
        text.push_str("; or set rollout.whenFull: recreate, which unloads the old revision first");
    }
    work.verdict.get_or_insert(Verdict::SurgeWaits { text, prospect });
    Some(Settled::default())
}

/// Returns true if as many of the next revision have a place as serve now: it will take over without more of it.
fn takes_over(draft: &Draft<'_>, work: &Work<'_>, want: &Want) -> bool {
    let serve = work.rollout.as_ref().and_then(Rollout::serving).map_or(0, |from| work.answering(draft.world, from));
    work.copies(&want.revision) >= serve.min(work.target).max(1)
}

/// The reason why a deployment can never have a replica, by its own word on its memory: known without looking at any worker.
pub(crate) fn never(world: &World, entry: &TrackedDeployment) -> Option<Verdict> {
    let text = too_large(world, entry.deployment.spec.memory?)?;
    Some(Verdict::NoCapacity { text, until: Time(u64::MAX) })
}

/// Says that no worker has so much memory, whoever leaves; `None` while no worker is known.
fn too_large(world: &World, need: ByteSize) -> Option<String> {
    let largest = world.largest;
    (largest > ByteSize::ZERO && need > largest).then(|| {
        format!(
            "needs {need} of memory, and no worker has more than {largest} for models: declare less memory for it, or \
             add a larger worker"
        )
    })
}

/// Returns true if the new revision would fit somewhere without the old one and without those that may leave for it.
fn fits_without_old(draft: &Draft<'_>, work: &Work<'_>, want: &Want, refusals: &[Refusal]) -> bool {
    let eviction_scope = scale::eviction_scope(draft, work, want.extra);
    refusals.iter().any(|(worker, rejection)| {
        if rejection.short_of().is_none() {
            return false; // room is not what the worker is short of
        }
        let Some(candidate) = draft.worker(worker) else { return false };
        let need = work.revisions.get(&want.revision).map_or(ByteSize::ZERO, |revision| {
            let (need, _) = claim::need(draft.world, work.entry, revision);
            claim::need_at(candidate.tracked, revision, need)
        });
        let shortfall = Shortfall::of(draft, work.entry, &want.revision, &candidate, need);
        let mut own = Freed::default();
        for replica in work.replicas.iter().filter(|replica| replica.worker == *worker) {
            own.add(&shortfall.given(&replica.revision, replica.claim, claim::cores(&work.entry.deployment.spec)));
        }
        !own.revisions.is_empty() && evict::victims(draft, work.entry, eviction_scope, &shortfall, own).is_ok()
    })
}

fn verdict(draft: &Draft<'_>, work: &Work<'_>, need: ByteSize, refusals: &[Refusal]) -> Verdict {
    if work.entry.deployment.spec.memory == Some(need)
        && let Some(never) = never(draft.world, work.entry)
    {
        return never;
    }
    let soon = refusals.iter().filter_map(|(worker, rejection)| Some((rejection.room_from()?, worker, rejection)));
    if let Some((until, worker, rejection)) = soon.min_by_key(|(until, worker, _)| (*until, *worker)) {
        let short = rejection.short_of().unwrap_or_default();
        let text = format!("needs {short}; room is made on {worker} once the models there have had their turn");
        return Verdict::WaitsForRoom { text, until };
    }
    let until = if work.entry.deployment.spec.replicas.min > 0 {
        Time(u64::MAX) // tried again with every plan
    } else {
        draft.now + draft.world.policy.no_capacity_hold
    };
    if let Some(text) = no_room(draft, need, refusals) {
        return Verdict::NoCapacity { text, until };
    }
    let failures = refusals.iter().filter_map(|(worker, rejection)| match rejection {
        Rejection::FailedHere { until, message } => Some((*until, worker, message)),
        _ => None,
    });
    if let Some((until, worker, message)) = failures.min() {
        let text = format!("loading failed on {worker}: {message}");
        return Verdict::Failed { text, until, change: Change::of(&work.entry.deployment) };
    }
    Verdict::NoCapacity { text: nowhere(draft, refusals), until }
}

/// Names the worker with the smallest shortfall, if capacity is the only obstacle.
fn no_room(draft: &Draft<'_>, need: ByteSize, refusals: &[Refusal]) -> Option<String> {
    let memory = refusals.iter().filter_map(|(worker, rejection)| match rejection {
        Rejection::Memory { need, free, evictable, total, .. } => {
            Some((need <= total, *free + *evictable, worker, *free, *evictable, *total))
        }
        _ => None,
    });
    let memory = memory.max();
    // One that has the memory and lacks something else is nearer than one that lacks the memory.
    let other = refusals.iter().filter(|(_, rejection)| {
        use Rejection::{Cpu, Gpu, InRuntime, Models};
        matches!(rejection, Cpu { .. } | Gpu { .. } | Models { .. } | InRuntime { .. })
    });
    let other = other.min_by_key(|(_, rejection)| rejection.needs_more_than_all());
    // One where it can never be is further than one that has the memory, though not now.
    let has_memory = memory.is_some_and(|(has_memory, ..)| has_memory);
    if let Some((worker, rejection)) = other.filter(|(_, rejection)| !(has_memory && rejection.needs_more_than_all())) {
        let remedy = match rejection {
            Rejection::InRuntime { .. } if rejection.needs_more_than_all() => {
                "give the runtime more, declare less for it, or add a worker with a larger one"
            }
            _ if rejection.needs_more_than_all() => "declare less for it, or add a larger worker",
            _ => "raise its priority, declare less for it, or add a worker",
        };
        return Some(format!("the best worker, {worker}, {rejection}: {remedy}"));
    }
    let Some((_, _, worker, free, evictable, total)) = memory else {
        let (worker, rejection) = refusals.iter().find(|(_, why)| matches!(why, Rejection::KeepsAll { .. }))?;
        return Some(format!("the best worker, {worker}, {rejection}; let it evict, or add a worker"));
    };
    Some(too_large(draft.world, need).unwrap_or_else(|| {
        let (need, free) = (need.beside(free), free.beside(need));
        format!(
            "needs {need} of memory; the best worker, {worker}, has {free} free and {evictable} that may be \
             evicted, of {total}: raise its priority, declare less memory for it, or free or add memory"
        )
    }))
}

fn nowhere(draft: &Draft<'_>, refusals: &[Refusal]) -> String {
    if refusals.iter().all(|(_, rejection)| matches!(rejection, Rejection::Lost | Rejection::Unseen)) {
        return "no worker can be reached: start one".to_owned();
    }
    if refusals.iter().any(|(_, rejection)| *rejection == Rejection::Holds) {
        let stays = |worker: &WorkerId| {
            draft.world.workers.get(worker).is_some_and(|tracked| tracked.answers() && !tracked.leaves())
        };
        let (staying, going): (Vec<&Refusal>, Vec<&Refusal>) = refusals.iter().partition(|(worker, _)| stays(worker));
        let all = staying.len();
        let holding = staying.iter().filter(|(_, rejection)| *rejection == Rejection::Holds).count();
        let there = match all {
            0 => "is no worker".to_owned(),
            1 => "is 1 worker".to_owned(),
            _ => format!("are {all} workers"),
        };
        let mut others =
            if going.is_empty() { String::new() } else { format!(" besides {} that leave or are lost", going.len()) };
        if holding < all {
            others.push_str(&format!(", of which {holding} may hold it"));
        }
        return format!(
            "each worker holds at most one replica of a deployment, and there {there}{others}: add a worker \
             or lower replicas"
        );
    }
    let named: Vec<String> =
        refusals.iter().take(MAX_NAMED_WORKERS).map(|(worker, rejection)| format!("{worker} {rejection}")).collect();
    let rest = refusals.len().saturating_sub(MAX_NAMED_WORKERS);
    let more = if rest > 0 { format!("; and {rest} more") } else { String::new() };
    format!("no worker may hold it: {}{more}", named.join("; "))
}
