//! Incidents: what a person has to look at, derived from the state of the fleet. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_control::{
    handle::{KnownDeployment, WorkerState},
    source::WorkerSecret,
};
use berth_registry::{
    actual::{ActualState, WorkerHealth, stamp},
    error_file::{Incident, IncidentKind, IncidentSeverity, Subject},
};
use berth_spec::{
    DeploymentName, RevisionId, Time, WorkerId,
    residency::{Deaths, Failure, Residency},
    status::{Condition, ReplicaStatus, Status, Truth},
};

use super::observe::{FleetSnapshot, replicas};

/// Lines of earlier attempts in an error file: enough to see that the reason is the same.
const MOST_ATTEMPTS: usize = 4;

/// The most deployments that the error file of a lost worker names; a longer list would not be read.
const MOST_NAMES: usize = 100;

/// The same failure as before, seen again. Since the first time, and with the most attempts: a worker that starts anew
/// counts from one. What was given up once is not better while it is tried once more.
pub(crate) fn incident_since(incident: Incident, before: &Incident) -> Incident {
    let severity = match (before.severity, incident.severity) {
        (IncidentSeverity::High, IncidentSeverity::Medium) => IncidentSeverity::High,
        (_, now) => now,
    };
    Incident { at: before.at, attempts: incident.attempts.max(before.attempts), severity, ..incident }
}

/// The incident with how its worker is.
pub(crate) fn as_of(incident: &Incident, state: &ActualState) -> Incident {
    let mut incident = incident.clone();
    let worker = state.workers.iter().find(|entry| Some(&entry.worker_id) == incident.subject.worker.as_ref());
    if let Some(worker) = worker {
        incident.worker_status = Some(worker.status.as_str().to_owned());
        if worker.status == WorkerHealth::Degraded {
            incident.actions.insert(0, format!("Marked {} as degraded", worker.worker_id));
        }
    }
    incident
}

/// True if an incident that another controller announced is known to be over.
pub(crate) fn is_past(subject: &Subject, fleet: &FleetSnapshot<'_>, now: Time) -> bool {
    let status = || {
        let known = fleet
            .deployments
            .iter()
            .find(|known| Some(known.deployment.name.as_str()) == subject.deployment.as_deref());
        known.map(|known| known.status.as_ref())
    };
    let worker = subject.worker.as_deref().unwrap_or_default();
    match subject.kind {
        IncidentKind::LoadFailure => match status() {
            Some(Some(status)) => is_over(status, &status.wanted, worker),
            Some(None) => false,
            None => true,
        },
        IncidentKind::RuntimeFailure => match status() {
            Some(Some(status)) => !status.replicas.iter().any(|replica| {
                replica.worker.as_str() == worker && (replica.residency.is_none() || dying(replica, now).is_some())
            }),
            Some(None) => false,
            None => true,
        },
        IncidentKind::Capacity => match status() {
            Some(Some(status)) => {
                let is = |kind, truth| status.conditions.iter().any(|one| one.kind == kind && one.status == truth);
                let waits = |one: &Condition| matches!(one.reason.as_str(), "SurgeWaits" | "RolloutOverdue");
                is("Scheduled", Truth::True) && !status.conditions.iter().any(waits)
            }
            Some(None) => false,
            None => true,
        },
        IncidentKind::WorkerFailure => match fleet.workers.iter().find(|view| view.info.id.as_str() == worker) {
            Some(view) => view.state != WorkerState::Lost,
            // It is gone for good when nothing speaks of it any more.
            None => {
                fleet.named.is_some_and(|named| !named.contains(worker))
                    && !replicas(fleet.deployments).any(|replica| replica.worker.as_str() == worker)
            }
        },
        IncidentKind::ValidationError => fleet.synced || fleet.refusal.is_some(),
        // The secrets of the last good commit were opened in this term.
        IncidentKind::Secret => fleet.named.is_some(),
    }
}

