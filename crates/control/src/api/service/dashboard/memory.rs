//! Memory of every worker, with its largest replicas one by one. Pure.

use std::collections::BTreeMap;

use berth_spec::WorkerId;
use berth_wire::api::{API_VERSION, Kind, LeavesFirst, MemoryPart, Timestamp, WorkerMemory};

use super::firsts::Firsts;
use crate::{
    api::view,
    handle::{ReplicaView, WorkerView},
};

/// Most replicas of a worker one by one: narrower parts of a bar cannot be seen.
pub(crate) const MOST_PARTS: usize = 100;

/// Memory of a replica, and which. Texts are made for those that are shown.
type ReplicaMemory<'a> = (u64, &'a ReplicaView);

/// Every worker with its [`MOST_PARTS`] largest replicas.
pub(super) fn of_all(workers: &[WorkerView], replicas: &[ReplicaView]) -> Vec<WorkerMemory> {
    let mut held: BTreeMap<&WorkerId, Vec<ReplicaMemory<'_>>> = BTreeMap::new();
    for replica in replicas.iter().filter(|replica| !replica.lost) {
        held.entry(&replica.worker).or_default().push((view::held_memory(replica), replica));
    }
    workers.iter().map(|worker| of_one(worker, held.remove(&worker.info.id).unwrap_or_default())).collect()
}

fn of_one(worker: &WorkerView, parts: Vec<ReplicaMemory<'_>>) -> WorkerMemory {
    let Largest { largest, others, others_memory } = largest(parts);
    WorkerMemory {
        api_version: API_VERSION.to_owned(),
        kind: WorkerMemory::KIND.to_owned(),
        worker: worker.info.id.to_string(),
        memory: view::memory(worker.info.memory, worker.claimed, worker.overhead),
        largest,
        others,
        others_memory,
        leaves_first: worker.leaves_first.as_ref().map(|(revision, at)| LeavesFirst {
            deployment: revision.deployment().to_string(),
            last_used: (at.0 > 0).then_some(Timestamp(*at)),
        }),
    }
}

/// The largest replicas of a worker, and the sum of the others.
struct Largest {
    largest: Vec<MemoryPart>,
    others: u64,
    others_memory: u64,
}

fn largest(parts: Vec<ReplicaMemory<'_>>) -> Largest {
    let (count, sum) = (parts.len(), parts.iter().map(|(memory, _)| memory).sum::<u64>());
    let mut firsts = Firsts::new(MOST_PARTS, |a: &ReplicaMemory<'_>, b: &ReplicaMemory<'_>| {
        b.0.cmp(&a.0).then_with(|| a.1.revision.cmp(&b.1.revision))
    });
    parts.into_iter().for_each(|one| firsts.push(one));
    let largest: Vec<MemoryPart> = firsts.page(0).into_iter().map(|(memory, replica)| part(memory, replica)).collect();
    let shown: u64 = largest.iter().map(|part| part.memory).sum();
    Largest { others: (count - largest.len()) as u64, others_memory: sum - shown, largest }
}

fn part(memory: u64, replica: &ReplicaView) -> MemoryPart {
    let state = view::replica(replica).status.state;
    let (deployment, revision) = (replica.revision.deployment().to_string(), replica.revision.to_string());
    MemoryPart { deployment, revision, state, memory }
}

/// The same with fewer of them one by one.
pub(super) fn shortened(worker: &WorkerMemory, largest: usize) -> WorkerMemory {
    let mut shown = worker.clone();
    let rest = shown.largest.split_off(largest.min(shown.largest.len()));
    shown.others += rest.len() as u64;
    shown.others_memory += rest.iter().map(|part| part.memory).sum::<u64>();
    shown
}

#[cfg(test)]
mod tests {
    use berth_spec::{ByteSize, DeploymentName, RevisionId};
    use berth_wire::api::Memory;

    use super::*;

    fn replica(number: u64) -> ReplicaView {
        let name = DeploymentName::new(&format!("m{number:04}")).expect("a name");
        ReplicaView {
            revision: RevisionId::with_hash(name, [0; 6]),
            version: None,
            worker: WorkerId::new("a").expect("a name"),
            residency: None,
            lost: false,
            claim: Some(ByteSize(number)),
            waits: None,
        }
    }

    #[test]
    fn the_largest_are_told_one_by_one_and_the_rest_as_a_sum() {
        let replicas: Vec<ReplicaView> = (1..1_000).map(replica).collect();
        let parts = replicas.iter().map(|replica| (view::held_memory(replica), replica)).collect();
        let Largest { largest, others, others_memory } = largest(parts);
        assert_eq!((largest.len(), others), (MOST_PARTS, 899));
        assert_eq!((largest[0].deployment.as_str(), largest[0].memory), ("m0999", 999));
        let whole = WorkerMemory {
            api_version: API_VERSION.to_owned(),
            kind: WorkerMemory::KIND.to_owned(),
            worker: "a".to_owned(),
            memory: Memory::default(),
            largest,
            others,
            others_memory,
            leaves_first: None,
        };
        for shown in [0, 1, 24, 100] {
            let short = shortened(&whole, shown);
            let all = short.others_memory + short.largest.iter().map(|part| part.memory).sum::<u64>();
            assert_eq!((short.largest.len(), short.others, all), (shown, 999 - shown as u64, 999 * 500), "{shown}");
            assert_eq!(short.largest, whole.largest[..shown]);
        }
    }
}
