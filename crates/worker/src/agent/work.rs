//! The agent's next actions: surveys its replicas, orders the work, and starts it.

use std::{ops::Bound, sync::Arc};

use berth_spec::{ByteSize, FailureCategory, PinnedCard, RevisionId, Time, worker::DependencyKind};

use super::{Agent, Effect, hosts, of_deployment};
use crate::{
    fault::Fault,
    gpu::{self, AssignedDevices},
    order::{self, Action, Busy, ModelKey, NextStep, SharedLoad, WaitingReplica},
    prepare::BlockedDependencies,
    replica::{Input, Replica, State},
};

impl Agent {
    pub(super) fn start_work(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.stopping {
            return;
        }
        let (waiting, busy) = self.survey();
        if waiting.is_empty() {
            return;
        }
        let mut lacking = Vec::new();
        for action in order::next(waiting, busy, &self.limits()) {
            match action {
                Action::Prepare(revision) => self.start_prepare(&revision, now, effects),
                Action::Fetch(revision) => self.start_fetch(&revision, now, effects),
                Action::Load(revision) => self.start_load(&revision, now, effects),
                Action::Refuse { revision, need, free } => {
                    if let Some(refusal) = self.lacks_memory(&revision, need, free, now) {
                        self.step(&revision, refusal, now, effects);
                    }
                    lacking.push(revision);
                }
            }
        }
        self.end_waits(&lacking);
    }

    fn survey(&self) -> (Vec<WaitingReplica>, Busy) {
        let models = self.counts().ready;
        let mut busy = Busy { held: self.held(), overhead: self.overhead, models, ..Busy::default() };
        let mut waiting = Vec::new();
        let moving = self.totals.moving().filter_map(|id| self.replicas.get_key_value(id));
        for (id, replica) in moving {
            let leaves_with_gpus = !replica.wanted && replica.placed.gpu.is_some();
            let next_step = match replica.state() {
                State::Queued if replica.placed.revision.card.is_some() => NextStep::Prepare,
                State::Preparing(_) => {
                    busy.preparing += 1;
                    continue;
                }
                State::Queued | State::Prepared => NextStep::Fetch { uri: replica.placed.revision.uri.clone() },
                State::Fetched(artifact) | State::Refused(artifact, _) => {
                    let shared =
                        self.shared_loads(id, replica).map(|(_, shared)| shared).max().unwrap_or(SharedLoad::Absent);
                    let key = ModelKey::of(&replica.placed.revision, &artifact.digest);
                    NextStep::Load { claim: replica.placed.claim, gpus: replica.placed.gpu.is_some(), key, shared }
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
                    busy.unloading += self.freed_soon(id, replica);
                    continue;
                }
                // Ready, which are counted already, and failed.
                State::Ready(_) | State::Failed(_) => continue,
            };
            let (urgent, arrival) = (replica.placed.urgent, replica.arrival);
            waiting.push(WaitingReplica { revision: id.clone(), urgent, arrival, next_step });
        }
        (waiting, busy)
    }

    /// The memory that is free once a replica is unloaded, where nothing but that is left to be done. Weights that another one
    /// holds as well stay.
    fn freed_soon(&self, id: &RevisionId, replica: &Replica) -> ByteSize {
        let others = || of_deployment(&self.replicas, id.deployment()).filter(|(other, _)| *other != id);
        let alone = || others().all(|(_, other)| other.held() == ByteSize::ZERO);
        let unloads = matches!(replica.state(), State::Unloading { .. });
        if unloads && alone() { replica.held() } else { ByteSize::ZERO }
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

    /// The reason why this worker cannot load a card, whatever becomes free.
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
        let held: Vec<AssignedDevices<'_>> = holding.map(|(id, replica)| (id, replica.devices.as_slice())).collect();
        gpu::assign(&self.gpus, need, &held)
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
