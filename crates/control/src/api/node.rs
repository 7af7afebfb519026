//! What the members of a cluster know of each other, put together with what the controller knows of workers.

use std::{collections::BTreeMap, sync::Arc};

use berth_spec::{Cordon, Epoch, Health, Member, Roles, Time, WorkerId};
use berth_wire::api::{
    API_VERSION, Capacity, ClusterStatus, Cpus, DrainStep, DrainView, GpuView, Kind, Metadata, Models, NodeList,
    NodeSpec, NodeStatus, NodeView, Timestamp,
};

use super::view;
use crate::handle::{WorkerState, WorkerView, view::Drain};

/// Every member of the cluster that is known, and how it is. Called for each question, so it must not block.
pub type MembersSource = Arc<dyn Fn() -> Vec<(Arc<Member>, Health)> + Send + Sync>;

/// Who decides now; `None`: nobody. Called for each question, so it must not block.
pub type LeaderSource = Arc<dyn Fn() -> Option<Leader> + Send + Sync>;

/// Who decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// The node.
    pub name: WorkerId,
    /// Its term; `None`: it is alone, and decides always.
    pub epoch: Option<Epoch>,
}

/// What is known of nodes, from both sides.
pub(super) struct Known {
    pub(super) members: Vec<(Arc<Member>, Health)>,
    pub(super) workers: Vec<WorkerView>,
    pub(super) leader: Option<Leader>,
}

/// Every node, by name.
pub(super) fn nodes(known: Known, now: Time) -> NodeList {
    let Known { members, workers, leader } = known;
    let mut rows: BTreeMap<WorkerId, (Option<(Arc<Member>, Health)>, Option<WorkerView>)> = BTreeMap::new();
    for worker in workers {
        let name = worker.info.id.clone();
        rows.entry(name).or_default().1 = Some(worker);
    }
    for (member, health) in members {
        let name = member.name.clone();
        // One that left is of interest only while models are still counted on it.
        if health != Health::Left || rows.contains_key(&name) {
            rows.entry(name).or_default().0 = Some((member, health));
        }
    }
    let leads = |name: &WorkerId| leader.as_ref().is_some_and(|leader| leader.name == *name);
    let items = rows.into_iter().map(|(name, (member, worker))| {
        let mut node = node(&name, member.as_ref(), worker.as_ref(), now);
        node.status.leader = leads(&name);
        node
    });
    let items = items.collect();
    let status = ClusterStatus {
        epoch: leader.as_ref().and_then(|leader| leader.epoch).map(|epoch| epoch.0),
        leader: leader.map(|leader| leader.name.to_string()),
    };
    NodeList::of(items, status)
}

fn node(name: &WorkerId, member: Option<&(Arc<Member>, Health)>, worker: Option<&WorkerView>, now: Time) -> NodeView {
    let labels = worker.map(|worker| &worker.info.labels).or(member.map(|(member, _)| &member.labels));
    let labels = labels.cloned().unwrap_or_default();
    let roles = member.map_or(Roles::ALL, |(member, _)| member.roles);
    let reported = worker.and_then(|worker| worker.reported);
    NodeView {
        api_version: API_VERSION.to_owned(),
        kind: NodeView::KIND.to_owned(),
        spec: NodeSpec { cordon: worker.map_or(Cordon::Open, |worker| worker.cordon).as_str().to_owned() },
        status: NodeStatus {
            leader: false,
            roles: roles.to_string().split(',').map(str::to_owned).collect(),
            health: health(member, worker).as_str().to_owned(),
            state: state(member, worker).to_owned(),
            version: worker
                .map(|worker| &worker.info.version)
                .or(member.map(|(member, _)| &member.version))
                .cloned()
                .unwrap_or_default(),
            incarnation: member
                .map(|(member, _)| member.incarnation)
                .or(worker.map(|worker| worker.info.incarnation))
                .unwrap_or_default(),
            address: member.map(|(member, _)| member.peer.to_string()).unwrap_or_default(),
            region: labels.get(berth_spec::member::REGION).cloned(),
            zone: labels.get(berth_spec::member::ZONE).cloned(),
            capacity: worker.map(capacity),
            last_word: reported.map(Timestamp),
            last_word_age_ms: reported.map(|at| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX)),
            drain: worker.and_then(|worker| worker.drain.as_ref()).map(drain),
        },
        metadata: Metadata { name: name.to_string(), labels },
    }
}

/// What the others think; where there are no others, what the controller thinks.
fn health(member: Option<&(Arc<Member>, Health)>, worker: Option<&WorkerView>) -> Health {
    match (member, worker) {
        (Some((_, health)), _) => *health,
        (None, Some(worker)) if worker.state != WorkerState::Lost => Health::Alive,
        (None, _) => Health::Failed,
    }
}

fn state(member: Option<&(Arc<Member>, Health)>, worker: Option<&WorkerView>) -> &'static str {
    let Some(worker) = worker else {
        return match member {
            Some((_, Health::Failed | Health::Left)) => WorkerState::Lost.as_str(),
            // One that should hold models has not come to the controller yet.
            Some((member, _)) if member.roles.worker => WorkerState::Joining.as_str(),
            _ => WorkerState::Ready.as_str(),
        };
    };
    match (worker.state, worker.leaving, worker.cordon) {
        (WorkerState::Ready, true, _) => "Leaving",
        (WorkerState::Ready, false, Cordon::Draining) => {
            if worker.drain.as_ref().is_some_and(|drain| drain.left > 0) {
                "Draining"
            } else {
                "Drained"
            }
        }
        (state, ..) => state.as_str(),
    }
}

fn capacity(worker: &WorkerView) -> Capacity {
    let (info, load) = (&worker.info, &worker.load);
    let gpus = info.gpus.iter().enumerate().map(|(at, gpu)| GpuView {
        kind: gpu.kind.clone(),
        memory: gpu.memory.0,
        used: worker.gpus_claimed.get(at).map_or(0, |claimed| claimed.0),
    });
    let [now, minute, five] = load.cpu_percent;
    Capacity {
        memory: view::memory(info.memory, worker.claimed),
        machine_memory_used: load.memory_used.0,
        cpus: Cpus { total: info.cpus, used_percent: now, used_percent_1m: minute, used_percent_5m: five },
        gpus: gpus.collect(),
        models: Models { held: worker.assigned, ready: worker.ready, max: info.max_models },
        formats: info.formats.iter().map(|format| format.as_str().to_owned()).collect(),
        load_queue: load.queue,
        requests_per_minute: load.requests_per_minute,
    }
}

fn drain(drain: &Drain) -> DrainView {
    let steps = |steps: &[(berth_spec::RevisionId, String)]| {
        let step = |(revision, message): &(berth_spec::RevisionId, String)| DrainStep {
            revision: revision.to_string(),
            message: message.clone(),
        };
        steps.iter().map(step).collect()
    };
    DrainView { left: drain.left, waiting_for: steps(&drain.waiting_for), blocked: steps(&drain.blocked) }
}
