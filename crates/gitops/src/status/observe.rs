//! Observes the fleet in the registry's terms: the actual state, and what a person has to look at. Pure.
//!
//! A failure is remembered until it is over, not only while a worker reports it: between two attempts the replica is
//! nowhere, and what is wrong is as wrong as before.

use std::collections::{BTreeMap, BTreeSet};

use berth_control::{
    controller::AbsentWorker,
    handle::{KnownDeployment, WorkerState, WorkerView},
    source::WorkerSecret,
};
use berth_registry::{
    actual::{ActualState, CapacityUsed, ModelEntry, ModelState, WorkerEntry, WorkerHealth, memory, stamp},
    error_file::{Incident, Subject},
    write_back::Observed,
};
use berth_spec::{DeploymentName, RevisionId, Time, WorkerId, residency::Residency, status::ReplicaStatus};

use super::incident::{
    as_of, dying, failed, incident_since, is_over, is_past, load_failure, lost, no_room, one_line, runtime_failures,
    secret_failures,
};
use crate::refusal::Refusal;

/// The memory from one look to the next.
#[derive(Debug, Default)]
pub(crate) struct IncidentTracker {
    /// Versions of revisions: that of one that is not wanted any more is said nowhere else.
    versions: BTreeMap<RevisionId, String>,
    /// Since when a load is seen.
    loading: BTreeMap<(WorkerId, RevisionId), Time>,
    /// Failures that are not over.
    failures: BTreeMap<Subject, Remembered>,
    /// Deployments that had replicas on a worker when it was lost.
    bereft: BTreeMap<WorkerId, BTreeSet<DeploymentName>>,
    /// Incidents that the controller before has announced and that may be over.
    inherited: BTreeSet<Subject>,
    /// Since when something else is wrong.
    since: BTreeMap<Subject, Time>,
}

/// A load that failed, and is not over.
#[derive(Debug, Clone)]
struct Remembered {
    revision: RevisionId,
    incident: Incident,
    /// Time of the last failure.
    last: Time,
}

/// A view of the fleet at one moment.
#[derive(Clone, Copy)]
pub(crate) struct FleetSnapshot<'a> {
    pub(crate) workers: &'a [WorkerView],
    /// Workers that are gone and have not said what they are.
    pub(crate) absent: &'a [AbsentWorker],
    pub(crate) deployments: &'a [KnownDeployment],
    pub(crate) secrets: &'a [WorkerSecret],
    pub(crate) refusal: Option<&'a Refusal>,
    pub(crate) applied: Option<&'a str>,
    /// The newest commit is in force, as this controller has seen for itself.
    pub(crate) synced: bool,
    /// The workers that the registry names, once a commit of it was declared in this term.
    pub(crate) named: Option<&'a BTreeSet<String>>,
}

impl IncidentTracker {
    /// Compares the fleet with what was seen before: the actual state, and the incidents that are open.
    pub(crate) fn observe(&mut self, fleet: &FleetSnapshot<'_>, now: Time) -> Observed {
        self.learn_versions(fleet.deployments);
        self.learn_failures(fleet.deployments);
        self.learn_losses(fleet);
        let mut state = ActualState { workers: Vec::with_capacity(fleet.workers.len()) };
        for worker in fleet.workers.iter().filter(|worker| !has_left(worker)) {
            let entry = self.worker(worker, fleet.deployments, now);
            state.workers.push(entry);
        }
        let seen: BTreeSet<(WorkerId, RevisionId)> =
            replicas(fleet.deployments).map(|replica| (replica.worker.clone(), replica.revision.clone())).collect();
        self.loading.retain(|key, _| seen.contains(key));
        state.workers.extend(fleet.absent.iter().map(|absent| gone(&absent.id)));
        let mut others = self.losses(fleet);
        state.workers.sort_by(|one, other| one.worker_id.cmp(&other.worker_id));
        others.extend(fleet.deployments.iter().filter_map(no_room));
        others.extend(fleet.deployments.iter().flat_map(|known| runtime_failures(known, now)));
        others.extend(secret_failures(fleet.secrets));
        self.since.retain(|subject, _| others.iter().any(|incident| incident.subject == *subject));
        for incident in &mut others {
            incident.at = *self.since.entry(incident.subject.clone()).or_insert(now);
        }
        let mut incidents: Vec<Incident> =
            self.failures.values().map(|failed| as_of(&failed.incident, &state)).collect();
        incidents.extend(others);
        incidents.extend(fleet.refusal.map(Refusal::incident));
        incidents.sort_by(|one, other| one.subject.cmp(&other.subject));
        // What is seen again is ours from now on.
        let is_seen = |subject: &Subject| incidents.iter().any(|incident| incident.subject == *subject);
        self.inherited.retain(|subject| !is_seen(subject) && !is_past(subject, fleet, now));
        Observed { state, incidents, open: self.inherited.clone(), desired: fleet.applied.map(str::to_owned) }
    }

    /// The controller before has told of these: they are open until it is known that they are over.
    pub(crate) fn inherit(&mut self, subjects: impl IntoIterator<Item = Subject>) {
        self.inherited.extend(subjects);
    }

