//! The state of a model in ModelMesh's words, with the true state of each copy.

use std::collections::BTreeSet;

use berth_control::handle::Error;
use berth_spec::{
    Deployment, DeploymentName, FailureCategory, Residency, Time, WorkerId,
    status::{FailedLoad, Phase, ReplicaStatus, Status},
};
use berth_wire::mmesh::{
    ModelStatusInfo,
    model_status_info::{ModelCopyInfo, ModelStatus},
};

/// A model as it is now: the status in ModelMesh's words, and the numbers of copies.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelState {
    pub(crate) info: ModelStatusInfo,
    /// Copies that answer.
    pub(crate) ready: u32,
    /// Copies that are on their way.
    pub(crate) coming: u32,
    /// When the newest attempt failed, where every copy waits for a later one.
    pub(crate) held_since: Option<Time>,
}

impl ModelState {
    pub(crate) fn status(&self) -> ModelStatus {
        self.info.status()
    }

    /// The same of a model that is being loaded: it was asked for, also where no worker has begun.
    pub(crate) fn on_its_way(mut self) -> Self {
        if self.status() == ModelStatus::NotLoaded {
            self.info.set_status(ModelStatus::Loading);
        }
        self
    }

    /// The state of something that is not registered.
    pub(crate) fn not_found() -> Self {
        Self::without_copies(ModelStatusInfo::default())
    }

    /// The state of a deployment, as the control plane tells it.
    pub(crate) fn of(deployment: &Deployment, status: Option<&Status>) -> Self {
        match status {
            _ if deployment.deleting => Self::not_found(),
            Some(status) => Self::seen(status),
            // It was declared a moment ago.
            None => Self::without_copies(info(ModelStatus::NotLoaded)),
        }
    }

    /// The state of a deployment of which nothing can be told.
    pub(crate) fn unknown(error: &Error) -> Self {
        Self::without_copies(ModelStatusInfo { errors: vec![error.to_string()], ..info(ModelStatus::Unknown) })
    }

    /// The state of a model of which copies are known to answer on these workers, and nothing else.
    pub(crate) fn answering(workers: BTreeSet<WorkerId>) -> Self {
        let copy = |worker: WorkerId| ModelCopyInfo {
            location: worker.to_string(),
            copy_status: ModelStatus::Loaded.into(),
            time: 0,
        };
        let ready = u32::try_from(workers.len()).unwrap_or(u32::MAX);
        let copies = workers.into_iter().map(copy).collect();
        let info = ModelStatusInfo { model_copy_infos: copies, ..info(ModelStatus::Loaded) };
        Self { ready, ..Self::without_copies(info) }
    }

    fn without_copies(info: ModelStatusInfo) -> Self {
        Self { info, ready: 0, coming: 0, held_since: None }
    }

    fn seen(status: &Status) -> Self {
        let copies: Vec<_> = status.replicas.iter().map(|replica| (copy(replica), replica)).collect();
        let count = |wanted: ModelStatus| {
            let alike = copies.iter().filter(|(copy, replica)| copy.copy_status() == wanted && !replica.lost);
            u32::try_from(alike.count()).unwrap_or(u32::MAX)
        };
        let (ready, coming) = (count(ModelStatus::Loaded), count(ModelStatus::Loading));
        let mut errors = errors(status);
        let state = if ready > 0 {
            ModelStatus::Loaded
        } else if coming > 0 {
            ModelStatus::Loading
        } else if !errors.is_empty() {
            ModelStatus::LoadingFailed
        } else if matches!(status.phase, Phase::ScheduleFailed | Phase::Failed) {
            let said = status.conditions.iter().filter(|condition| !condition.message.is_empty());
            errors.extend(said.map(|condition| condition.message.clone()).take(1));
            ModelStatus::LoadingFailed
        } else {
            ModelStatus::NotLoaded
        };
        let mut infos: Vec<ModelCopyInfo> = copies.into_iter().map(|(copy, _)| copy).collect();
        // A copy that failed for good has left its worker; that it failed there is known still.
        let failed =
            wanted_failures(status).filter(|failed| !infos.iter().any(|copy| copy.location == failed.worker.as_str()));
        let failed: Vec<ModelCopyInfo> = failed.map(failed_copy).collect();
        infos.extend(failed);
        infos.sort_by_key(|copy| std::cmp::Reverse(copy.time));
        let info = ModelStatusInfo { errors, model_copy_infos: infos, ..info(state) };
        let held = status.replicas.iter().map(|replica| match &replica.residency {
            // One whose runtime cannot be reached goes to another worker, if there is one.
            Some(Residency::Failed(failure)) if failure.category != FailureCategory::Network => {
                failure.retry_at.map(|_| failure.at)
            }
            _ => None,
        });
        let held: Option<Vec<Time>> = held.collect();
        let held_since = match held {
            // It failed wherever it may go.
            Some(none) if none.is_empty() && status.phase == Phase::Failed => {
                wanted_failures(status).map(|failed| failed.failure.at).max()
            }
            times => times.and_then(|times| times.into_iter().max()),
        };
        Self { info, ready, coming, held_since }
    }
}

/// A status without copies.
fn info(status: ModelStatus) -> ModelStatusInfo {
    ModelStatusInfo { status: status.into(), ..ModelStatusInfo::default() }
}

fn copy(replica: &ReplicaStatus) -> ModelCopyInfo {
    let (status, since) = match &replica.residency {
        None | Some(Residency::Queued | Residency::Fetching { .. } | Residency::Preparing(_)) => {
            (ModelStatus::Loading, None)
        }
        Some(Residency::Loading | Residency::Validating) => (ModelStatus::Loading, None),
        Some(Residency::Ready(ready)) => (ModelStatus::Loaded, Some(ready.since)),
        Some(Residency::Draining { since, .. }) => (ModelStatus::NotLoaded, Some(*since)),
        Some(Residency::Failed(failure)) => (ModelStatus::LoadingFailed, Some(failure.at)),
    };
    let time = since.map_or(0, millis);
    ModelCopyInfo { location: replica.worker.to_string(), copy_status: status.into(), time }
}

/// Failed loads of the revision that is wanted.
fn wanted_failures(status: &Status) -> impl Iterator<Item = &FailedLoad> {
    status.failures.iter().filter(|failed| failed.revision == status.wanted)
}

fn failed_copy(failed: &FailedLoad) -> ModelCopyInfo {
    let (location, time) = (failed.worker.to_string(), millis(failed.failure.at));
    ModelCopyInfo { location, copy_status: ModelStatus::LoadingFailed.into(), time }
}

/// Messages of failed loads, the newest first.
fn errors(status: &Status) -> Vec<String> {
    let held = status.replicas.iter().filter_map(|replica| match &replica.residency {
        Some(Residency::Failed(failure)) => Some(failure),
        _ => None,
    });
    let mut failures: Vec<_> = wanted_failures(status).map(|failed| &failed.failure).chain(held).collect();
    failures.sort_by_key(|failure| std::cmp::Reverse(failure.at));
    let mut messages: Vec<String> = failures.into_iter().map(|failure| failure.message.clone()).collect();
    messages.dedup();
    messages
}

/// Milliseconds since the Unix epoch.
pub(crate) fn millis(time: Time) -> u64 {
    time.0 / 1_000_000
}

/// NOT_FOUND for a virtual model's target that is not registered.
pub(crate) fn missing(model: &DeploymentName) -> tonic::Status {
    tonic::Status::not_found(format!("target model {model} not found"))
}
