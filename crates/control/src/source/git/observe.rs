//! What is true of the fleet, in the words of the registry: the actual state, and what somebody has to look at. Pure.
//!
//! A failure is remembered until it is over, not only while a worker reports it: between two attempts the replica is
//! nowhere, and what is wrong is as wrong as before.

use std::collections::{BTreeMap, BTreeSet};

use berth_registry::{
    actual::{ActualState, CapacityUsed, ModelEntry, ModelState, WorkerEntry, WorkerHealth, memory, stamp},
    error_file::{Incident, IncidentKind, IncidentSeverity, Subject},
    write_back::Observed,
};
use berth_secrets::SecretStatus;
use berth_spec::{
    RevisionId, Time, WorkerId,
    residency::{Failure, Residency},
    status::{ReplicaStatus, Status, Truth},
};

use super::tell::Refusal;
use crate::handle::{WorkerState, WorkerView, view::Known};

/// Lines of earlier attempts in an error file.
const MOST_ATTEMPTS: usize = 4;

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Versions of revisions: that of one that is not wanted any more is said nowhere else.
    versions: BTreeMap<RevisionId, String>,
    /// Since when a load is seen.
    loading: BTreeMap<(WorkerId, RevisionId), Time>,
    /// Failures that are not over.
    failures: BTreeMap<Subject, (RevisionId, Incident)>,
    /// Since when something else is wrong.
    since: BTreeMap<Subject, Time>,
}

/// What is looked at.
#[derive(Clone, Copy)]
pub(super) struct Sight<'a> {
    pub(super) workers: &'a [WorkerView],
    pub(super) deployments: &'a [Known],
    pub(super) secrets: &'a [SecretStatus],
    pub(super) refusal: Option<&'a Refusal>,
    pub(super) applied: Option<&'a str>,
}

impl Memory {
    /// Looks.
    pub(super) fn observe(&mut self, sight: &Sight<'_>, now: Time) -> Observed {
        self.learn_versions(sight.deployments);
        let mut state = ActualState { workers: Vec::with_capacity(sight.workers.len()) };
        for worker in sight.workers {
            let entry = self.worker(worker, sight.deployments, now);
            state.workers.push(entry);
        }
        let seen: BTreeSet<(WorkerId, RevisionId)> = replicas(sight.deployments)
            .map(|replica| (replica.worker.clone(), replica.revision.clone()))
            .collect();
        self.loading.retain(|key, _| seen.contains(key));
        let mut incidents = self.load_failures(sight, &state);
        let mut others = Vec::new();
        others.extend(sight.workers.iter().filter(|worker| worker.state == WorkerState::Lost).map(lost));
        others.extend(sight.deployments.iter().filter_map(no_room));
        others.extend(secret_failures(sight.secrets));
        self.since.retain(|subject, _| others.iter().any(|incident| incident.subject == *subject));
        for incident in &mut others {
            incident.at = *self.since.entry(incident.subject.clone()).or_insert(now);
        }
        incidents.extend(others);
        incidents.extend(sight.refusal.map(Refusal::incident));
        incidents.sort_by(|one, other| one.subject.cmp(&other.subject));
        Observed { state, incidents, desired: sight.applied.map(str::to_owned) }
    }

    fn learn_versions(&mut self, deployments: &[Known]) {
        let mut held: BTreeSet<&RevisionId> = BTreeSet::new();
        for known in deployments {
            let Some(status) = &known.status else { continue };
            held.extend(status.replicas.iter().map(|replica| &replica.revision));
            held.insert(&status.wanted);
            let version = match &known.deployment.spec.model.card {
                Some(card) => card.card.metadata.version.clone(),
                None => status.wanted.hash(),
            };
            self.versions.insert(status.wanted.clone(), version);
        }
        self.versions.retain(|revision, _| held.contains(revision));
    }

    fn version(&self, revision: &RevisionId) -> String {
        self.versions.get(revision).cloned().unwrap_or_else(|| revision.hash())
    }

