//! Answers of the control API: from the JSON shapes to messages. Field by field, so that a field that is added to one
//! and forgotten in the other shows here.

use super::{spec, v1};
use crate::api;

impl From<api::DeploymentView> for v1::Deployment {
    fn from(view: api::DeploymentView) -> Self {
        Self {
            spec: Some(spec::typed(&view.spec)),
            spec_json: view.spec.to_string(),
            metadata: Some(view.metadata.into()),
            status: Some(view.status.into()),
        }
    }
}

impl From<api::DeploymentMetadata> for v1::Metadata {
    fn from(view: api::DeploymentMetadata) -> Self {
        Self {
            name: view.name,
            labels: view.labels.into_iter().collect(),
            annotations: view.annotations.into_iter().collect(),
            generation: view.generation,
            resource_version: view.resource_version,
            creation_timestamp: view.creation_timestamp.map(String::from).unwrap_or_default(),
            origin: view.origin,
            deleting: view.deleting,
        }
    }
}

impl From<api::DeploymentStatus> for v1::DeploymentStatus {
    fn from(view: api::DeploymentStatus) -> Self {
        Self {
            phase: view.phase,
            observed_generation: view.observed_generation,
            conditions: all(view.conditions),
            desired_replicas: view.replicas.desired,
            ready_replicas: view.replicas.ready,
            wanted_revision: view.revision.wanted,
            serving_revision: view.revision.serving,
            replicas: all(view.replica_details),
            last_used: view.last_used.map(String::from),
        }
    }
}