/// `bereft`: deployments that had replicas there.
pub(crate) fn lost(
    id: &WorkerId,
    reported: Option<Time>,
    bereft: Option<&BTreeSet<DeploymentName>>,
    deployments: &[KnownDeployment],
) -> Incident {
    let mut details = String::new();
    if let Some(reported) = reported {
        details.push_str(&format!("It was last heard of at {}.\n", stamp(reported)));
    }
    let mut actions = vec!["Routed requests to other replicas".to_owned()];
    if let Some(bereft) = bereft.filter(|bereft| !bereft.is_empty()) {
        let names: Vec<&str> = bereft.iter().take(MOST_NAMES).map(DeploymentName::as_str).collect();
        details.push_str(&format!("It held {} deployments: {}", bereft.len(), names.join(", ")));
        details.push_str(if bereft.len() > names.len() { ", and others\n" } else { "\n" });
        let whole =
            |known: &&KnownDeployment| known.status.as_ref().is_some_and(|status| status.ready >= status.desired);
        // Those that are still wanted.
        let theirs = || deployments.iter().filter(|known| bereft.contains(&known.deployment.name));
        actions.push(format!(
            "Placed its models elsewhere: {} of {} deployments have all their replicas",
            theirs().filter(whole).count(),
            theirs().count()
        ));
    }
    Incident {
        severity: IncidentSeverity::High,
        worker_status: Some(WorkerHealth::Failed.as_str().to_owned()),
        category: "lost".to_owned(),
        message: format!("{id} is gone"),
        details,
        actions,
        ..blank(IncidentKind::WorkerFailure, None, Some(id.to_string()))
    }
}

/// Loads that failed: those that are remembered, and those that workers report now, which know more.
pub(crate) fn failed(status: &Status) -> impl Iterator<Item = (&RevisionId, &WorkerId, &Failure)> {
    let remembered = status.failures.iter().map(|failed| (&failed.revision, &failed.worker, &*failed.failure));
    let reported = status.replicas.iter().filter_map(|replica| match &replica.residency {
        Some(Residency::Failed(failure)) => Some((&replica.revision, &replica.worker, &**failure)),
        _ => None,
    });
    remembered.chain(reported)
}

/// True if a failed load no longer matters: the revision is ready there, or enough copies are ready elsewhere.
pub(crate) fn is_over(status: &Status, revision: &RevisionId, worker: &str) -> bool {
    let of_it = || status.replicas.iter().filter(|replica| replica.revision == *revision && !replica.lost);
    let is_ready = |replica: &&ReplicaStatus| replica.residency.as_ref().is_some_and(Residency::is_ready);
    let still_failed = of_it()
        .any(|replica| matches!(replica.residency, Some(Residency::Failed(_))) && replica.worker.as_str() == worker);
    let here = of_it().filter(is_ready).any(|replica| replica.worker.as_str() == worker);
    let all = of_it().filter(is_ready).count() as u64 >= u64::from(status.desired);
    !still_failed && (here || all)
}

pub(crate) fn load_failure(
    known: &KnownDeployment,
    status: &Status,
    revision: &RevisionId,
    worker: &WorkerId,
    failure: &Failure,
) -> Incident {
    let card = known.deployment.spec.model.card.as_ref();
    let mut details = String::new();
    for attempt in failure.history.iter().take(MOST_ATTEMPTS) {
        details.push_str(&format!(
            "{}: {}: {}\n",
            stamp(attempt.at),
            attempt.category.as_str(),
            one_line(&attempt.message)
        ));
    }
    details.push_str(&format!("{}: {}: {}\n", stamp(failure.at), failure.category.as_str(), failure.message));
    let mut actions = Vec::new();
    // Of then: what serves later may be another, which a controller that inherits the file need not know.
    if let Some(serving) = status.serving.as_ref().filter(|serving| *serving != revision && status.ready > 0) {
        actions.push(format!("Kept {serving} serving when the load failed"));
    }
    Incident {
        subject: Subject {
            kind: IncidentKind::LoadFailure,
            deployment: Some(known.deployment.name.to_string()),
            worker: Some(worker.to_string()),
            commit: None,
        },
        severity: match (failure.retry_at, status.ready) {
            (_, 0) => IncidentSeverity::Critical,
            (Some(_), _) => IncidentSeverity::Medium,
            (None, _) => IncidentSeverity::High,
        },
        at: failure.history.first().map_or(failure.at, |attempt| attempt.at),
        card: card.map(|card| (card.repository.clone(), card.reference.clone())),
        worker_status: None,
        author: None,
        category: failure.category.as_str().to_owned(),
        message: one_line(&failure.message),
        details,
        trace: failure.trace.as_deref().map(str::to_owned),
        attempts: failure.attempts,
        next_retry: failure.retry_at,
        actions,
    }
}

/// The deaths of a replica's process, if it dies again and again.
pub(crate) fn dying(replica: &ReplicaStatus, now: Time) -> Option<&Deaths> {
    let Some(Residency::Ready(ready)) = &replica.residency else { return None };
    ready.deaths.as_deref().filter(|deaths| !replica.lost && deaths.is_crash_looping(now))
}

