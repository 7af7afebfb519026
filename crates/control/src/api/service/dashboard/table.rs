//! Every deployment in one row, and the selection of a page: search, filter, order. Pure.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use berth_spec::{
    Deployment, DeploymentName, Namespace, Origin, Time,
    status::{Condition, Phase, Truth},
};
use berth_wire::api::{ModelTop, StuckDeployments};

use super::firsts::Firsts;
use crate::{
    api::{selector::LabelSelector, view},
    handle::KnownDeployment,
};

/// Reasons of the condition `Progressing` for which a deployment does not get on by itself.
const STUCK: [&str; 3] = ["RolloutStuck", "RolloutOverdue", "LoadFailed"];

/// Deployments of an owner that are named if they do not get on: enough to start looking.
const STUCK_NAMED: usize = 10;

/// All deployments by name, at one time. A row takes 56 bytes beside the deployment, which is shared: 6 MB for 100,000.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) at: Time,
    pub(super) rows: Vec<Row>,
}

/// One deployment.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) deployment: Arc<Deployment>,
    pub(super) phase: Phase,
    pub(super) ready: u32,
    /// Memory of all its replicas, in bytes.
    pub(super) memory: u64,
    pub(super) last_used: Option<Time>,
    /// The reason why it does not get on by itself, in one word.
    pub(super) stuck: Option<&'static str>,
}

impl Table {
    /// Deployments of an owner that do not get on. One pass over the rows.
    pub(super) fn stuck_of(&self, owner: &Origin) -> StuckDeployments {
        let theirs = |row: &&Row| row.deployment.origin == *owner && !row.deployment.deleting;
        let rows = self.rows.iter().filter(|row| row.stuck.is_some()).filter(theirs);
        let mut stuck = StuckDeployments::default();
        for row in rows {
            stuck.count += 1;
            if stuck.first.len() < STUCK_NAMED {
                stuck.first.push(format!("{}: {}", row.deployment.name, row.stuck.unwrap_or_default()));
            }
        }
        stuck
    }
}

/// Column that orders a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    #[default]
    Name,
    Phase,
    Ready,
    Memory,
    LastUsed,
    Requests,
    Failures,
    Misses,
    Latency,
}

/// Filter, order and page of the dashboard's table of models.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    /// Part of a name, in any case.
    pub(crate) search: String,
    pub(crate) namespace: Option<Namespace>,
    pub(crate) labels: LabelSelector,
    pub(crate) phase: Option<Phase>,
    pub(crate) sort: Sort,
    pub(crate) descending: bool,
    pub(crate) offset: usize,
    pub(crate) limit: usize,
}

/// Result of a selection.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Selected {
    /// Numbers of the rows of the page.
    pub(super) page: Vec<usize>,
    pub(super) matching: usize,
    /// Deployments per phase, the phase asked for left aside.
    pub(super) phases: BTreeMap<Phase, u64>,
}

impl Sort {
    /// The names of all columns, as they stand in a request.
    pub(crate) const NAMES: [(&'static str, Self); 9] = [
        ("name", Self::Name),
        ("phase", Self::Phase),
        ("ready", Self::Ready),
        ("memory", Self::Memory),
        ("lastUsed", Self::LastUsed),
        ("requests", Self::Requests),
        ("failures", Self::Failures),
        ("misses", Self::Misses),
        ("latency", Self::Latency),
    ];
}

impl Row {
    pub(super) fn of(known: &KnownDeployment) -> Self {
        let status = known.status.as_ref();
        let held = status.iter().flat_map(|status| &status.replicas).filter(|replica| !replica.lost);
        Self {
            deployment: Arc::clone(&known.deployment),
            phase: status.map_or(Phase::Progressing, |status| status.phase),
            ready: status.map_or(0, |status| status.ready),
            memory: held.map(view::replica_memory).sum(),
            last_used: status.and_then(|status| status.last_used).filter(|at| at.0 > 0),
            stuck: status.and_then(|status| stuck(&status.conditions)),
        }
    }

    /// True if people ask why it is in its phase.
    pub(super) fn wants_a_reason(&self) -> bool {
        !matches!(self.phase, Phase::Available | Phase::ScaledDown)
    }

    /// Figure that a column sorts by, where that is a number; by it the largest are the most interesting.
    fn figure(&self, sort: Sort, activity: &BTreeMap<String, ModelTop>) -> f64 {
        let did = |figure: fn(&ModelTop) -> f64| activity.get(self.deployment.name.as_str()).map_or(0.0, figure);
        match sort {
            Sort::Name | Sort::Phase => 0.0,
            Sort::Ready => f64::from(self.ready),
            Sort::Memory => self.memory as f64,
            Sort::LastUsed => self.last_used.map_or(0.0, |at| at.0 as f64),
            // Among those with the same rate, which is mostly none, the one that was asked more since the start is first.
            Sort::Requests => did(|top| top.requests_per_second.max(0.0) + little(top.requests)),
            Sort::Failures => did(|top| top.failures_per_second + little(top.failures)),
            Sort::Misses => did(|top| top.misses_per_second + little(top.misses)),
            Sort::Latency => did(|top| top.latency.map_or(0.0, |latency| latency.p99)),
        }
    }
}

fn stuck(conditions: &[Condition]) -> Option<&'static str> {
    let ended = |condition: &&Condition| condition.kind == "Progressing" && condition.status == Truth::False;
    let ended = conditions.iter().find(ended)?;
    STUCK.into_iter().find(|reason| *reason == ended.reason)
}

/// A count as a part of a rate that is less than any rate that can be seen.
fn little(count: u64) -> f64 {
    count as f64 / u64::MAX as f64
}

/// The page of `rows`, which are by name, that is asked for.
pub(super) fn select(rows: &[Row], activity: &BTreeMap<String, ModelTop>, asked: &Selection) -> Selected {
    let search = asked.search.to_lowercase();
    let matches = |row: &&Row| {
        let name = &row.deployment.name;
        let inside = asked.namespace.as_ref().is_none_or(|namespace| name.namespace() == namespace.as_str());
        inside && contains(name, &search) && asked.labels.matches(&row.deployment.labels)
    };
    let order = |a: &(f64, usize), b: &(f64, usize)| -> Ordering {
        let by = match asked.sort {
            Sort::Name => a.1.cmp(&b.1),
            Sort::Phase => rows[a.1].phase.cmp(&rows[b.1].phase),
            _ => a.0.total_cmp(&b.0),
        };
        let by = if asked.descending { by.reverse() } else { by };
        by.then(a.1.cmp(&b.1))
    };
    let (mut phases, mut matching) = (BTreeMap::new(), 0);
    let mut found = Firsts::new(asked.offset.saturating_add(asked.limit), order);
    for (number, row) in rows.iter().enumerate().filter(|(_, row)| matches(row)) {
        *phases.entry(row.phase).or_default() += 1;
        if asked.phase.is_none_or(|phase| phase == row.phase) {
            found.push((row.figure(asked.sort, activity), number));
            matching += 1;
        }
    }
    let page = found.page(asked.offset).into_iter().map(|(_, number)| number).collect();
    Selected { page, matching, phases }
}

/// True if the written form of `name` has `part`, which is in lower case, in any case.
fn contains(name: &DeploymentName, part: &str) -> bool {
    let name = name.as_str();
    if part.is_empty() {
        return true;
    }
    if !name.is_ascii() || !part.is_ascii() {
        return name.to_lowercase().contains(part);
    }
    name.as_bytes().windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
}

#[cfg(test)]
mod tests;
