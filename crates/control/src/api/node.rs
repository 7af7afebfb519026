//! Nodes of a cluster: combines the membership with the controller's knowledge of workers.

use std::{collections::BTreeMap, sync::Arc};

use berth_plan::world::MassLoss;
use berth_spec::{Breaker, Cordon, Epoch, Health, Member, Roles, RuntimeInfo, Time, WorkerId};
use berth_wire::api::{
    API_VERSION, BreakerView, Capacity, ClusterStatus, Cpus, DrainStep, DrainView, ExpectedView, GpuView, Kind,
    MassLossView, Metadata, Models, NodeList, NodeSpec, NodeStatus, NodeView, RuntimeView, TermsView, Timestamp,
};

use super::view;
use crate::{
    controller::ExpectedWorker,
    handle::{WorkerState, WorkerView, view::Drain},
    source::SourceName,
};

/// Every member of the cluster that is known, and how it is. Called for each question, so it must not block.
pub type MembersSource = Arc<dyn Fn() -> Vec<(Arc<Member>, Health)> + Send + Sync>;

/// Source of the current leader; `None` without one. Called for each request, so it must not block.
pub type LeaderSource = Arc<dyn Fn() -> Option<Leader> + Send + Sync>;

/// The leading node and its term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Name of the leading node.
    pub name: WorkerId,
    /// Its term; `None`: it is alone, and decides always.
    pub epoch: Option<Epoch>,
}

/// Knowledge about nodes, from membership and controller.
pub(super) struct NodeInputs {
    pub(super) members: Vec<(Arc<Member>, Health)>,
    pub(super) workers: Vec<WorkerView>,
    /// Workers that sources name and that have not come, each with the source.
    pub(super) expected: Vec<(ExpectedWorker, Option<SourceName>)>,
    pub(super) leader: Option<Leader>,
    pub(super) loss: Option<MassLoss>,
}

/// Knowledge about one node: of the members, the controller, and the source that names it.
#[derive(Default)]
struct NodeRow {
    member: Option<(Arc<Member>, Health)>,
    worker: Option<WorkerView>,
    expected: Option<(ExpectedWorker, Option<SourceName>)>,
}

/// Every node, by name.
pub(super) fn nodes(known: NodeInputs, now: Time) -> NodeList {
    let NodeInputs { members, workers, expected, leader, loss } = known;
    let mut rows: BTreeMap<WorkerId, NodeRow> = BTreeMap::new();
    for worker in workers {
        let name = worker.info.id.clone();
        rows.entry(name).or_default().worker = Some(worker);
    }
    for (member, health) in members {
        let name = member.name.clone();
        rows.entry(name).or_default().member = Some((member, health));
    }
    for (worker, source) in expected {
        let name = worker.id.clone();
        rows.entry(name).or_default().expected = Some((worker, source));
    }
    rows.retain(|_, row| !row.has_gone());
    let leads = |name: &WorkerId| leader.as_ref().is_some_and(|leader| leader.name == *name);
    let items = rows.iter().map(|(name, row)| row.node(name, leads(name), now)).collect();
    let status = ClusterStatus {
        epoch: leader.as_ref().and_then(|leader| leader.epoch).map(|epoch| epoch.0),
        leader: leader.as_ref().map(|leader| leader.name.to_string()),
        mass_loss: loss.map(lost),
    };
    NodeList::of(items, status)
}

fn lost(loss: MassLoss) -> MassLossView {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    MassLossView {
        lost: count(loss.lost),
        known: count(loss.known),
        since: Timestamp(loss.since),
        until: Timestamp(loss.until),
    }
}