    fn worker(&mut self, worker: &WorkerView, deployments: &[Known], now: Time) -> WorkerEntry {
        let id = &worker.info.id;
        let mut models = Vec::new();
        for replica in replicas(deployments).filter(|replica| replica.worker == *id) {
            models.push(self.model(replica, now));
        }
        let any_failed = models.iter().any(|model| model.status == ModelState::Failed);
        let ready = models.iter().filter(|model| model.status == ModelState::Ready).count();
        let cores = f64::from(worker.load.cpu_percent[1]) / 100.0 * f64::from(worker.info.cpus);
        WorkerEntry {
            worker_id: id.to_string(),
            status: match worker.state {
                WorkerState::Ready if any_failed || worker.load.degraded => WorkerHealth::Degraded,
                WorkerState::Ready => WorkerHealth::Healthy,
                WorkerState::Joining => WorkerHealth::Recovering,
                WorkerState::Detached => WorkerHealth::Suspect,
                WorkerState::Lost => WorkerHealth::Failed,
            },
            last_heartbeat: worker.reported.map(stamp),
            capacity: CapacityUsed {
                used_memory: memory(worker.claimed.0),
                used_cpu: (cores * 10.0).round() as f32 / 10.0,
                loaded_models: u32::try_from(ready).unwrap_or(u32::MAX),
            },
            models,
        }
    }

    fn model(&mut self, replica: &ReplicaStatus, now: Time) -> ModelEntry {
        let key = (replica.worker.clone(), replica.revision.clone());
        let mut entry = ModelEntry {
            deployment_id: replica.revision.deployment().to_string(),
            status: ModelState::Loading,
            model_version: self.version(&replica.revision),
            loaded_at: None,
            last_inference: None,
            request_count: None,
            loading_started: None,
            progress: None,
            error: None,
            failed_at: None,
            retry_count: None,
        };
        match &replica.residency {
            Some(Residency::Ready(ready)) => {
                entry.status = ModelState::Ready;
                entry.loaded_at = Some(stamp(ready.since));
                entry.request_count = replica.usage.map(|usage| usage.requests);
                entry.last_inference = replica.usage.and_then(|usage| usage.last).map(stamp);
            }
            Some(Residency::Failed(failure)) => {
                entry.status = ModelState::Failed;
                entry.error = Some(one_line(&failure.message));
                entry.failed_at = Some(stamp(failure.at));
                entry.retry_count = Some(failure.attempts.saturating_sub(1));
            }
            Some(Residency::Draining { .. }) => entry.status = ModelState::Unloading,
            other => {
                entry.loading_started = Some(stamp(*self.loading.entry(key.clone()).or_insert(now)));
                if let Some(Residency::Fetching { done, total: Some(total) }) = other
                    && total.0 > 0
                {
                    let part = done.0 as f64 / total.0 as f64;
                    entry.progress = Some((part.min(1.0) * 100.0).round() as f32 / 100.0);
                }
            }
        }
        if entry.loading_started.is_none() {
            self.loading.remove(&key);
        }
        entry
    }

    fn load_failures(&mut self, sight: &Sight<'_>, state: &ActualState) -> Vec<Incident> {
        for known in sight.deployments {
            let Some(status) = &known.status else { continue };
            for (revision, worker, failure) in failed(status) {
                let health = state.workers.iter().find(|entry| entry.worker_id == worker.as_str());
                let incident = load_failure(known, status, (revision, worker, failure), health);
                let incident = match self.failures.get(&incident.subject) {
                    // Since the first time, and with the most attempts: a worker that starts anew counts from one.
                    Some((before_of, before)) if before_of == revision => {
                        Incident { at: before.at, attempts: incident.attempts.max(before.attempts), ..incident }
                    }
                    _ => incident,
                };
                self.failures.insert(incident.subject.clone(), (revision.clone(), incident));
            }
        }
        self.failures.retain(|subject, (revision, _)| {
            sight.deployments.iter().filter_map(|known| known.status.as_ref()).any(|status| {
                status.wanted == *revision && !is_over(status, revision, subject.worker.as_deref().unwrap_or_default())
            })
        });
        self.failures.values().map(|(_, incident)| incident.clone()).collect()
    }
}

