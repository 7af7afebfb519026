//! The agent's view of the hosts that it needs: the circuit breakers, and the replicas that need not wait any longer.

use berth_spec::{FailureCategory, RevisionId, Time, worker::DependencyKind};

use super::{Agent, Effect};
use crate::{
    artifacts::origin,
    breaker::Dependency,
    fault::Fault,
    prepare::git_host,
    replica::{Input, Replica, State},
};

impl Agent {
    /// Learns from a fetch how the artifact's store does. Only silence and passing faults count against it.
    pub(super) fn judge_host(&mut self, id: &RevisionId, fault: Option<&Fault>, now: Time, effects: &mut Vec<Effect>) {
        let Some(store) = self.replicas.get(id).and_then(store) else { return };
        match fault.map(|fault| fault.category) {
            Some(FailureCategory::Network | FailureCategory::Timeout) => self.breakers.failed(&store, now),
            // Said nothing about the host: the fault was on this side.
            Some(FailureCategory::Disk | FailureCategory::Internal) => {}
            _ => self.answered(&store, now, effects),
        }
    }

    /// Learns from a preparation how those do that were asked. `current`: it is of the attempt that is under way, whose
    /// probe, if it was one, is over.
    pub(super) fn record_outcomes(
        &mut self,
        id: &RevisionId,
        outcomes: &[(Dependency, bool)],
        current: bool,
        now: Time,
        effects: &mut Vec<Effect>,
    ) {
        for (dependency, answered) in outcomes {
            match answered {
                true => self.answered(dependency, now, effects),
                false => self.breakers.failed(dependency, now),
            }
        }
        if current {
            let host = self.replicas.get(id).and_then(git);
            let needed = |dependency: &Dependency| match dependency.kind() {
                DependencyKind::Git => host.as_ref() == Some(dependency),
                DependencyKind::Packages => true,
                DependencyKind::Storage => false,
            };
            let asked = |dependency: &Dependency| outcomes.iter().any(|(asked, _)| asked == dependency);
            self.breakers.unused(|dependency| needed(dependency) && !asked(dependency), now);
        }
    }

    /// Records an answer. If the breaker was open, releases the replicas that waited for it.
    fn answered(&mut self, dependency: &Dependency, now: Time, effects: &mut Vec<Effect>) {
        if !self.breakers.answered(dependency) {
            return;
        }
        let held_off = |replica: &Replica| match replica.state() {
            State::Failed(failure) => {
                failure.retry_at.is_some() && failure.category == FailureCategory::Network && needs(replica, dependency)
            }
            _ => false,
        };
        let again: Vec<_> = self.replicas.iter().filter(|(_, r)| held_off(r)).map(|(id, _)| id.clone()).collect();
        again.iter().for_each(|revision| self.step(revision, Input::Retry, now, effects));
    }
}

fn needs(replica: &Replica, dependency: &Dependency) -> bool {
    match dependency.kind() {
        DependencyKind::Storage => store(replica).as_ref() == Some(dependency),
        DependencyKind::Git => git(replica).as_ref() == Some(dependency),
        DependencyKind::Packages => replica.placed.revision.card.is_some(),
    }
}

/// The store of its artifact; `None`: on this machine.
pub(super) fn store(replica: &Replica) -> Option<Dependency> {
    origin(&replica.placed.revision.uri).as_deref().map(Dependency::storage)
}

/// The store of its code; `None`: on this machine, or it has none.
pub(super) fn git(replica: &Replica) -> Option<Dependency> {
    git_host(replica.placed.revision.card.as_ref()?)
}
