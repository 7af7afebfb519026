//! Chooses the deployments to plan for, and the time.

use std::{collections::BTreeSet, time::Duration};

use berth_spec::{DeploymentName, Time};

use super::World;
use crate::Scope;

/// Deployments without a place above which they are a crowd: trying more of them with each plan would delay a miss by
/// more than some 50 ms.
const CROWD: usize = 256;

/// Interval at which a crowd is tried again, for each thousand of it: the controller spends a small share of its time
/// on it.
const CROWD_INTERVAL: Duration = Duration::from_secs(1);

impl World {
    /// Deployments that changed since the last call, and those that have to be looked at by `now`. Each is handed out
    /// once; a plan that is not committed must be made again for [`Scope::All`].
    pub fn due(&mut self, now: Time) -> Scope {
        self.clock = self.clock.max(now);
        self.end_assumptions(now);
        self.preload(now);
        let mut names = std::mem::take(&mut self.dirty);
        while self.wakes.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, name)) = self.wakes.pop_first() else { break };
            if let Some(warm) = self.entries.get_mut(&name).and_then(|entry| entry.warm.as_deref_mut()) {
                warm.wake = None;
            }
            names.insert(name);
        }
        if self.is_crowded() && now >= self.crowd_at {
            let thousands = u32::try_from(self.unplaced.len() / 1_000).unwrap_or(u32::MAX);
            self.crowd_at = now + CROWD_INTERVAL.saturating_mul(thousands.saturating_add(1));
            names.extend(self.unplaced.iter().cloned());
        }
        for name in &names {
            self.judge(name, now);
        }
        if std::mem::take(&mut self.all_dirty) { Scope::All } else { Scope::Only(names) }
    }

    /// When [`World::due`] will have something though nothing happens.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let crowd = self.is_crowded().then_some(self.crowd_at);
        self.wakes
            .first()
            .map(|(at, _)| *at)
            .into_iter()
            .chain(self.preload_at)
            .chain(self.assumed_until())
            .chain(crowd)
            .min()
    }

    /// Returns true if so many lack a place that not every plan can try them again.
    pub(crate) fn is_crowded(&self) -> bool {
        self.unplaced.len() > CROWD
    }

    /// Every deployment that has to be looked at again, the first first.
    pub(crate) fn wakes(&self) -> impl Iterator<Item = &(Time, DeploymentName)> {
        self.wakes.iter()
    }

    pub(super) fn touch(&mut self, name: &DeploymentName) {
        self.dirty.insert(name.clone());
    }

    pub(super) fn touch_each(&mut self, names: &BTreeSet<DeploymentName>) {
        self.dirty.extend(names.iter().cloned());
    }

    /// Looks at a deployment again at `at`.
    pub(super) fn set_wake(&mut self, name: &DeploymentName, at: Option<Time>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let before = entry.warm.as_ref().and_then(|warm| warm.wake);
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.wakes.remove(&(before, name.clone()));
        }
        entry.warm_mut().wake = at;
        if let Some(at) = at {
            self.wakes.insert((at, name.clone()));
        }
    }
}
