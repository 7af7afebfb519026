//! What the agent does next: a survey of its replicas, put in order, and started.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use berth_spec::{ByteSize, FailureCategory, PinnedCard, RevisionId, Time, worker::DependencyKind};

use super::{Agent, Effect, hosts};
use crate::{
    fault::Fault,
    gpu::{self, Held},
    order::{self, Busy, Limits, ModelKey, SharedLoad, Start, Waiting, Want},
    prepare::BlockedDependencies,
    replica::{Input, Replica, State},
};

impl Agent {
    /// The memory that is held: resident, being loaded, draining or being unloaded. Shared weights count once.
    #[must_use]
    pub fn held(&self) -> ByteSize {
        let holding = self.replicas.iter().filter(|(_, replica)| replica.held() > ByteSize::ZERO);
        let holding: Vec<_> = holding.collect();
        // Only replicas of one deployment share, and those lie side by side.
        holding.chunk_by(|a, b| a.0.deployment() == b.0.deployment()).map(held_by_deployment).sum()
    }

    /// What it keeps to: the tighter of its own limits and the registry's.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let told = self.told_limits;
        Limits {
            memory: told.memory.map_or(self.limits.memory, |memory| memory.min(self.limits.memory)),
            models: [told.models, self.limits.models].into_iter().flatten().min(),
            ..self.limits
        }
    }

    pub(super) fn start_work(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.stopping {
            return;
        }
        let (waiting, busy) = self.survey();
        if waiting.is_empty() {
            return;
        }
        for start in order::next(waiting, busy, &self.limits()) {
            match start {
                Start::Prepare(revision) => self.start_prepare(&revision, now, effects),
                Start::Fetch(revision) => self.start_fetch(&revision, now, effects),
                Start::Load(revision) => self.start_load(&revision, now, effects),
                Start::Refuse { revision, need, free } => self.refuse(&revision, need, free, now, effects),
            }
        }
    }

    fn survey(&self) -> (Vec<Waiting>, Busy) {
        let mut busy = Busy { held: self.held(), ..Busy::default() };
        let mut waiting = Vec::new();
        for (id, replica) in &self.replicas {
            let leaves_with_gpus = !replica.wanted && replica.placed.gpu.is_some();
            let want = match replica.state() {
                State::Queued if replica.placed.revision.card.is_some() => Want::Prepare,
                State::Preparing(_) => {
                    busy.preparing += 1;
                    continue;
                }
                State::Queued | State::Prepared => Want::Fetch { uri: replica.placed.revision.uri.clone() },
                State::Fetched(artifact) | State::Refused(artifact, _) => {
                    let shared =
                        self.shared_loads(id, replica).map(|(_, shared)| shared).max().unwrap_or(SharedLoad::Absent);
                    let key = ModelKey::of(&replica.placed.revision, &artifact.digest);
                    Want::Load { claim: replica.placed.claim, gpus: replica.placed.gpu.is_some(), key, shared }
                }
                State::Fetching { .. } => {
                    busy.fetching.insert(replica.placed.revision.uri.clone());
                    continue;
                }
                State::Loading(_) | State::Validating(..) => {
                    busy.loading += 1;
                    busy.models += 1;
                    busy.freeing |= !replica.wanted;
                    busy.freeing_gpus |= leaves_with_gpus;
                    continue;
                }
                State::Draining { .. } | State::Unloading { .. } => {
                    busy.models += 1;
                    busy.freeing = true;
                    busy.freeing_gpus |= leaves_with_gpus;
                    continue;
                }
                State::Ready(_) => {
                    busy.models += 1;
                    continue;
                }
                State::Failed(_) => continue,
            };
            let (urgent, arrival) = (replica.placed.urgent, replica.arrival);
            waiting.push(Waiting { revision: id.clone(), urgent, arrival, want });
        }
        (waiting, busy)
    }

    /// Steps one to three of a load: whether this worker can at all, before anything is fetched for it.
    fn start_prepare(&mut self, id: &RevisionId, now: Time, effects: &mut Vec<Effect>) {
        let Some(replica) = self.replicas.get(id) else { return };
        let Some(card) = replica.placed.revision.card.clone() else { return };
        if let Some(fault) = self.cannot(&card, id) {
            return self.step(id, Input::Fail(fault), now, effects);
        }
        let git = self.replicas.get(id).and_then(hosts::git);
        let blocked = BlockedDependencies {
            git: git.and_then(|host| self.breakers.admit(&host, now).err()),
            packages: self.breakers.admit_kind(DependencyKind::Packages, now).err(),
        };
        self.tickets += 1;
        if let Some(replica) = self.replicas.get_mut(id) {
            replica.ticket = self.tickets;
        }
        self.step(id, Input::Prepare(blocked), now, effects);
    }

    /// Why this worker cannot load a card, whatever becomes free.
    fn cannot(&self, card: &PinnedCard, id: &RevisionId) -> Option<Fault> {
        let version = &card.card.schema_version;
        if !self.reads.contains(version) {
            let reads = self.reads.join(", ");
            let message = format!(
                "the card is of schema version {version}, and this worker reads {reads}: give the model another worker, \
                 upgrade this one, or write the card in a version that it reads"
            );
            return Some(Fault::new(FailureCategory::Schema, message));
        }
        let claim = self.replicas.get(id).map_or(ByteSize::ZERO, |replica| replica.placed.claim);
        let memory = self.limits().memory;
        (claim > memory).then(|| {
            let message = format!(
                "needs {claim} of memory, and models may take {memory} on this worker: give the worker more ({}), or \
                 declare what it really needs (resources.memory)",
                self.memory_is_said_by()
            );
            Fault::new(FailureCategory::Memory, message)
        })
    }

    /// Where people say how much memory there is for models.
    fn memory_is_said_by(&self) -> &'static str {
        if self.limits().memory < self.limits.memory { "max_memory in the registry" } else { "--memory" }
    }

    fn start_fetch(&mut self, revision: &RevisionId, now: Time, effects: &mut Vec<Effect>) {
        let Some(replica) = self.replicas.get_mut(revision) else { return };
        if let Some(store) = hosts::store(replica)
            && let Err(until) = self.breakers.admit(&store, now)
        {
            return self.step(revision, Input::hold_off(&store, until), now, effects);
        }
        self.tickets += 1;
        replica.ticket = self.tickets;
        self.step(revision, Input::Fetch, now, effects);
    }

    /// Gives a replica its GPUs and begins its load.
    fn start_load(&mut self, id: &RevisionId, now: Time, effects: &mut Vec<Effect>) {
        match self.devices_for(id) {
            Ok(devices) => {
                if let Some(replica) = self.replicas.get_mut(id) {
                    replica.devices = devices;
                }
                self.step(id, Input::Load, now, effects);
            }
            Err(why) if !matches!(self.replicas.get(id).map(Replica::state), Some(State::Refused(..))) => {
                self.step(id, Input::Refuse(Fault::new(FailureCategory::Memory, why)), now, effects);
            }
            Err(_) => {}
        }
    }

    /// The GPUs for a replica; those that it shares with another one, where it shares that one's model.
    fn devices_for(&self, id: &RevisionId) -> Result<Vec<Arc<str>>, String> {
        let Some(replica) = self.replicas.get(id) else { return Ok(Vec::new()) };
        let Some(need) = replica.placed.gpu.as_ref().filter(|_| !self.gpus.is_empty()) else { return Ok(Vec::new()) };
        if let Some((source, _)) = self.shared_loads(id, replica).find(|(_, shared)| *shared == SharedLoad::Loaded) {
            return Ok(self.replicas[source].devices.clone());
        }
        let holding = self.replicas.iter().filter(|(other, replica)| *other != id && replica.holds_devices());
        let held: Vec<Held<'_>> = holding.map(|(id, replica)| (id, replica.devices.as_slice())).collect();
        gpu::assign(&self.gpus, need, &held)
    }

    fn refuse(&mut self, id: &RevisionId, need: ByteSize, free: ByteSize, now: Time, effects: &mut Vec<Effect>) {
        // One that was refused already stays so until its next attempt is due.
        let again = !matches!(self.replicas.get(id).map(Replica::state), Some(State::Refused(..)));
        if again {
            let message = format!(
                "needs {need} of memory and {free} of {} is free: unload others, give the worker more ({}), or \
                 declare what it really needs (spec.resources.memory)",
                self.limits().memory,
                self.memory_is_said_by()
            );
            self.step(id, Input::Refuse(Fault::new(FailureCategory::Memory, message)), now, effects);
        }
    }

    /// The other replicas of the same model that have it in memory or are getting it there. They lie beside it in the
    /// map: only replicas of one deployment share.
    pub(super) fn shared_loads<'a>(
        &'a self,
        id: &'a RevisionId,
        of: &'a Replica,
    ) -> impl Iterator<Item = (&'a RevisionId, SharedLoad)> {
        let key = of.digest().map(|digest| (digest, ModelKey::of(&of.placed.revision, &digest)));
        let sibling = |(other, _): &(&RevisionId, &Replica)| other.deployment() == id.deployment();
        let before = self.replicas.range(..id).rev().take_while(sibling);
        let after = self.replicas.range((Bound::Excluded(id), Bound::Unbounded)).take_while(sibling);
        before.chain(after).filter_map(move |(other, replica)| {
            let (digest, key) = key.as_ref()?;
            let standing = match replica.state() {
                State::Ready(_) | State::Draining { .. } => SharedLoad::Loaded,
                State::Loading(_) | State::Validating(..) | State::Unloading { .. } => SharedLoad::OnItsWay,
                State::Queued
                | State::Preparing(_)
                | State::Prepared
                | State::Fetching { .. }
                | State::Fetched(_)
                | State::Refused(..)
                | State::Failed(_) => {
                    return None;
                }
            };
            let same = replica.digest() == Some(*digest) && ModelKey::of(&replica.placed.revision, digest) == *key;
            same.then_some((other, standing))
        })
    }
}

/// The memory of one deployment's replicas, of which those with the same model count once, with the largest word.
fn held_by_deployment(replicas: &[(&RevisionId, &Replica)]) -> ByteSize {
    if let [(_, only)] = replicas {
        return only.held();
    }
    let mut by_model: BTreeMap<_, ByteSize> = BTreeMap::new();
    for (_, replica) in replicas {
        let key = replica.digest().map(|digest| ModelKey::of(&replica.placed.revision, &digest));
        let largest = by_model.entry(key).or_default();
        *largest = replica.held().max(*largest);
    }
    by_model.into_values().sum()
}
