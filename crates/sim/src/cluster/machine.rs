//! Workers: what their agents hear and want, checked against what the machine really has.

use std::time::Duration;

use berth_plan::fixture;
use berth_spec::{ByteSize, DeploymentName, Residency, WorkerId};
use berth_worker::runtime::Health;

use super::{Cluster, Memory};
use crate::{
    event_queue::SimEvent,
    node::{Machine, Next},
    stream::Message,
};

impl Cluster {
    /// A worker's process begins.
    pub(super) fn boot_worker(&mut self, id: &WorkerId) {
        let Some(info) = self.infos.get(id).cloned() else { return };
        let mut machine = Machine::new(info);
        (machine.slowdown, machine.disk) = self.faults.of_machine(id);
        self.machines.insert(id.clone(), machine);
        self.look_around();
        self.seek(id);
        self.rewake(id);
    }

    /// The process of a model dies on a worker, and is up again after `away`.
    pub fn dies_there(&mut self, id: &WorkerId, name: &DeploymentName, away: Duration) {
        let (Some(process), Some(machine)) = (self.processes.get(id), self.machines.get(id)) else { return };
        let (start, clock) = (process.start, process.clock(self.now));
        let ready = machine
            .agent
            .residencies()
            .find(|(revision, residency)| revision.deployment() == name && residency.is_ready());
        let Some((revision, before)) = ready.map(|(revision, residency)| (revision.clone(), residency)) else { return };
        let told = |from: &Residency, again| match fixture::died(from, again, clock) {
            Some(Residency::Ready(ready)) => {
                Some((Health { memory: None, deaths: ready.deaths.clone(), lost: None }, Residency::Ready(ready)))
            }
            _ => None,
        };
        let Some((down, after)) = told(&before, Some(away)) else { return };
        let Some((up, _)) = told(&after, None) else { return };
        self.log(name.as_str(), &format!("its process dies on {id}"));
        let up = berth_worker::Event::Health { revision: revision.clone(), health: up };
        self.schedule(away, SimEvent::Done { worker: id.clone(), start, event: up });
        self.hear(id, berth_worker::Event::Health { revision, health: down });
    }

    /// A worker's agent hears something.
    pub(super) fn hear(&mut self, id: &WorkerId, event: berth_worker::Event) {
        let Some(process) = self.processes.get(id) else { return };
        let (start, clock) = (process.start, process.clock(self.now));
        let Some(machine) = self.machines.get_mut(id) else { return };
        let next = machine.hear(event, clock, self.now, &self.models);
        self.broken.extend(overfull(machine, self.watch.memory));
        let stopped = machine.agent.stopped();
        let done = machine.leaves && machine.agent.replicas().next().is_none();
        for next in next {
            match next {
                Next::Hear(after, event) => self.schedule(after, SimEvent::Done { worker: id.clone(), start, event }),
                Next::Report(change) => self.say_up(id, Message::Report(change)),
            }
        }
        if stopped {
            self.exit(id);
        } else if done {
            self.hear(id, berth_worker::Event::Stop);
        }
        self.rewake(id);
    }
}

/// The excess of what a machine holds over what it has.
fn overfull(machine: &Machine, memory: Memory) -> Option<String> {
    let (held, info) = (machine.really_held(), &machine.info);
    (memory == Memory::Declared && held > info.memory)
        .then(|| format!("{} really holds {held} of {}: {}", info.id, info.memory, ByteSize(held.0 - info.memory.0)))
}
