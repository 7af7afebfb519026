//! Nodes: from the JSON shapes to messages, field by field.

use super::{answer::all, v1};
use crate::api;

impl From<api::NodeList> for v1::ListNodesResponse {
    fn from(view: api::NodeList) -> Self {
        let status = view.status;
        Self {
            nodes: all(view.items),
            leader: status.leader,
            epoch: status.epoch,
            mass_loss: status.mass_loss.map(Into::into),
        }
    }
}

impl From<api::MassLossView> for v1::MassLoss {
    fn from(view: api::MassLossView) -> Self {
        Self { lost: view.lost, known: view.known, since: view.since.into(), until: view.until.into() }
    }
}

impl From<api::NodeView> for v1::Node {
    fn from(view: api::NodeView) -> Self {
        let status = view.status;
        Self {
            name: view.metadata.name,
            labels: view.metadata.labels.into_iter().collect(),
            cordon: view.spec.cordon,
            leader: status.leader,
            roles: status.roles,
            health: status.health,
            state: status.state,
            version: status.version,
            incarnation: status.incarnation,
            address: status.address,
            region: status.region,
            zone: status.zone,
            capacity: status.capacity.map(Into::into),
            last_word: status.last_word.map(String::from),
            last_word_age_ms: status.last_word_age_ms,
            drain: status.drain.map(Into::into),
            breakers: all(status.breakers),
            terms: status.terms.map(Into::into),
            credentials: status.credentials,
        }
    }
}

impl From<api::Capacity> for v1::Capacity {
    fn from(view: api::Capacity) -> Self {
        Self {
            memory: Some(view.memory.into()),
            machine_memory_used: view.machine_memory_used,
            cpus: view.cpus.total,
            cpu_percent: view.cpus.used_percent,
            cpu_percent_1m: view.cpus.used_percent_1m,
            cpu_percent_5m: view.cpus.used_percent_5m,
            gpus: all(view.gpus),
            models_held: view.models.held,
            models_ready: view.models.ready,
            models_max: view.models.max,
            formats: view.formats,
            schema_versions: view.schema_versions,
            load_queue: view.load_queue,
            requests_per_minute: view.requests_per_minute,
        }
    }
}

impl From<api::GpuView> for v1::GpuDevice {
    fn from(view: api::GpuView) -> Self {
        Self { kind: view.kind, memory: view.memory, used: view.used }
    }
}

impl From<api::DrainView> for v1::Drain {
    fn from(view: api::DrainView) -> Self {
        Self { left: view.left, waiting_for: all(view.waiting_for), blocked: all(view.blocked) }
    }
}

impl From<api::DrainStep> for v1::DrainStep {
    fn from(view: api::DrainStep) -> Self {
        Self { revision: view.revision, message: view.message }
    }
}

impl From<api::BreakerView> for v1::CircuitBreaker {
    fn from(view: api::BreakerView) -> Self {
        Self {
            dependency: view.dependency,
            kind: view.kind,
            state: view.state,
            failures: view.failures,
            opened_at: view.opened_at.map(String::from),
            retry_at: view.retry_at.map(String::from),
        }
    }
}

impl From<api::TermsView> for v1::WorkerTerms {
    fn from(view: api::TermsView) -> Self {
        Self {
            memory: view.memory,
            cpus: view.cpus,
            max_models: view.max_models,
            max_gpus: view.max_gpus,
            schema_versions: view.schema_versions,
            eviction_strategy: view.eviction_strategy,
            evicts: view.evicts,
        }
    }
}
