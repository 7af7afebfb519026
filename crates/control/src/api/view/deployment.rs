//! Deployments and their status.

use berth_spec::{
    Deployment, DeploymentName, Failure, Residency, Time,
    residency::Deaths,
    status::{Condition, Phase, ReplicaStatus, Status},
};
use berth_wire::api::{
    AttemptView, ConditionView, DeploymentMetadata, DeploymentStatus, DeploymentView, FailureView, Metadata,
    PastGeneration, Progress, ReplicaCount, ReplicaDetail, RevisionPair, RolloutHistory, Timestamp,
};
use serde_json::Value;

use super::{annotations, head};
use crate::{handle, store::Rev};

/// A deployment: what was declared as it was written, and what is true of it.
pub(crate) fn deployment(view: &handle::DeploymentView) -> DeploymentView {
    let (api_version, kind) = head::<DeploymentView>();
    let deployment = &view.deployment;
    DeploymentView {
        api_version,
        kind,
        metadata: DeploymentMetadata {
            name: deployment.name.name().to_owned(),
            namespace: deployment.name.namespace().to_owned(),
            labels: (*deployment.labels).clone(),
            annotations: annotations(&view.manifest),
            base_uri: view.base.clone(),
            generation: deployment.generation.0,
            resource_version: view.rev.to_string(),
            creation_timestamp: Some(Timestamp(deployment.created)),
            origin: deployment.origin.to_string(),
            deleting: deployment.deleting,
        },
        spec: view.manifest.get("spec").cloned().unwrap_or_default(),
        status: view.status.as_ref().map_or_else(|| undecided(deployment), status),
    }
}

/// The generations that were replaced, each with a manifest that can be applied again.
pub(crate) fn history(name: &DeploymentName, past: Vec<handle::Replaced>) -> RolloutHistory {
    let (api_version, kind) = head::<RolloutHistory>();
    let item = |past: handle::Replaced| {
        let mut manifest = past.manifest;
        if let (Some(base), Some(metadata)) = (past.base, manifest.get_mut("metadata").and_then(Value::as_object_mut)) {
            metadata.insert("baseUri".to_owned(), base.into());
        }
        PastGeneration {
            generation: past.generation,
            revision: past.revision,
            origin: past.origin,
            replaced_at: Timestamp(Time(past.at)),
            manifest,
        }
    };
    RolloutHistory {
        api_version,
        kind,
        metadata: Metadata::named(name.to_string()),
        items: past.into_iter().map(item).collect(),
    }
}

/// Remainder of a deleted deployment: its name and the version of the deletion.
pub(crate) fn gone(name: &DeploymentName, rev: Rev) -> DeploymentView {
    let (api_version, kind) = head::<DeploymentView>();
    let metadata = DeploymentMetadata {
        name: name.name().to_owned(),
        namespace: name.namespace().to_owned(),
        resource_version: rev.to_string(),
        deleting: true,
        ..DeploymentMetadata::default()
    };
    let status = DeploymentStatus { phase: Phase::Terminating.as_str().to_owned(), ..DeploymentStatus::default() };
    DeploymentView { api_version, kind, metadata, spec: Value::Object(serde_json::Map::new()), status }
}

/// The phase in one word; what was declared a moment ago is on its way.
pub(crate) fn phase(status: Option<&Status>) -> &'static str {
    status.map_or(Phase::Progressing, |status| status.phase).as_str()
}

/// Declared a moment ago: the controller has not looked at it.
fn undecided(deployment: &Deployment) -> DeploymentStatus {
    DeploymentStatus {
        phase: phase(None).to_owned(),
        replicas: ReplicaCount { desired: deployment.spec.replicas.min, ready: 0 },
        revision: RevisionPair { wanted: deployment.revision_id().to_string(), serving: None },
        ..DeploymentStatus::default()
    }
}