impl NodeRow {
    fn node(&self, name: &WorkerId, leader: bool, now: Time) -> NodeView {
        let (member, info) = (self.member.as_ref().map(|(member, _)| member), self.worker.as_ref().map(|it| &it.info));
        let expected = self.expected.as_ref().map(|(expected, _)| expected);
        let labels = info.map(|info| &info.labels).or(member.map(|member| &member.labels));
        let labels = labels.or(expected.map(|expected| &expected.terms.labels)).cloned().unwrap_or_default();
        let version = info.map(|info| &info.version).or(member.map(|member| &member.version));
        let incarnation = member.map(|member| member.incarnation).or(info.map(|info| info.incarnation));
        let only_worker = Roles { controller: false, worker: true, gateway: false };
        let roles =
            member.map_or(if self.is_only_expected() { only_worker } else { Roles::ALL }, |member| member.roles);
        let reported = self.worker.as_ref().and_then(|worker| worker.reported);
        let cordon = self.worker.as_ref().map_or(Cordon::Open, |worker| worker.cordon);
        NodeView {
            api_version: API_VERSION.to_owned(),
            kind: NodeView::KIND.to_owned(),
            spec: NodeSpec { cordon: cordon.as_str().to_owned() },
            status: NodeStatus {
                leader,
                roles: roles.to_string().split(',').map(str::to_owned).collect(),
                health: if self.is_only_expected() { String::new() } else { self.health().as_str().to_owned() },
                state: self.state().to_owned(),
                version: version.cloned().unwrap_or_default(),
                incarnation: incarnation.unwrap_or_default(),
                address: member.map(|member| member.peer.to_string()).unwrap_or_default(),
                region: labels.get(berth_spec::member::REGION).cloned(),
                zone: labels.get(berth_spec::member::ZONE).cloned(),
                capacity: self.worker.as_ref().map(capacity),
                last_seen: reported.map(Timestamp),
                last_seen_age_ms: reported.map(|at| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX)),
                message: self.message(),
                breakers: self.worker.iter().flat_map(|worker| &worker.breakers).map(breaker).collect(),
                terms: self
                    .worker
                    .as_ref()
                    .and_then(|worker| worker.terms.as_deref())
                    .or(expected.map(|expected| &*expected.terms))
                    .map(TermsView::of),
                expected: self.expected.as_ref().map(|(expected, source)| ExpectedView {
                    since: Timestamp(expected.since),
                    source: source.as_ref().map(ToString::to_string),
                }),
                credentials: self.worker.as_ref().map_or(0, |worker| worker.credentials.0),
                drain: self.worker.as_ref().and_then(|worker| worker.drain.as_ref()).map(drain),
            },
            metadata: Metadata { name: name.to_string(), labels },
        }
    }

    /// One that left is of interest only while models are still counted on it.
    fn has_gone(&self) -> bool {
        let left = matches!(self.member, Some((_, Health::Left)));
        left && self.worker.as_ref().is_none_or(|worker| worker.state == WorkerState::Lost && worker.assigned == 0)
    }

    /// Health as other nodes see it; for a single node, as the controller sees it.
    fn health(&self) -> Health {
        match (&self.member, &self.worker) {
            (Some((_, health)), _) => *health,
            (None, Some(worker)) if worker.state != WorkerState::Lost => Health::Alive,
            (None, _) => Health::Failed,
        }
    }

    /// True for a worker that a source names and that has not joined yet.
    fn is_only_expected(&self) -> bool {
        self.expected.is_some() && self.member.is_none() && self.worker.is_none()
    }

    /// Remarks beyond the state.
    fn message(&self) -> String {
        if let (Some((expected, source)), true) = (&self.expected, self.is_only_expected()) {
            let source = source.as_ref().map_or_else(|| "a source".to_owned(), |source| format!("source {source}"));
            return format!(
                "{source} names it, and it has not come since {}: start it with --name {}, or remove its file",
                expected.since, expected.id
            );
        }
        if self.worker.as_ref().is_some_and(|worker| worker.unlisted) {
            return "the registry does not name it, and lets such workers hold nothing".to_owned();
        }
        if self.worker.as_ref().is_some_and(|worker| worker.load.degraded) {
            return "degraded: more than 80 % of its memory is in use".to_owned();
        }
        String::new()
    }

    fn state(&self) -> &'static str {
        let Some(worker) = &self.worker else {
            if self.is_only_expected() {
                return "Expected";
            }
            return match &self.member {
                Some((_, Health::Failed | Health::Left)) => WorkerState::Lost.as_str(),
                // One that should hold models has not come to the controller yet.
                Some((member, _)) if member.roles.worker => WorkerState::Joining.as_str(),
                _ => WorkerState::Ready.as_str(),
            };
        };
        let left = worker.drain.as_ref().map_or(0, |drain| drain.left);
        match (worker.state, worker.leaving, worker.cordon) {
            (WorkerState::Ready, true, _) => "Leaving",
            (WorkerState::Ready, false, Cordon::Draining) if left > 0 => "Draining",
            (WorkerState::Ready, false, Cordon::Draining) => "Drained",
            (state, ..) => state.as_str(),
        }
    }
}

fn capacity(worker: &WorkerView) -> Capacity {
    let (info, load) = (&worker.info, &worker.load);
    let gpus = info.gpus.iter().enumerate().map(|(at, gpu)| {
        let busy = load.gpus.iter().find(|load| *load.id == *gpu.id);
        GpuView {
            id: gpu.id.clone(),
            kind: gpu.kind.clone(),
            memory: gpu.memory.0,
            used: worker.gpus_claimed.get(at).map_or(0, |claimed| claimed.0),
            memory_used: busy.map(|load| load.memory_used.0),
            utilization_percent: busy.map(|load| load.utilization_percent),
            revision: worker.gpus_given.get(&gpu.id).map(ToString::to_string),
        }
    });
    let [now, minute, five] = load.cpu_percent;
    Capacity {
        memory: view::memory(info.memory, worker.claimed, worker.overhead),
        machine_memory_used: load.memory_used.0,
        cpus: Cpus { total: info.cpus, used_percent: now, used_percent_1m: minute, used_percent_5m: five },
        gpus: gpus.collect(),
        models: Models { held: worker.assigned, ready: worker.ready, max: info.max_models },
        formats: info.formats(),
        runtimes: info.runtimes.iter().map(runtime).collect(),
        schema_versions: info.schema_versions.clone(),
        load_queue: load.queue,
        requests_per_minute: load.requests_per_minute,
    }
}

fn runtime(runtime: &RuntimeInfo) -> RuntimeView {
    RuntimeView {
        name: runtime.name.clone(),
        formats: runtime.formats.iter().map(ToString::to_string).collect(),
        labels: runtime.labels.clone(),
        memory: runtime.memory.map(|memory| memory.0),
        max_models: runtime.max_models,
        device_memory: runtime.device_memory.map(|memory| memory.0),
        isolation: runtime.isolation.as_ref().map(|offer| offer.most.to_string()),
        isolation_lacks: runtime.isolation.as_ref().map(|offer| offer.lacks.clone()).filter(|lacks| !lacks.is_empty()),
    }
}

fn breaker(breaker: &Breaker) -> BreakerView {
    BreakerView {
        dependency: breaker.dependency.to_string(),
        kind: breaker.kind.as_str().to_owned(),
        state: breaker.state.as_str().to_owned(),
        failures: breaker.failures,
        opened_at: breaker.opened_at.map(Timestamp),
        retry_at: breaker.retry_at.map(Timestamp),
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
