//! Explains why a queued replica waits. Which of all that the worker does holds it up, the worker
//! alone knows: it has places for so many loads, for so many fetches, and so much memory.

use berth_spec::{Residency, RevisionId};

use crate::world::TrackedWorker;

/// Other replicas that are named: enough to act on, and one line.
const MAX_NAMED_REPLICAS: usize = 3;

/// Work of a worker while a revision is queued there, for people. `None`: it is not queued, the worker cannot be
/// asked, or it is about to begin.
#[must_use]
pub fn waits(tracked: &TrackedWorker, revision: &RevisionId) -> Option<String> {
    if !tracked.alive() || tracked.inventory.get(revision) != Some(&Residency::Queued) {
        return None;
    }
    // The status of every queued replica is asked for again and again: nothing here grows with the models of the worker.
    let told = tracked.busy.iter().filter_map(|other| Some(format!("{other} {}", tracked.work_on(other)?)));
    let told: Vec<String> = told.take(MAX_NAMED_REPLICAS).collect();
    if told.is_empty() {
        return None;
    }
    let more = match tracked.busy.len().saturating_sub(MAX_NAMED_REPLICAS) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!("waits for its turn; on its worker {}{more}", told.join(", ")))
}
