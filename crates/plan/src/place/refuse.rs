//! What becomes of a replica that has no place.

use berth_spec::{ByteSize, Time, deployment::WhenFull};

use super::{Refusal, Rejection, Settled, Want};
use crate::{
    Rollout, World,
    draft::{Draft, Work},
    rollout,
    world::{Entry, Verdict},
};

/// How many workers a message names. Halved or doubled: a shorter or longer message.
const NAMED: usize = 3;

/// Notes why a replica has no place, or makes one.
pub(super) fn refuse(
    draft: &mut Draft<'_>,
    work: &mut Work<'_>,
    want: &Want,
    need: ByteSize,
    refusals: &[Refusal],
) -> Settled {
    work.unplaced = true;
    let verdict = verdict(draft, work, need, refusals);
    let coming = match &work.rollout {
        Some(Rollout::Surging { to, .. } | Rollout::Recreating { to, .. }) => *to == want.revision,
        _ => false,
    };
    if coming {
        let has_any = work.replicas.iter().any(|replica| replica.revision == want.revision);
        if let Verdict::Failed { text, .. } = &verdict
            && !has_any
            && rollout::give_up(draft, work, text)
        {
            work.unplaced = false;
            return Settled { moved: true, again: vec![work.name().clone()] };
        }
        if work.entry.deployment.spec.rollout.when_full == WhenFull::Recreate
            && fits_without_old(work, refusals)
            && rollout::recreate(draft, work)
        {
            return Settled { moved: true, again: vec![work.name().clone()] };
        }
        if matches!(work.rollout, Some(Rollout::Surging { .. })) {
            let text = verdict.message();
            work.verdict.get_or_insert(Verdict::SurgeWaits { text });
            return Settled::default();
        }
    }
    if work.verdict.is_none() || matches!(work.verdict, Some(Verdict::SurgeWaits { .. })) {
        work.verdict = Some(verdict);
    }
    Settled::default()
}

/// Why a deployment can never have a replica, by its own word on its memory: known without looking at any worker.
pub(crate) fn never(world: &World, entry: &Entry) -> Option<Verdict> {
    let text = too_large(world, entry.deployment.spec.memory?)?;
    Some(Verdict::NoCapacity { text, until: Time(u64::MAX) })
}

/// That no worker has so much memory, whoever leaves; nothing while no worker is known.
fn too_large(world: &World, need: ByteSize) -> Option<String> {
    let largest = world.largest;
    (largest > ByteSize::ZERO && need > largest).then(|| {
        format!(
            "needs {need} of memory, and no worker has more than {largest} for models: declare less memory for it, or \
             add a larger worker"
        )
    })
}

/// Whether the new revision would fit somewhere if the old one were not there.
fn fits_without_old(work: &Work<'_>, refusals: &[Refusal]) -> bool {
    refusals.iter().any(|(worker, rejection)| {
        let Rejection::Memory { need, free, evictable, .. } = rejection else { return false };
        let own: ByteSize =
            work.replicas.iter().filter(|replica| replica.worker == *worker).map(|replica| replica.claim).sum();
        *free + *evictable + own >= *need
    })
}

fn verdict(draft: &Draft<'_>, work: &Work<'_>, need: ByteSize, refusals: &[Refusal]) -> Verdict {
    if work.entry.deployment.spec.memory == Some(need)
        && let Some(never) = never(draft.world, work.entry)
    {
        return never;
    }
    let soon = refusals.iter().filter_map(|(worker, rejection)| match rejection {
        Rejection::Memory { need, free, evictable, busy, again, .. } if *free + *evictable + *busy >= *need => {
            Some((*again, worker))
        }
        _ => None,
    });
    if let Some((until, worker)) = soon.min() {
        let text =
            format!("needs {need} of memory; room is made on {worker} once the models there have had their turn");
        return Verdict::WaitsForRoom { text, until };
    }
    let memory = refusals.iter().filter_map(|(worker, rejection)| match rejection {
        Rejection::Memory { free, evictable, total, .. } => {
            Some((*free + *evictable, worker, *free, *evictable, *total))
        }
        _ => None,
    });
    let until = if work.entry.deployment.spec.replicas.min > 0 {
        Time(u64::MAX) // tried again with every plan
    } else {
        draft.now + draft.world.policy.no_capacity_hold
    };
    if let Some((_, worker, free, evictable, total)) = memory.max() {
        let text = too_large(draft.world, need).unwrap_or_else(|| {
            format!(
                "needs {need} of memory; the best worker, {worker}, has {free} free and {evictable} that may be \
                 evicted, of {total}: raise its priority, declare less memory for it, or free or add memory"
            )
        });
        return Verdict::NoCapacity { text, until };
    }
    let failures = refusals.iter().filter_map(|(worker, rejection)| match rejection {
        Rejection::FailedHere { until, message } => Some((*until, worker, message)),
        _ => None,
    });
    if let Some((until, worker, message)) = failures.min() {
        let text = format!("loading failed on {worker}: {message}");
        return Verdict::Failed { text, until };
    }
    Verdict::NoCapacity { text: nowhere(refusals), until }
}

fn nowhere(refusals: &[Refusal]) -> String {
    if refusals.iter().all(|(_, rejection)| *rejection == Rejection::Lost) {
        return "no worker can be reached: start one".to_owned();
    }
    let holding = refusals.iter().filter(|(_, rejection)| *rejection == Rejection::Holds).count();
    if holding > 0 {
        let all = refusals.len();
        let there = if all == 1 { "is 1 worker".to_owned() } else { format!("are {all} workers") };
        let others = if holding < all { format!(", of which {holding} may hold it") } else { String::new() };
        return format!(
            "each worker holds at most one replica of a deployment, and there {there}{others}: add a worker \
             or lower replicas"
        );
    }
    let named: Vec<String> =
        refusals.iter().take(NAMED).map(|(worker, rejection)| format!("{worker} {rejection}")).collect();
    let rest = refusals.len().saturating_sub(NAMED);
    let more = if rest > 0 { format!("; and {rest} more") } else { String::new() };
    format!("no worker may hold it: {}{more}", named.join("; "))
}
