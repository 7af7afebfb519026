//! What people, the store and gateways say.

use std::{collections::BTreeSet, sync::Arc};

use berth_spec::{
    ByteSize, Cordon, Demand, Deployment, DeploymentName, Digest, GatewayId, Generation, Time, WorkerId, WorkerInfo,
};

use super::{Entry, Liveness, World, entry::Use};
use crate::{Record, claim::Basis};

impl World {
    /// A deployment was declared or changed.
    pub fn set_deployment(&mut self, mut deployment: Arc<Deployment>) {
        if let Some(deployment) = Arc::get_mut(&mut deployment) {
            self.sharing.share(&mut deployment.spec);
        }
        let name = deployment.name.clone();
        self.touch(&name);
        let Some(entry) = self.entries.get_mut(&name) else {
            self.entries.insert(name.clone(), Entry::new(deployment));
            if let Some(record) = self.orphans.remove(&name) {
                self.seat_record(&name, Some(record));
            }
            self.refresh_resident(&name);
            return;
        };
        if entry.deployment.generation != deployment.generation
            && let Some(warm) = &mut entry.warm
        {
            // Somebody changed something: what failed before may work now.
            warm.failures.clear();
            warm.learned.retain(|_, learned| learned.basis == Basis::Measured);
            warm.verdict = None;
        }
        self.rerank(&name, |entry| {
            entry.wanted = deployment.revision_id();
            entry.deployment = deployment;
        });
        self.refresh_resident(&name);
    }

    /// Forgets a deployment that was deleted and has no replicas. One that still has some is treated as `deleting`: it
    /// drains, and is [`gone`](crate::Planned::gone) after that.
    pub fn remove_deployment(&mut self, name: &DeploymentName) {
        let Some(entry) = self.entries.get(name) else {
            self.orphans.remove(name);
            return;
        };
        if entry.record().is_some() || self.held_anywhere(name) {
            let deleting = Deployment { deleting: true, ..entry.deployment.as_ref().clone() };
            self.set_deployment(Arc::new(deleting));
        } else {
            self.forget(name);
        }
    }

    /// What the store holds of a deployment, at start. Deployments and records may come in any order.
    pub fn set_record(&mut self, name: DeploymentName, record: Option<Record>) {
        if let Some(record) = &record {
            self.generation = self.generation.max(record.generation);
        }
        if self.entries.contains_key(&name) {
            self.seat_record(&name, record);
            self.refresh_resident(&name);
            self.touch(&name);
        } else if let Some(record) = record {
            self.orphans.insert(name, record);
        } else {
            self.orphans.remove(&name);
        }
    }

    /// Goes on after the last plan that was stored: the next one has a higher number, also where no record is left of it.
    pub fn resume(&mut self, last: Generation) {
        self.generation = self.generation.max(last);
    }

    /// A worker joined, came back, or started anew. Its inventory is unknown until it reports the whole of it.
    pub fn set_worker(&mut self, info: WorkerInfo) {
        let id = info.id.clone();
        let seats = self.workers.entry(id.clone()).or_default();
        if seats.info.as_ref().is_none_or(|known| known.incarnation != info.incarnation) {
            let held = std::mem::take(&mut seats.inventory);
            seats.reported = false;
            for revision in held.into_keys() {
                self.touch(&revision.deployment().clone());
                self.strays.remove(&(revision, id.clone()));
            }
        }
        let seats = self.workers.entry(id.clone()).or_default();
        let may_more = seats.info.as_ref().is_none_or(|known| {
            (known.memory, &known.labels, &known.formats) != (info.memory, &info.labels, &info.formats)
        });
        seats.info = Some(info);
        seats.liveness = Liveness::Alive;
        self.touch_worker(&id);
        if may_more {
            self.measure_workers();
            self.give_hope();
        }
    }

    /// Keeps `largest` true, and has those looked at again that fit where they did not, or no longer do.
    fn measure_workers(&mut self) {
        let largest = self.workers.values().map(super::Seats::memory).max().unwrap_or_default();
        let before = std::mem::replace(&mut self.largest, largest);
        let never = |need: ByteSize, largest: ByteSize| largest > ByteSize::ZERO && need > largest;
        let turns = |need: ByteSize| never(need, before) != never(need, largest);
        let names: BTreeSet<DeploymentName> = if before == largest {
            BTreeSet::new()
        } else {
            let entries = self.entries.iter();
            entries
                .filter(|(_, entry)| entry.deployment.spec.memory.is_some_and(turns))
                .map(|(name, _)| name.clone())
                .collect()
        };
        self.touch_each(&names);
    }