/// One for each replica whose process dies again and again. How bad it is does not go by who is up just now.
pub(crate) fn runtime_failures(known: &KnownDeployment, now: Time) -> Vec<Incident> {
    let replicas = || known.status.iter().flat_map(|status| &status.replicas);
    let is_well = |replica: &ReplicaStatus| {
        replica.residency.as_ref().is_some_and(Residency::is_loaded) && dying(replica, now).is_none()
    };
    let severity = if replicas().any(is_well) { IncidentSeverity::High } else { IncidentSeverity::Critical };
    let card = known.deployment.spec.model.card.as_ref();
    let incident = |(replica, deaths): (&ReplicaStatus, &Deaths)| Incident {
        severity,
        card: card.map(|card| (card.repository.clone(), card.reference.clone())),
        category: "process_died".to_owned(),
        message: format!("the process of {} on {} dies again and again", known.deployment.name, replica.worker),
        details: format!(
            "{}: {} times, {} in a row: {}\n",
            stamp(deaths.at),
            deaths.count,
            deaths.in_a_row,
            deaths.cause
        ),
        actions: vec![
            "Starts it again after pauses that grow to 30 s".to_owned(),
            "Routes requests to other replicas while it is down".to_owned(),
        ],
        ..blank(IncidentKind::RuntimeFailure, Some(known.deployment.name.to_string()), Some(replica.worker.to_string()))
    };
    replicas().filter_map(|replica| Some((replica, dying(replica, now)?))).map(incident).collect()
}

pub(crate) fn no_room(known: &KnownDeployment) -> Option<Incident> {
    let status = known.status.as_ref()?;
    let stops = |kind, reasons: &[&str]| {
        let of_kind = status.conditions.iter().find(|condition| condition.kind == kind)?;
        (of_kind.status == Truth::False && reasons.contains(&of_kind.reason.as_str())).then_some(of_kind)
    };
    let name = &known.deployment.name;
    let mut actions = vec!["Looked for models of lower priority that could make room, and found none".to_owned()];
    let (severity, message, details) = if stops("Scheduled", &["NoCapacity"]).is_some() {
        let severity = if status.ready == 0 { IncidentSeverity::Critical } else { IncidentSeverity::High };
        let why = status.conditions.iter().find(|condition| condition.kind == "Available");
        (severity, format!("no worker can take {name}"), why.map(|why| why.message.clone()).unwrap_or_default())
    } else {
        let waits = stops("Progressing", &["SurgeWaits", "RolloutOverdue"])?;
        let overdue = waits.reason == "RolloutOverdue";
        actions.push("Keeps the old revision serving, and places the new one as soon as there is room".to_owned());
        let severity = if overdue { IncidentSeverity::High } else { IncidentSeverity::Medium };
        (severity, format!("no worker can take the new revision of {name} beside the old one"), waits.message.clone())
    };
    let card = known.deployment.spec.model.card.as_ref();
    Some(Incident {
        severity,
        card: card.map(|card| (card.repository.clone(), card.reference.clone())),
        category: "no_capacity".to_owned(),
        message,
        details,
        actions,
        ..blank(IncidentKind::Capacity, Some(known.deployment.name.to_string()), None)
    })
}

/// One for each worker: its secrets fail together as a rule.
pub(crate) fn secret_failures(secrets: &[WorkerSecret]) -> Vec<Incident> {
    let mut by_worker: BTreeMap<&WorkerId, Vec<String>> = BTreeMap::new();
    for secret in secrets {
        if let Some(problem) = &secret.problem {
            by_worker
                .entry(&secret.worker)
                .or_default()
                .push(format!("{} ({}): {problem}", secret.name, secret.backend));
        }
    }
    let incident = |(worker, problems): (&WorkerId, Vec<String>)| Incident {
        severity: IncidentSeverity::High,
        category: "secret".to_owned(),
        message: format!("secrets of {worker} cannot be used"),
        details: problems.join("\n"),
        actions: vec!["Left the worker with the credentials that it has".to_owned()],
        ..blank(IncidentKind::Secret, None, Some(worker.to_string()))
    };
    by_worker.into_iter().map(incident).collect()
}

pub(crate) fn blank(kind: IncidentKind, deployment: Option<String>, worker: Option<String>) -> Incident {
    Incident {
        subject: Subject { kind, deployment, worker, commit: None },
        severity: IncidentSeverity::High,
        at: Time::ZERO,
        card: None,
        worker_status: None,
        author: None,
        category: String::new(),
        message: String::new(),
        details: String::new(),
        trace: None,
        attempts: 0,
        next_retry: None,
        actions: Vec::new(),
    }
}

/// The first line. Bounded: what model code says may have no end.
pub(crate) fn one_line(text: &str) -> String {
    /// The most characters of a message: the cause at the end of a long error still fits.
    const LONGEST: usize = 500;
    text.lines().next().unwrap_or_default().chars().take(LONGEST).collect()
}
