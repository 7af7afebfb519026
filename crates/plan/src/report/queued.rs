//! Explains why a queued replica waits. Which of all that the worker does holds it up, the worker
//! alone knows: it has places for so many loads, for so many fetches, and so much memory.

use berth_spec::{Residency, RevisionId};

use crate::world::TrackedWorker;

/// Other replicas that are named: enough to act on, and one line.
const NAMED: usize = 3;

/// Work of a worker while a revision is queued there, for people. `None`: it is not queued, the worker cannot be
/// asked, or it is about to begin.
#[must_use]
pub fn waits(tracked: &TrackedWorker, revision: &RevisionId) -> Option<String> {
    if !tracked.alive() || tracked.inventory.get(revision) != Some(&Residency::Queued) {
        return None;
    }
    let others = tracked.inventory.iter().filter_map(|(other, residency)| {
        let leaves = !tracked.assigned.contains_key(other);
        let does = match residency {
            Residency::Queued | Residency::Failed(_) => return None,
            Residency::Ready(_) if !leaves => return None,
            Residency::Ready(_) | Residency::Draining { .. } => "leaves",
            _ if leaves => "leaves",
            Residency::Preparing(_) => "is being prepared",
            Residency::Fetching { .. } => "is being fetched",
            Residency::Loading | Residency::Validating => "is being loaded",
        };
        Some(format!("{other} {does}"))
    });
    let others: Vec<String> = others.collect();
    if others.is_empty() {
        return None;
    }
    let more = match others.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!("waits for its turn; on its worker {}{more}", others[..others.len().min(NAMED)].join(", ")))
}
