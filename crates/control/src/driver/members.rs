//! Reports the health of worker nodes to the brain.

use std::{collections::BTreeMap, sync::Arc};

use berth_peer::{MemberTable, Members};
use berth_plan::world::TrackedWorker;
use berth_spec::{Health, WorkerId, WorkerState};
use tokio::sync::watch;

use super::{Driver, perform::last_heartbeat};
use crate::controller::Event;

/// The members with the role of a worker, as the brain was told of them.
pub(super) struct MemberSync {
    table: watch::Receiver<Arc<MemberTable>>,
    told: BTreeMap<WorkerId, Health>,
}

impl MemberSync {
    pub(super) fn new(members: &Members) -> Self {
        Self { table: members.changed(), told: BTreeMap::new() }
    }

    /// Waits until the table changes. For ever once there is no membership any more: what it said last holds.
    pub(super) async fn changed(&mut self) {
        if self.table.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Changes since the last call.
    fn news(&mut self) -> Vec<(WorkerId, Health)> {
        let table = Arc::clone(&self.table.borrow_and_update());
        let workers = table.iter().filter(|(_, (member, _))| member.roles.worker);
        let mut now: BTreeMap<WorkerId, Health> = workers.map(|(id, (_, health))| (id.clone(), *health)).collect();
        // Who is forgotten has been gone for long.
        let forgotten = self.told.keys().filter(|id| !table.contains_key(*id)).cloned();
        let forgotten: Vec<_> = forgotten.map(|id| (id, Health::Left)).collect();
        now.extend(forgotten);
        let news = now.iter().filter(|(id, health)| self.told.get(*id) != Some(*health));
        let news = news.map(|(id, health)| (id.clone(), *health)).collect();
        self.told = now;
        news
    }
}

impl Driver {
    /// Tells the brain what has changed among the members.
    pub(super) fn sync_members(&mut self) {
        let Some(member_sync) = &mut self.member_sync else { return };
        for (worker, health) in member_sync.news() {
            tracing::debug!(event = "member_told", worker_id = %worker, health = health.as_str());
            let tracked = self.brain.world().worker(&worker);
            if is_alarming(health, tracked) {
                let last_heartbeat = tracked.and_then(last_heartbeat);
                tracing::warn!(event = "worker_marked_suspect", worker_id = %worker, last_heartbeat);
            }
            let event = Event::Member { worker: worker.clone(), health };
            self.feed_about(&worker, event);
        }
    }
}

/// True for a suspicion that people are told of. A worker that said that it leaves falls silent by itself.
fn is_alarming(health: Health, tracked: Option<&TrackedWorker>) -> bool {
    health == Health::Suspect && tracked.is_none_or(|tracked| tracked.state != WorkerState::Leaving)
}

#[cfg(test)]
mod tests {
    use berth_plan::fixture::{gib, worker_id, world};

    use super::*;

    #[test]
    fn a_worker_that_leaves_is_no_suspect() {
        let (mut fixture, id) = (world().worker("a", gib(1)), worker_id("a"));
        assert!(is_alarming(Health::Suspect, fixture.world.worker(&id)) && is_alarming(Health::Suspect, None));
        assert!(!is_alarming(Health::Alive, fixture.world.worker(&id)));
        fixture.leave("a");
        assert!(fixture.world.worker(&id).is_some() && !is_alarming(Health::Suspect, fixture.world.worker(&id)));
    }
}
