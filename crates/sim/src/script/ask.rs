//! Questions of a story.

use berth_plan::{fixture, report};

use berth_spec::{DeploymentName, RevisionId, WorkerId};

use crate::cluster::Cluster;

pub(super) fn status(cluster: &Cluster, called: &str) -> Result<Vec<String>, String> {
    let world = cluster.world().ok_or("nobody leads")?;
    let status = report::status(world, &fixture::name(called), cluster.now).ok_or("no such deployment")?;
    let mut lines = vec![format!("{} {} of {} ready", status.phase.as_str(), status.ready, status.desired)];
    for condition in &status.conditions {
        lines.push(format!(
            "  {}={} {}: {}",
            condition.kind,
            condition.status.as_str(),
            condition.reason,
            condition.message
        ));
    }
    Ok(lines)
}

pub(super) fn explain(cluster: &Cluster, called: &str) -> Result<Vec<String>, String> {
    let name = fixture::name(called);
    let world = cluster.world().ok_or("nobody leads")?;
    let explained = report::explain(world, &name, cluster.now).ok_or("no such deployment")?;
    let mut lines = vec![format!("needs {} ({})", explained.need, explained.basis.as_str()), explained.summary];
    for view in explained.workers {
        let verdict = match view.verdict {
            report::WorkerVerdict::Holds { revision, claim, residency } => {
                format!("holds {revision}, {claim}, {}", residency.unwrap_or_else(|| "not reported".to_owned()))
            }
            report::WorkerVerdict::Fits { evicts, .. } if evicts.is_empty() => "fits".to_owned(),
            report::WorkerVerdict::Fits { evicts, .. } => format!("fits after evicting {evicts:?}"),
            report::WorkerVerdict::Rejected(rejection) => rejection.to_string(),
        };
        lines.push(format!("  {}: {} of {} claimed, {verdict}", view.worker, view.used, view.memory));
    }
    Ok(lines)
}

/// The places of the replicas of one deployment, or of all, by the store's word; `+` after those that answer.
pub(super) fn placement(cluster: &Cluster, called: &str) -> Vec<String> {
    let callable = cluster.callable();
    let all = cluster.placement();
    let shown = all.iter().filter(|(name, _)| called.is_empty() || name.as_str() == called);
    let line = |(name, controllers): (&DeploymentName, &Vec<(WorkerId, RevisionId)>)| {
        let controllers: Vec<String> = controllers
            .iter()
            .map(|(worker, revision)| {
                let answers = callable.contains(&(worker.clone(), revision.clone()));
                format!("{worker}{}", if answers { "+" } else { "" })
            })
            .collect();
        format!("{name}: {}", controllers.join(" "))
    };
    let lines: Vec<String> = shown.map(line).collect();
    if lines.is_empty() { vec!["nowhere".to_owned()] } else { lines }
}

/// The outcomes of the requests.
pub(super) fn tally(cluster: &Cluster) -> String {
    let tally = &cluster.requests.tally;
    let refused: u64 = tally.refused.values().sum();
    let waiting = cluster.requests.open.len();
    format!(
        "{} answered, {} sent elsewhere, {refused} refused, {} gave up, {waiting} on their way",
        tally.answered, tally.retried, tally.gave_up
    )
}

/// Lists what is not as it should be.
pub(super) fn settled(cluster: &Cluster) -> Vec<String> {
    let wrong = cluster.unsettled();
    if wrong.is_empty() { vec!["yes".to_owned()] } else { wrong }
}