    /// There may be room now for those that there was none for.
    fn give_hope(&mut self) {
        let refused = self.refused.clone();
        for name in &refused {
            if let Some(warm) = self.entries.get_mut(name).and_then(|entry| entry.warm.as_mut())
                && warm.waiting() == 0
            {
                warm.verdict = None;
            }
        }
        self.touch_each(&refused);
    }

    /// What people say of a worker: nothing new is put there, what it holds moves away, or neither.
    pub fn set_cordon(&mut self, worker: &WorkerId, cordon: Cordon) {
        if let Some(seats) = self.workers.get_mut(worker) {
            seats.cordon = cordon;
            self.touch_worker(worker);
            self.give_hope();
        }
    }

    /// The controller lost its connection to a worker that the members see: it goes on answering.
    pub fn detach_worker(&mut self, worker: &WorkerId, now: Time) {
        if let Some(seats) = self.workers.get_mut(worker)
            && seats.liveness == Liveness::Alive
        {
            seats.liveness = Liveness::Detached { since: now };
            self.touch_worker(worker);
        }
    }

    /// A worker cannot be reached any more, by anybody.
    pub fn lose_worker(&mut self, worker: &WorkerId, now: Time) {
        if let Some(seats) = self.workers.get_mut(worker)
            && matches!(seats.liveness, Liveness::Alive | Liveness::Detached { .. })
        {
            seats.liveness = Liveness::Lost { since: now };
            self.touch_worker(worker);
        }
    }

    /// What loading an artifact took, as remembered from earlier.
    pub fn set_measured(&mut self, digest: Digest, memory: ByteSize) {
        self.measured.insert(digest, memory);
    }

    /// What a gateway saw of a deployment's use.
    pub fn demand(&mut self, gateway: GatewayId, demand: &Demand, _now: Time) {
        let name = &demand.deployment;
        let Some(entry) = self.entries.get(name) else { return };
        let moved = entry.last_used < demand.last_used;
        if moved {
            self.rerank(name, |entry| entry.last_used = demand.last_used);
        }
        let Some(entry) = self.entries.get_mut(name) else { return };
        if demand.waiting == 0 && demand.in_flight == 0 && entry.warm.is_none() {
            return;
        }
        let warm = entry.warm_mut();
        let (waiting, in_flight) = (warm.waiting(), warm.in_flight());
        let used = Use { waiting: demand.waiting, in_flight: demand.in_flight };
        if used == Use::default() {
            warm.uses.remove(&gateway);
        } else {
            warm.uses.insert(gateway, used);
        }
        let released = (waiting > 0 && warm.waiting() == 0) || (in_flight > 0 && warm.in_flight() == 0);
        if demand.waiting > 0 || moved {
            warm.paged_out = false;
        }
        if demand.waiting > 0 {
            self.touch(name);
        } else if released {
            // Nobody hurries for that, but idleness counts from now, and others may want its memory.
            self.set_wake(name, Some(demand.last_used));
        }
    }

    /// A gateway is connected; `region` is its own.
    pub fn set_gateway(&mut self, gateway: GatewayId, region: Option<String>) {
        self.gateways.insert(gateway, region);
    }

    /// A gateway is gone, and with it whoever waited there.
    pub fn forget_gateway(&mut self, gateway: GatewayId) {
        self.gateways.remove(&gateway);
        let users = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.warm.as_ref().is_some_and(|warm| warm.uses.contains_key(&gateway)));
        let users: BTreeSet<DeploymentName> = users.map(|(name, _)| name.clone()).collect();
        for name in &users {
            if let Some(warm) = self.entries.get_mut(name).and_then(|entry| entry.warm.as_mut()) {
                warm.uses.remove(&gateway);
            }
        }
        self.touch_each(&users);
    }

    /// Somebody asked that an on-demand deployment be paged out now.
    pub fn page_out(&mut self, name: &DeploymentName) {
        if let Some(entry) = self.entries.get_mut(name)
            && entry.deployment.spec.replicas.on_demand()
            && entry.record().is_some()
        {
            entry.warm_mut().paged_out = true;
            self.touch(name);
        }
    }
}
