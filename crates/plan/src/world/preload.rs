//! Models that had to leave and may come back before anybody asks: into room that nobody uses, the last used first, a few
//! at a time, and only while nothing waits and nothing else is on its way.

use berth_spec::{ByteSize, DeploymentName, Time};

use super::World;
use crate::{Planned, claim};

impl World {
    /// Updates the list of idle-evicted deployments: a plan's victims join it, its loads leave it.
    pub(super) fn note_idle_evicted(&mut self, planned: &Planned) {
        for (name, record) in &planned.records {
            if record.is_some() {
                self.forget_idle_evicted(name);
            }
        }
        let Some(policy) = &self.policy.proactive else { return };
        let at = planned.at + policy.every;
        for (name, _) in planned.notes.iter().filter(|(_, note)| note.idle_evicted) {
            if let Some(entry) = self.entries.get(name) {
                self.idle_evicted.insert((entry.last_used, name.clone()));
                self.preload_at.get_or_insert(at);
            }
        }
    }

    /// Removes a deployment from the list: it does not come back by itself any more.
    pub(super) fn forget_idle_evicted(&mut self, name: &DeploymentName) {
        if let Some(entry) = self.entries.get(name) {
            self.idle_evicted.remove(&(entry.last_used, name.clone()));
        }
    }

    /// Sets the goal of those that come back now, and has them planned for.
    pub(super) fn preload(&mut self, now: Time) {
        let Some(policy) = self.policy.proactive.clone() else { return };
        if self.preload_at.is_none_or(|at| now < at) {
            return;
        }
        let coming = self.workers.values().any(|tracked| tracked.alive() && !tracked.coming.is_empty());
        if self.waiting.is_empty() && !coming {
            let (all, used) = self.memory();
            let mut room = all - used - ByteSize(all.0 / 100 * policy.reserve_percent);
            for _ in 0..policy.at_once {
                let Some((last_used, name)) = self.idle_evicted.pop_last() else { break };
                let Some(entry) = self.entries.get(&name) else { continue };
                let idle = entry.deployment.spec.idle_after.is_some_and(|idle| last_used + idle <= now);
                if idle || !entry.deployment.spec.replicas.on_demand() || entry.record().is_some() {
                    continue;
                }
                let (need, _) = claim::need(self, entry, &entry.deployment.revision());
                if need > room {
                    continue;
                }
                room -= need;
                self.rerank(&name, |entry| entry.warm_mut().copies.goal = 1);
                self.touch(&name);
            }
        }
        // What is tried comes back at once or not at all, so this ends.
        self.preload_at = (!self.idle_evicted.is_empty()).then(|| now + policy.every);
    }
}
