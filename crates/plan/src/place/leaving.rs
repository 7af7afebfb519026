//! Order in which replicas leave a worker for others: by rank, and among those that have been idle for about as long, the
//! cheapest to load back first.
//!
//! ```text
//! rank order:  a (idle 80 s)  b (70 s)  c (50 s) | d (30 s) …       c loads in 0.2 s, a and b in 20 s
//! leaving:     c              a         b        | d …
//! ```
//! What a replica is worth falls with its idle time and grows with the time of its load, per byte that it gives back. Idle times
//! within a factor of two count as equal, and so do costs; beyond that idle time decides, so that nothing stays for ever
//! because it was slow to load.

use std::collections::VecDeque;

use berth_spec::{Residency, RevisionId, Time, WorkerId};

use super::evict;
use crate::{
    Policy,
    draft::Draft,
    world::{Rank, TrackedWorker},
};

/// Replicas that are compared at once: a plan for one miss looks at no more than this for a victim.
const ALIKE: usize = 16;

/// Bytes in a MiB, as a power of two.
const MIB: u32 = 20;

/// Replicas of a worker, the first to leave first. `stays` says that one may not leave now: it, and what was used after it, keep
/// their order.
pub(super) fn order<'a>(
    draft: &'a Draft<'_>,
    worker: &'a WorkerId,
    tracked: &'a TrackedWorker,
    stays: impl Fn(&Rank) -> bool,
) -> impl Iterator<Item = &'a Rank> {
    let mut ranks = draft.eviction_order(worker).peekable();
    let mut alike: VecDeque<&Rank> = VecDeque::new();
    std::iter::from_fn(move || {
        if alike.is_empty() {
            let first = ranks.next()?;
            let from = alike_from(first.last_used, draft.now);
            let mut group = vec![first];
            while group.len() < ALIKE {
                let is_alike = |next: &&Rank| {
                    (next.priority, next.class) == (first.priority, first.class) && next.last_used <= from
                };
                match ranks.next_if(is_alike) {
                    Some(next) => group.push(next),
                    None => break,
                }
            }
            let may = group.iter().position(|rank| stays(rank)).unwrap_or(group.len());
            group[..may].sort_by_key(|rank| cost(draft, worker, tracked, rank));
            alike = group.into();
        }
        alike.pop_front()
    })
}

/// The latest use that counts as about as long ago as this one: half of the time.
fn alike_from(last_used: Time, now: Time) -> Time {
    last_used + now.since(last_used) / 2
}

/// Magnitude of the time to load a replica back, per byte that it gives back: the power of two of its microseconds per MiB.
fn cost(draft: &Draft<'_>, worker: &WorkerId, tracked: &TrackedWorker, rank: &Rank) -> u32 {
    let memory = evict::claim_of(draft, tracked, worker, &rank.revision).0;
    let micros = load_micros(tracked, &rank.revision);
    // Nothing is smaller than a tenth of a MiB here: a tiny model is not worth a thousand large ones.
    let per_mib = (u128::from(micros) << MIB) / u128::from(memory.max(1 << (MIB - 3)));
    per_mib.checked_ilog2().unwrap_or(0)
}

/// Microseconds that a ready replica took to load and to validate; its files are still on the disk.
fn load_micros(tracked: &TrackedWorker, revision: &RevisionId) -> u64 {
    let Some(Residency::Ready(ready)) = tracked.inventory.get(revision) else { return 0 };
    let millis = (ready.phases.load_ms + ready.phases.validate_ms).clamp(0.0, 1e9);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and 10^12")]
    let micros = (millis * 1e3) as u64;
    micros
}

/// The time for which a replica stays once it is ready, which grows with the time that its load took: models that do not fit
/// together take turns that are worth their loads.
pub(super) fn residence(policy: &Policy, tracked: &TrackedWorker, revision: &RevisionId) -> std::time::Duration {
    let load = std::time::Duration::from_micros(load_micros(tracked, revision));
    (load * policy.residence_per_load_percent / 100).min(policy.max_residence).max(policy.min_residence)
}
