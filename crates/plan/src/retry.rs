//! Retries by workers themselves: loads that failed, and processes that died.

use berth_spec::{
    Residency, Time, WorkerId,
    residency::{Deaths, Ready},
};

use crate::{Record, Replica, World};

/// A replica whose load waits for its next attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Retrying {
    /// For people: what went wrong, and when it is tried again.
    pub(crate) message: String,
    /// When it is tried again; `None`: it is not, and the planner has yet to take it off its worker.
    pub(crate) at: Option<Time>,
}

/// A replica that is loaded and whose process is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Restarting {
    /// For people: how it died, and when it is started again.
    pub(crate) message: String,
    /// When that is, or was: loading the model takes its time after that.
    pub(crate) at: Time,
}

/// The reason why a model that no replica answers is not worth waiting for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Away {
    /// Every load failed.
    Retrying(Retrying),
    /// At least one is loaded, and its process is not there.
    Restarting(Restarting),
}

/// The first replica of a record whose load failed.
pub(crate) fn first(world: &World, record: &Record) -> Option<Retrying> {
    record.replicas.iter().find_map(|replica| of(world, replica))
}

/// The replica of a record whose process is not there, and is started again first.
pub(crate) fn first_down(world: &World, record: &Record) -> Option<Restarting> {
    soonest(world, record.replicas.iter())
}

fn soonest<'a>(world: &World, of: impl Iterator<Item = &'a Replica>) -> Option<Restarting> {
    of.filter_map(|replica| down(world, replica)).min_by_key(|restarting| restarting.at)
}

/// Answer to a request for a model that no replica answers, if each of them waits for its next attempt: the one that
/// is tried again first. To wait for a load would be in vain, it is half a minute away at least; and nobody knows how often
/// a process that died will die again.
///
/// Where a process died, what serves decides alone: another revision on its way may take minutes, and who asks is better
/// told now. So a rollout changes nothing for requests until its revision takes over.
pub(crate) fn all(world: &World, record: &Record) -> Option<Away> {
    let waits = |replica: &Replica| of(world, replica).is_some() || down(world, replica).is_some();
    let serving = record.rollout.serving().filter(|revision| record.of(revision).all(waits));
    if let Some(restarting) = serving.and_then(|revision| soonest(world, record.of(revision))) {
        return Some(Away::Restarting(restarting));
    }
    if !record.replicas.iter().all(waits) {
        return None;
    }
    if let Some(restarting) = first_down(world, record) {
        return Some(Away::Restarting(restarting));
    }
    let each = record.replicas.iter().filter_map(|replica| of(world, replica));
    each.filter(|retrying| retrying.at.is_some()).min_by_key(|retrying| retrying.at).map(Away::Retrying)
}

fn down(world: &World, replica: &Replica) -> Option<Restarting> {
    let tracked = world.workers.get(&replica.worker).filter(|tracked| tracked.answers())?;
    let Residency::Ready(ready) = tracked.inventory.get(&replica.revision)? else { return None };
    let Ready { deaths: Some(deaths), .. } = &**ready else { return None };
    deaths.again_at.map(|at| Restarting { message: died(&replica.worker, deaths, at), at })
}

fn died(worker: &WorkerId, deaths: &Deaths, again_at: Time) -> String {
    let times = if deaths.in_a_row > 1 { format!("{} times in a row", deaths.in_a_row) } else { "once".to_owned() };
    format!(
        "its process on {worker} died {times}, last at {}: {}; it is started again at {again_at}",
        deaths.at, deaths.cause
    )
}

fn of(world: &World, replica: &Replica) -> Option<Retrying> {
    let tracked = world.workers.get(&replica.worker).filter(|tracked| tracked.alive())?;
    let Residency::Failed(failure) = tracked.inventory.get(&replica.revision)? else { return None };
    let next = failure.retry_at.map_or_else(String::new, |at| format!(", the next one is at {at}"));
    let message = format!(
        "attempt {} on {} failed ({}){next}: {}",
        failure.attempts,
        replica.worker,
        failure.category.as_str(),
        failure.message
    );
    Some(Retrying { message, at: failure.retry_at })
}
