//! Workers, replicas, revisions.

use berth_spec::{ByteSize, Residency};
use berth_wire::api::{
    Memory, Metadata, ReplicaState, ReplicaView, RevisionState, RevisionView, Timestamp, WorkerSpec, WorkerStatus,
    WorkerView,
};

use super::{deployment::ResidencyText, head};
use crate::handle;

/// A worker with its replicas, by revision.
pub(crate) fn worker(view: &handle::WorkerView, models: Vec<String>) -> WorkerView {
    let (api_version, kind) = head::<WorkerView>();
    let info = &view.info;
    WorkerView {
        api_version,
        kind,
        metadata: Metadata { name: info.id.to_string(), labels: info.labels.clone() },
        spec: WorkerSpec { cordoned: !view.cordon.is_open() },
        status: WorkerStatus {
            state: view.state.as_str().to_owned(),
            version: info.version.clone(),
            incarnation: info.incarnation,
            cpus: info.cpus,
            formats: info.formats(),
            memory: memory(info.memory, view.claimed, view.overhead),
            replicas: view.assigned,
            ready: view.ready,
            models,
        },
    }
}

/// Memory of a worker. `free` is what the planner finds free.
pub(crate) fn memory(total: ByteSize, used: ByteSize, overhead: ByteSize) -> Memory {
    Memory { total: total.0, used: used.0, overhead: overhead.0, free: (total - used - overhead).0 }
}

/// Memory of a replica in bytes: measured where it is ready, else what is set aside.
pub(crate) fn held_memory(view: &handle::ReplicaView) -> u64 {
    match &view.residency {
        Some(Residency::Ready(ready)) => ready.memory.0,
        _ => view.claim.unwrap_or_default().0,
    }
}

/// Converts a replica.
pub(crate) fn replica(view: &handle::ReplicaView) -> ReplicaView {
    let (api_version, kind) = head::<ReplicaView>();
    let said = ResidencyText::of(view.residency.as_ref(), view.lost);
    let ready_since = match &view.residency {
        Some(Residency::Ready(ready)) if ready.is_up() && !view.lost => Some(Timestamp(ready.since)),
        _ => None,
    };
    ReplicaView {
        api_version,
        kind,
        metadata: Metadata::named(format!("{}/{}", view.revision, view.worker)),
        status: ReplicaState {
            deployment: view.revision.deployment().to_string(),
            revision: view.revision.to_string(),
            version: view.version.clone().unwrap_or_default(),
            worker: view.worker.to_string(),
            state: said.state.to_owned(),
            memory: held_memory(view),
            measured: said.measured,
            message: view.waits.clone().unwrap_or(said.message),
            progress: said.progress,
            ready_since,
        },
    }
}

/// Converts a revision.
pub(crate) fn revision(view: &handle::RevisionView) -> RevisionView {
    let (api_version, kind) = head::<RevisionView>();
    RevisionView {
        api_version,
        kind,
        metadata: Metadata::named(view.id.to_string()),
        status: RevisionState {
            deployment: view.id.deployment().to_string(),
            version: view.version.clone(),
            uri: view.uri.clone(),
            sha256: view.digest.map(|digest| digest.to_string()),
            wanted: view.wanted,
            serving: view.serving,
            replicas: view.replicas,
            ready: view.ready,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_process_takes_is_not_free() {
        let free = |used, overhead| memory(ByteSize(8), ByteSize(used), ByteSize(overhead)).free;
        assert_eq!([free(3, 0), free(3, 4), free(6, 4)], [5, 1, 0]);
    }
}
