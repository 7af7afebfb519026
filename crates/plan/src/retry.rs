//! Loads that failed and that their worker tries again by itself.

use berth_spec::{Residency, Time};

use crate::{Record, Replica, World};

/// A replica that waits for its next attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Retrying {
    /// For people: what went wrong, and when it is tried again.
    pub(crate) message: String,
    /// When it is tried again; `None`: it is not, and the planner has yet to take it off its worker.
    pub(crate) at: Option<Time>,
}

/// The first replica of a record whose load failed.
pub(crate) fn first(world: &World, record: &Record) -> Option<Retrying> {
    record.replicas.iter().find_map(|replica| of(world, replica))
}

/// What a request for a model that no replica answers is told, if each of them waits for its next attempt: the one that
/// is tried again first. To wait for that would be in vain, it is half a minute away at least.
pub(crate) fn all(world: &World, record: &Record) -> Option<Retrying> {
    let each: Option<Vec<Retrying>> = record.replicas.iter().map(|replica| of(world, replica)).collect();
    each?.into_iter().filter(|retrying| retrying.at.is_some()).min_by_key(|retrying| retrying.at)
}

fn of(world: &World, replica: &Replica) -> Option<Retrying> {
    let seats = world.workers.get(&replica.worker).filter(|seats| seats.alive())?;
    let Residency::Failed(failure) = seats.inventory.get(&replica.revision)? else { return None };
    let next = failure.retry_at.map_or_else(String::new, |at| format!("; tried again at {at}"));
    let message = format!(
        "attempt {} on {} failed ({}): {}{next}",
        failure.attempts,
        replica.worker,
        failure.category.as_str(),
        failure.message.trim_end_matches('.')
    );
    Some(Retrying { message, at: failure.retry_at })
}