impl From<api::ConditionView> for v1::Condition {
    fn from(view: api::ConditionView) -> Self {
        Self { r#type: view.kind, status: view.status, reason: view.reason, message: view.message }
    }
}

impl From<api::ReplicaDetail> for v1::Replica {
    fn from(view: api::ReplicaDetail) -> Self {
        Self {
            revision: view.revision,
            worker: view.worker,
            state: view.state,
            memory: view.memory,
            measured: view.measured,
            message: view.message,
            fetched: view.progress.map(|progress| progress.done),
            fetch_total: view.progress.and_then(|progress| progress.total),
            failure: view.failure.map(Into::into),
            requests: view.requests,
            last_used: view.last_used.map(String::from),
        }
    }
}

impl From<api::FailureView> for v1::LoadFailure {
    fn from(view: api::FailureView) -> Self {
        Self {
            category: view.category,
            message: view.message,
            attempts: view.attempts,
            at: view.at.into(),
            retry_at: view.retry_at.map(String::from),
            trace: view.trace,
            history: all(view.history),
        }
    }
}

impl From<api::AttemptView> for v1::LoadAttempt {
    fn from(view: api::AttemptView) -> Self {
        Self { at: view.at.into(), category: view.category, message: view.message }
    }
}

impl From<api::EvictionView> for v1::Eviction {
    fn from(view: api::EvictionView) -> Self {
        Self { at: view.at.into(), revision: view.revision, worker: view.worker, room_for: view.room_for }
    }
}

impl From<api::WorkerView> for v1::Worker {
    fn from(view: api::WorkerView) -> Self {
        Self {
            name: view.metadata.name,
            labels: view.metadata.labels.into_iter().collect(),
            cordoned: view.spec.cordoned,
            state: view.status.state,
            version: view.status.version,
            incarnation: view.status.incarnation,
            cpus: view.status.cpus,
            formats: view.status.formats,
            memory: Some(view.status.memory.into()),
            models: view.status.models,
            ready: view.status.ready,
        }
    }
}

impl From<api::Memory> for v1::Memory {
    fn from(view: api::Memory) -> Self {
        Self { total: view.total, used: view.used, free: view.free }
    }
}

impl From<api::EventView> for v1::Event {
    fn from(view: api::EventView) -> Self {
        Self {
            sequence: view.metadata.name.parse().unwrap_or_default(),
            at: view.at.into(),
            severity: match view.severity {
                api::SeverityView::Normal => "Normal",
                api::SeverityView::Warning => "Warning",
            }
            .to_owned(),
            reason: view.reason,
            message: view.message,
            deployment: view.deployment,
            worker: view.worker,
        }
    }
}

impl From<api::Applied> for v1::ApplyResponse {
    fn from(view: api::Applied) -> Self {
        Self { results: all(view.results) }
    }
}

impl From<api::ApplyResult> for v1::ApplyResult {
    fn from(view: api::ApplyResult) -> Self {
        Self {
            name: view.name,
            outcome: view.outcome.as_str().to_owned(),
            generation: view.generation,
            resource_version: view.resource_version,
            warnings: view.warnings,
        }
    }
}

impl From<api::List<api::DeploymentView>> for v1::ListResponse {
    fn from(view: api::List<api::DeploymentView>) -> Self {
        Self {
            deployments: all(view.items),
            resource_version: view.metadata.resource_version,
            r#continue: view.metadata.continue_.unwrap_or_default(),
        }
    }
}

impl From<api::List<api::WorkerView>> for v1::ListWorkersResponse {
    fn from(view: api::List<api::WorkerView>) -> Self {
        Self { workers: all(view.items) }
    }
}

impl From<api::List<api::EventView>> for v1::ListEventsResponse {
    fn from(view: api::List<api::EventView>) -> Self {
        Self { events: all(view.items) }
    }
}

impl From<api::ExplainView> for v1::Explanation {
    fn from(view: api::ExplainView) -> Self {
        Self {
            name: view.metadata.name,
            phase: view.phase,
            summary: view.summary,
            revision: view.revision,
            desired: view.desired,
            need: view.need,
            need_from: view.need_from,
            workers: all(view.workers),
            conditions: all(view.conditions),
            evictions: all(view.evictions),
        }
    }
}

impl From<api::WorkerVerdict> for v1::WorkerVerdict {
    fn from(view: api::WorkerVerdict) -> Self {
        let verdict = match view.verdict {
            api::WorkerVerdictKind::Holds => v1::worker_verdict::Verdict::Holds,
            api::WorkerVerdictKind::Fits => v1::worker_verdict::Verdict::Fits,
            api::WorkerVerdictKind::Rejected => v1::worker_verdict::Verdict::Rejected,
        };
        Self {
            worker: view.worker,
            verdict: verdict.into(),
            message: view.message,
            memory: Some(view.memory.into()),
            state: view.state,
            rejection: view.rejection.map(Into::into),
            would_evict: all(view.would_evict),
            rank: view.rank,
        }
    }
}

impl From<api::Rejection> for v1::Rejection {
    fn from(view: api::Rejection) -> Self {
        Self { reason: view.reason, need: view.need, free: view.free, evictable: view.evictable }
    }
}

impl From<api::Victim> for v1::Victim {
    fn from(view: api::Victim) -> Self {
        Self { revision: view.revision }
    }
}

impl From<api::PlanView> for v1::PlanResponse {
    fn from(view: api::PlanView) -> Self {
        Self {
            documents: all(view.documents),
            steps: all(view.steps),
            memory: all(view.memory),
            unplaced: all(view.unplaced),
        }
    }
}

impl From<api::Unplaced> for v1::Unplaced {
    fn from(view: api::Unplaced) -> Self {
        Self { deployment: view.deployment, message: view.message }
    }
}

impl From<api::PlanStep> for v1::PlanStep {
    fn from(view: api::PlanStep) -> Self {
        let action = match view.action {
            api::StepKind::Evict => v1::plan_step::Action::Evict,
            api::StepKind::Unload => v1::plan_step::Action::Unload,
            api::StepKind::Reload => v1::plan_step::Action::Reload,
            api::StepKind::Load => v1::plan_step::Action::Load,
        };
        Self {
            action: action.into(),
            deployment: view.deployment,
            revision: view.revision,
            worker: view.worker,
            memory: view.memory,
            from: view.from,
        }
    }
}

impl From<api::WorkerMemoryChange> for v1::WorkerMemoryChange {
    fn from(view: api::WorkerMemoryChange) -> Self {
        Self { worker: view.worker, total: view.total, before: view.before, peak: view.peak, after: view.after }
    }
}

pub(super) fn all<From, To: std::convert::From<From>>(views: Vec<From>) -> Vec<To> {
    views.into_iter().map(To::from).collect()
}
