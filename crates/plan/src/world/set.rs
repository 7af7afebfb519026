//! Takes in the words of people, the store and gateways.

use std::{collections::BTreeSet, sync::Arc};

use berth_spec::{ByteSize, Cordon, Deployment, DeploymentName, Digest, Generation, ModelFormat, WorkerId, WorkerInfo};

use super::{Liveness, TrackedDeployment, World, apply::set_in};
use crate::{Record, TypeRules, claim::Basis};

impl World {
    /// A deployment was declared or changed.
    pub fn set_deployment(&mut self, mut deployment: Arc<Deployment>) {
        if let Some(deployment) = Arc::get_mut(&mut deployment) {
            self.sharing.share(deployment);
        }
        let name = deployment.name.clone();
        self.touch(&name);
        self.readdress(&name, Some(&deployment));
        set_in(&mut self.regional, &name, !deployment.spec.regions.is_empty());
        let Some(entry) = self.entries.get_mut(&name) else {
            self.entries.insert(name.clone(), TrackedDeployment::new(deployment));
            self.pack();
            if let Some(record) = self.orphans.remove(&name) {
                self.assign_record(&name, Some(record));
            }
            self.refresh_resident(&name);
            return;
        };
        if entry.deployment.generation != deployment.generation
            && let Some(warm) = &mut entry.warm
        {
            // Somebody changed something: what failed before may work now.
            warm.failures.clear();
            warm.learned.retain(|learned| learned.basis == Basis::Measured);
            warm.verdict = None;
        }
        self.rerank(&name, |entry| entry.declare(deployment));
        self.re_equip(&name);
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
            let deleting = Deployment { deleting: true, resource_version: 0, ..entry.deployment.as_ref().clone() };
            self.set_deployment(Arc::new(deleting));
        } else {
            self.forget(name);
        }
    }

    /// Restores the record of a deployment from the store. Deployments and records may come in any order.
    pub fn set_record(&mut self, name: DeploymentName, record: Option<Record>) {
        if let Some(record) = &record {
            self.generation = self.generation.max(record.generation);
        }
        if self.entries.contains_key(&name) {
            self.assign_record(&name, record);
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
    pub fn set_worker(&mut self, said: WorkerInfo) {
        let id = said.id.clone();
        let (info, unlisted) = (self.under_terms(&said), self.is_unlisted(&id));
        let eviction = self.terms(&id).map(|terms| terms.eviction).unwrap_or_default();
        let tracked = self.workers.get_or_insert(&id);
        if tracked.info.as_ref().is_none_or(|known| known.incarnation != info.incarnation) {
            let restarted = tracked.info.is_some();
            let held = std::mem::take(&mut tracked.inventory);
            tracked.usage.clear();
            tracked.busy.clear();
            (tracked.reported, tracked.state) = (false, berth_spec::WorkerState::Serving);
            tracked.overhead = ByteSize::ZERO;
            for revision in held.into_keys() {
                self.touch(&revision.deployment().clone());
                self.strays.remove(&(revision, id.clone()));
            }
            if restarted {
                self.end_assumption(&id);
            }
        }
        let tracked = self.workers.get_or_insert(&id);
        let may_more = tracked.info.as_ref().is_none_or(|known| {
            (known.memory, &known.labels, &known.runtimes) != (info.memory, &info.labels, &info.runtimes)
                || (known.cpus, &known.gpus, known.max_models) != (info.cpus, &info.gpus, info.max_models)
                || known.schema_versions != info.schema_versions
        });
        (tracked.info, tracked.said) = (Some(info), Some(said));
        if may_more {
            tracked.recount_claims();
        }
        (tracked.unlisted, tracked.eviction) = (unlisted, eviction);
        let before = std::mem::replace(&mut tracked.liveness, Liveness::Alive);
        self.recount_coming(&id);
        if matches!(before, Liveness::Lost { .. }) {
            self.welcome_back(&id, self.clock);
        }
        self.touch_worker(&id);
        if may_more {
            self.measure_workers();
            self.give_hope();
            self.touch_regional();
        } else {
            self.landscape_changed(&id);
        }
    }

    /// The memory to set aside for a model of which nothing is known.
    pub(crate) fn default_claim(&self, format: &ModelFormat) -> ByteSize {
        let said = self.default_claims.iter().filter(|(taken, _)| taken.takes(format)).map(|(_, size)| *size);
        said.max().unwrap_or(self.policy.default_claim)
    }

    /// Keeps `largest` and `default_claims` true, and has those looked at again that fit where they did not, or no longer
    /// do.
    pub(super) fn measure_workers(&mut self) {
        self.default_claims.clear();
        let runtimes =
            self.workers.values().filter_map(|tracked| tracked.info.as_ref()).flat_map(|info| &info.runtimes);
        for (formats, size) in runtimes.filter_map(|runtime| Some((&runtime.formats, runtime.default_size?))) {
            for taken in formats {
                match self.default_claims.iter_mut().find(|(known, _)| known == taken) {
                    Some((_, most)) => *most = size.max(*most),
                    None => self.default_claims.push((taken.clone(), size)),
                }
            }
        }
        let largest = self.workers.values().map(super::TrackedWorker::memory).max().unwrap_or_default();
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

    /// Counts the replicas of a worker as on their way again if it started anew.
    fn recount_coming(&mut self, worker: &WorkerId) {
        if let Some(tracked) = self.workers.get_mut(worker) {
            for revision in tracked.assigned.keys().cloned().collect::<Vec<_>>() {
                tracked.refresh_coming(&revision);
            }
        }
    }

    /// There may be room now for those that there was none for.
    pub(super) fn give_hope(&mut self) {
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

    /// Takes in a cordon: nothing new is put on the worker, or its replicas move away, or neither.
    pub fn set_cordon(&mut self, worker: &WorkerId, cordon: Cordon) {
        if let Some(tracked) = self.workers.get_mut(worker) {
            tracked.cordon = cordon;
            self.touch_worker(worker);
            self.landscape_changed(worker);
            self.give_hope();
        }
    }

    /// Changes the labels that models ask of their workers by their types.
    pub fn set_type_rules(&mut self, rules: TypeRules) {
        if (&self.policy.types, &self.policy.other_types) == (&rules.types, &rules.others) {
            return;
        }
        (self.policy.types, self.policy.other_types) = (rules.types, rules.others);
        self.all_dirty = true;
        self.give_hope();
    }

    /// Restores the measured memory of an artifact's content from the store.
    pub fn set_measured(&mut self, digest: Digest, memory: ByteSize) {
        self.measured.insert(digest, memory);
    }
}