/// All replicas.
fn replicas(deployments: &[Known]) -> impl Iterator<Item = &ReplicaStatus> {
    deployments.iter().filter_map(|known| known.status.as_ref()).flat_map(|status| &status.replicas)
}

/// Loads that failed: those that are remembered, and those that workers report now, which know more.
fn failed(status: &Status) -> impl Iterator<Item = (&RevisionId, &WorkerId, &Failure)> {
    let remembered = status.failures.iter().map(|failed| (&failed.revision, &failed.worker, &*failed.failure));
    let reported = status.replicas.iter().filter_map(|replica| match &replica.residency {
        Some(Residency::Failed(failure)) => Some((&replica.revision, &replica.worker, &**failure)),
        _ => None,
    });
    remembered.chain(reported)
}

/// Whether a failed load is of no interest any more: it is ready there, or all that is wanted is ready elsewhere.
fn is_over(status: &Status, revision: &RevisionId, worker: &str) -> bool {
    let of_it = || status.replicas.iter().filter(|replica| replica.revision == *revision && !replica.lost);
    let is_ready = |replica: &&ReplicaStatus| replica.residency.as_ref().is_some_and(Residency::is_ready);
    let still_failed = of_it()
        .any(|replica| matches!(replica.residency, Some(Residency::Failed(_))) && replica.worker.as_str() == worker);
    let here = of_it().filter(is_ready).any(|replica| replica.worker.as_str() == worker);
    let all = of_it().filter(is_ready).count() as u64 >= u64::from(status.desired);
    !still_failed && (here || all)
}

fn load_failure(
    known: &Known,
    status: &Status,
    (revision, worker, failure): (&RevisionId, &WorkerId, &Failure),
    health: Option<&WorkerEntry>,
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
    let mut actions = vec![format!("Marked {worker} as degraded")];
    if let Some(serving) = status.serving.as_ref().filter(|serving| *serving != revision) {
        actions.push(format!("Kept {serving} serving"));
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
        worker_status: health.map(|worker| worker.status.as_str().to_owned()),
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

fn lost(worker: &WorkerView) -> Incident {
    let id = &worker.info.id;
    let mut details = format!("{} replicas were assigned to it.\n", worker.assigned);
    if let Some(reported) = worker.reported {
        details.push_str(&format!("It was last heard of at {}.\n", stamp(reported)));
    }
    Incident {
        severity: IncidentSeverity::High,
        worker_status: Some(WorkerHealth::Failed.as_str().to_owned()),
        category: "lost".to_owned(),
        message: format!("{id} is gone"),
        details,
        actions: vec![
            "Routed requests to other replicas".to_owned(),
            "Placed its models elsewhere where there is room".to_owned(),
        ],
        ..blank(IncidentKind::WorkerFailure, None, Some(id.to_string()))
    }
}

fn no_room(known: &Known) -> Option<Incident> {
    let status = known.status.as_ref()?;
    let scheduled = status.conditions.iter().find(|condition| condition.kind == "Scheduled")?;
    if scheduled.status != Truth::False || scheduled.reason != "NoCapacity" {
        return None;
    }
    let said =
        |kind| status.conditions.iter().find(|condition| condition.kind == kind).map(|found| found.message.clone());
    let card = known.deployment.spec.model.card.as_ref();
    Some(Incident {
        severity: if status.ready == 0 { IncidentSeverity::Critical } else { IncidentSeverity::High },
        card: card.map(|card| (card.repository.clone(), card.reference.clone())),
        category: "no_capacity".to_owned(),
        message: format!("no worker can take {}", known.deployment.name),
        details: said("Available").unwrap_or_default(),
        actions: vec!["Looked for models of lower priority that could make room, and found none".to_owned()],
        ..blank(IncidentKind::Capacity, Some(known.deployment.name.to_string()), None)
    })
}

/// One for each worker: its secrets fail together as a rule.
fn secret_failures(secrets: &[SecretStatus]) -> Vec<Incident> {
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

pub(super) fn blank(kind: IncidentKind, deployment: Option<String>, worker: Option<String>) -> Incident {
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

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