    fn learn_versions(&mut self, deployments: &[KnownDeployment]) {
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

    fn worker(&mut self, worker: &WorkerView, deployments: &[KnownDeployment], now: Time) -> WorkerEntry {
        let id = &worker.info.id;
        let mut models = Vec::new();
        for replica in replicas(deployments).filter(|replica| replica.worker == *id) {
            models.push(self.model(replica, now));
        }
        // The worker has let go of it, and it is as wrong as before.
        for failed in
            self.failures.values().filter(|failed| failed.incident.subject.worker.as_deref() == Some(id.as_str()))
        {
            if !replicas(deployments).any(|replica| replica.worker == *id && replica.revision == failed.revision) {
                models.push(self.failed_model(failed));
            }
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
        let mut entry = entry(&replica.revision, self.version(&replica.revision));
        match (&replica.residency, dying(replica, now)) {
            // Also while it is up for a moment: that is no news.
            (_, Some(deaths)) => {
                entry.status = ModelState::Failed;
                entry.error = Some("its process dies again and again".to_owned());
                entry.failed_at = Some(stamp(deaths.at));
            }
            (Some(Residency::Ready(ready)), None) => {
                entry.status = ModelState::Ready;
                entry.loaded_at = Some(stamp(ready.since));
                entry.request_count = replica.usage.map(|usage| usage.requests);
                entry.last_inference = replica.usage.and_then(|usage| usage.last).map(stamp);
            }
            (Some(Residency::Failed(failure)), None) => {
                entry.status = ModelState::Failed;
                entry.error = Some(one_line(&failure.message));
                entry.failed_at = Some(stamp(failure.at));
                entry.retry_count = Some(failure.attempts.saturating_sub(1));
            }
            (Some(Residency::Draining { .. }), None) => entry.status = ModelState::Unloading,
            (other, None) => {
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

    fn failed_model(&self, failed: &Remembered) -> ModelEntry {
        ModelEntry {
            status: ModelState::Failed,
            error: Some(failed.incident.message.clone()),
            failed_at: Some(stamp(failed.last)),
            retry_count: Some(failed.incident.attempts.saturating_sub(1)),
            ..entry(&failed.revision, self.version(&failed.revision))
        }
    }

    fn learn_failures(&mut self, deployments: &[KnownDeployment]) {
        for known in deployments {
            let Some(status) = &known.status else { continue };
            for (revision, worker, failure) in failed(status) {
                let incident = load_failure(known, status, revision, worker, failure);
                let incident = match self.failures.get(&incident.subject) {
                    Some(before) if before.revision == *revision => incident_since(incident, &before.incident),
                    _ => incident,
                };
                let subject = incident.subject.clone();
                let remembered = Remembered { revision: revision.clone(), incident, last: failure.at };
                self.failures.insert(subject, remembered);
            }
        }
        self.failures.retain(|subject, failed| {
            let worker = subject.worker.as_deref().unwrap_or_default();
            deployments
                .iter()
                .filter_map(|known| known.status.as_ref())
                .any(|status| status.wanted == failed.revision && !is_over(status, &failed.revision, worker))
        });
    }

    fn learn_losses(&mut self, fleet: &FleetSnapshot<'_>) {
        for replica in replicas(fleet.deployments).filter(|replica| replica.lost) {
            let bereft = self.bereft.entry(replica.worker.clone()).or_default();
            bereft.insert(replica.revision.deployment().clone());
        }
        let is_lost = |id: &WorkerId| lost_ones(fleet).any(|worker| worker.info.id == *id);
        self.bereft.retain(|worker, _| is_lost(worker));
    }

    fn losses(&self, fleet: &FleetSnapshot<'_>) -> Vec<Incident> {
        let heard = lost_ones(fleet).map(|worker| {
            let id = &worker.info.id;
            lost(id, worker.reported, self.bereft.get(id), fleet.deployments)
        });
        let unheard = fleet.absent.iter().map(|absent| lost(&absent.id, None, Some(&absent.held), fleet.deployments));
        heard.chain(unheard).collect()
    }
}

fn lost_ones<'a>(fleet: &FleetSnapshot<'a>) -> impl Iterator<Item = &'a WorkerView> {
    fleet.workers.iter().filter(|worker| worker.state == WorkerState::Lost && !has_left(worker))
}

/// True if nobody misses the worker: it announced its leaving, or the registry does not let it in, and it is assigned
/// nothing any more.
fn has_left(worker: &WorkerView) -> bool {
    worker.state == WorkerState::Lost && (worker.leaving || worker.unlisted) && worker.assigned == 0
}

/// The entry of a worker that is gone, and of which nothing else is known.
fn gone(id: &WorkerId) -> WorkerEntry {
    WorkerEntry {
        worker_id: id.to_string(),
        status: WorkerHealth::Failed,
        last_heartbeat: None,
        capacity: CapacityUsed { used_memory: memory(0), used_cpu: 0.0, loaded_models: 0 },
        models: Vec::new(),
    }
}

/// An entry that says nothing yet.
fn entry(revision: &RevisionId, version: String) -> ModelEntry {
    ModelEntry::new(revision.deployment().to_string(), version, ModelState::Loading)
}

/// The replicas of all deployments.
pub(crate) fn replicas(deployments: &[KnownDeployment]) -> impl Iterator<Item = &ReplicaStatus> {
    deployments.iter().filter_map(|known| known.status.as_ref()).flat_map(|status| &status.replicas)
}

#[cfg(test)]
mod tests;