fn status(status: &Status) -> DeploymentStatus {
    DeploymentStatus {
        phase: status.phase.as_str().to_owned(),
        observed_generation: status.observed_generation.0,
        conditions: status.conditions.iter().map(condition).collect(),
        replicas: ReplicaCount { desired: status.desired, ready: status.ready },
        revision: RevisionPair {
            wanted: status.wanted.to_string(),
            serving: status.serving.as_ref().map(ToString::to_string),
        },
        replica_details: status.replicas.iter().map(detail).collect(),
        last_used: status.last_used.filter(|at| at.0 > 0).map(Timestamp),
    }
}

pub(super) fn condition(condition: &Condition) -> ConditionView {
    ConditionView {
        kind: condition.kind.to_owned(),
        status: condition.status.as_str().to_owned(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
    }
}

/// Bytes of memory of a replica: measured where it is ready, else what is set aside.
pub(crate) fn replica_memory(replica: &ReplicaStatus) -> u64 {
    match &replica.residency {
        Some(Residency::Ready(ready)) => ready.memory.0,
        _ => replica.claim.0,
    }
}

fn detail(replica: &ReplicaStatus) -> ReplicaDetail {
    let said = ResidencyText::of(replica.residency.as_ref(), replica.lost);
    ReplicaDetail {
        revision: replica.revision.to_string(),
        worker: replica.worker.to_string(),
        state: said.state.to_owned(),
        memory: said.memory.unwrap_or(replica.claim.0),
        measured: said.measured,
        message: replica.waits.clone().unwrap_or(said.message),
        progress: said.progress,
        failure: match &replica.residency {
            Some(Residency::Failed(failed)) if !replica.lost => Some(failure(failed)),
            _ => None,
        },
        requests: replica.usage.map(|usage| usage.requests),
        last_used: replica.usage.and_then(|usage| usage.last).map(Timestamp),
    }
}

fn failure(failure: &Failure) -> FailureView {
    let history = failure.history.iter().map(|attempt| AttemptView {
        at: Timestamp(attempt.at),
        category: attempt.category.as_str().to_owned(),
        message: attempt.message.clone(),
    });
    FailureView {
        category: failure.category.as_str().to_owned(),
        message: failure.message.clone(),
        attempts: failure.attempts,
        at: Timestamp(failure.at),
        retry_at: failure.retry_at.map(Timestamp),
        trace: failure.trace.as_deref().map(str::to_owned),
        history: history.collect(),
    }
}

fn died(deaths: &Deaths) -> String {
    let Deaths { count, in_a_row, at, cause, again_at } = deaths;
    let now = match again_at {
        None => "it is up again".to_owned(),
        Some(at) => format!("it is down and starts again at {at}"),
    };
    let times = if *count == 1 { "once".to_owned() } else { format!("{count} times, {in_a_row} in a row") };
    format!("its process died {times}, last at {at}: {cause}; {now}")
}

/// A replica's residency in words: state, message, and memory.
pub(super) struct ResidencyText {
    pub(super) state: &'static str,
    pub(super) message: String,
    pub(super) progress: Option<Progress>,
    /// Bytes, where it is ready.
    pub(super) memory: Option<u64>,
    pub(super) measured: bool,
}

impl ResidencyText {
    /// Text for a residency. The state of a lost worker's replicas is unknown, so their memory does not count.
    pub(super) fn of(residency: Option<&Residency>, lost: bool) -> Self {
        let said = Self::last(residency);
        if !lost {
            return said;
        }
        let message = match residency {
            Some(_) => format!("its worker is lost and last said {}", said.state),
            None => "its worker is lost and had not reported it".to_owned(),
        };
        Self { state: "Unknown", message, progress: None, ..said }
    }

    fn last(residency: Option<&Residency>) -> Self {
        let mut said = Self {
            state: residency.map_or("Assigned", Residency::as_str),
            message: String::new(),
            progress: None,
            memory: None,
            measured: false,
        };
        match residency {
            None => said.message = "the worker has not reported it yet".to_owned(),
            Some(Residency::Fetching { done, total }) => {
                said.progress = Some(Progress { done: done.0, total: total.map(|total| total.0) });
            }
            Some(Residency::Ready(ready)) => {
                let deaths = ready.deaths.as_deref().map(died);
                let unvalidated = ready.unvalidated.as_ref().map(|why| format!("not validated: {why}"));
                let told = ready.note.iter().chain(&unvalidated).chain(&deaths);
                said.message = told.map(String::as_str).collect::<Vec<_>>().join("; ");
                said.memory = Some(ready.memory.0);
                said.measured = ready.measured;
            }
            Some(Residency::Draining { since, in_flight }) => {
                said.message = format!("{in_flight} requests in flight, draining since {since}");
            }
            Some(Residency::Failed(failure)) => {
                let again = match failure.retry_at {
                    Some(at) => format!("tried again at {at}"),
                    None => "not tried again by itself".to_owned(),
                };
                said.message = format!(
                    "{} ({}, attempt {}, {again})",
                    failure.message,
                    failure.category.as_str(),
                    failure.attempts
                );
            }
            Some(Residency::Preparing(step)) => said.message = step.to_string(),
            Some(Residency::Queued | Residency::Loading | Residency::Validating) => {}
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_spec::{
        ByteSize, Digest, FailureCategory, Time,
        residency::{Phases, Preparing, Ready},
    };

    use super::*;

    #[test]
    fn replicas_in_words() {
        let failed = Failure {
            category: FailureCategory::Network,
            message: "the store did not answer".into(),
            attempts: 2,
            at: Time(1),
            retry_at: Some(Time(1_000_000_000)),
            trace: None,
            history: Vec::new(),
            needs: None,
        };
        let deaths =
            Deaths { count: 3, in_a_row: 2, at: Time(0), cause: "it ended with code 3".to_owned(), again_at: None };
        let died = Ready {
            since: Time(0),
            memory: ByteSize(1),
            measured: true,
            digest: Digest([0; 32]),
            signature: None,
            devices: Vec::new(),
            phases: Phases::default(),
            note: Some("batching is off".to_owned()),
            unvalidated: None,
            deaths: Some(Arc::new(deaths.clone())),
        };
        let down = Deaths { again_at: Some(Time(1_500_000_000)), ..deaths };
        let down = Ready { note: None, deaths: Some(Arc::new(down)), ..died.clone() };
        let fetching = Residency::Fetching { done: ByteSize(1), total: Some(ByteSize(4)) };
        let activity = "downloading torch (2.3GiB), of 23 packages";
        let installing = Residency::Preparing(Preparing::Environment(Some(activity.into())));
        for (residency, state, message) in [
            (None, "Assigned", "the worker has not reported it yet"),
            (Some(Residency::Queued), "Queued", ""),
            (Some(fetching.clone()), "Fetching", ""),
            (Some(Residency::Preparing(Preparing::SystemPackages)), "Preparing", "system packages"),
            (Some(installing), "Preparing", activity),
            (
                Some(Residency::Ready(Arc::new(died))),
                "Ready",
                "batching is off; its process died 3 times, 2 in a row, last at 1970-01-01T00:00:00.000Z: it ended with \
                 code 3; it is up again",
            ),
            (
                Some(Residency::Ready(Arc::new(down))),
                "Restarting",
                "its process died 3 times, 2 in a row, last at 1970-01-01T00:00:00.000Z: it ended with code 3; it is \
                 down and starts again at 1970-01-01T00:00:01.500Z",
            ),
            (
                Some(Residency::Failed(Arc::new(failed))),
                "Failed",
                "the store did not answer (network, attempt 2, tried again at 1970-01-01T00:00:01.000Z)",
            ),
        ] {
            let said = ResidencyText::of(residency.as_ref(), false);
            assert_eq!((said.state, said.message.as_str()), (state, message));
        }
        assert_eq!(ResidencyText::of(Some(&fetching), false).progress, Some(Progress { done: 1, total: Some(4) }));
        for (residency, message) in [
            (Some(fetching), "its worker is lost and last said Fetching"),
            (None, "its worker is lost and had not reported it"),
        ] {
            let said = ResidencyText::of(residency.as_ref(), true);
            assert_eq!((said.state, said.message.as_str(), said.progress), ("Unknown", message, None));
        }
    }
}
