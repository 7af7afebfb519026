//! Taking a plan over and sending what follows from it.

use std::collections::BTreeSet;

use berth_plan::{Planned, Scope};
use berth_spec::{AssignmentChange, DeploymentName, GatewayId, RevisionId, RouteChange, Time, WorkerId};

use super::{Attached, ChangeKind, Command, CommandKind, Controller, Effect, InFlight, PlanSize, RouteRecipients};
use crate::store::Rev;

impl Controller {
    /// The plan holds: its records, if any, are stored. Workers hear of it before gateways do.
    pub(super) fn take_over(&mut self, flight: InFlight, now: Time, out: &mut Vec<Effect>) {
        let InFlight { planned, scope, covers } = flight;
        let commands: Vec<(WorkerId, Vec<Command>)> = planned
            .assignments
            .iter()
            .map(|(worker, change)| (worker.clone(), self.commands(worker, change)))
            .collect();
        self.world.commit(&planned);
        let names = planned
            .records
            .iter()
            .map(|(name, _)| name)
            .chain(planned.routes.iter().map(|route| &route.deployment))
            .chain(&planned.withdrawn);
        let mut deployment_changes: Vec<_> = names.map(|name| (name.clone(), ChangeKind::Modified)).collect();
        for name in &planned.gone {
            self.stopwatch.forget(name);
            deployment_changes.push((name.clone(), ChangeKind::Deleted));
        }
        out.push(Effect::Planned(PlanSize {
            considered: match &scope {
                Scope::All => None,
                Scope::Only(names) => Some(names.len()),
            },
            records: planned.records.len(),
            evictions: planned.events.iter().filter(|event| event.reason == "Evicted").count(),
            ages: planned
                .evicted
                .iter()
                .filter_map(|evicted| Some(planned.at.since(self.world.last_used(evicted.revision.deployment())?)))
                .collect(),
            routes: planned.routes.len(),
        }));
        let Planned { mut assignments, routes, withdrawn, gone, readiness, events, wake_at, .. } = planned;
        for (worker, commands) in commands {
            let greeted = self.workers.get(&worker).is_some_and(|attached| attached.greeted);
            if let Some(change) = assignments.remove(&worker).filter(|_| greeted) {
                out.push(Effect::SendAssignment { worker, change, commands });
            }
        }
        let waits = |attached: &Attached| attached.reported && !attached.greeted;
        let waiting: Vec<WorkerId> =
            self.workers.iter().filter(|(_, attached)| waits(attached)).map(|(id, _)| id.clone()).collect();
        for worker in waiting {
            self.greet(&worker, out);
        }
        let ready_changed = self.readiness != readiness;
        if ready_changed {
            self.readiness = readiness.clone();
            out.push(Effect::Readiness(readiness.clone()));
        }
        // What is gone has mostly been withdrawn before; a gateway that came in between may still have it.
        let unset: Vec<DeploymentName> =
            withdrawn.into_iter().chain(gone).collect::<BTreeSet<_>>().into_iter().collect();
        if ready_changed || !routes.is_empty() || !unset.is_empty() {
            let base = Some(self.route_seq);
            self.route_seq += 1;
            let change = RouteChange { seq: self.route_seq, base, set: routes, unset, aliases: Vec::new(), readiness };
            out.push(Effect::SendRoutes { to: RouteRecipients::All, change });
        }
        self.release_wanted(&scope, now);
        for gateway in std::mem::take(&mut self.unwelcomed) {
            self.welcome(gateway, now, out);
        }
        self.emptying_told(now, out);
        self.turn_away(now, out);
        out.extend(events.into_iter().map(Effect::Emit));
        // A replica that became ready makes its deployment available once the plan has switched to it.
        out.extend(self.stopwatch.stop(&self.world, &scope, now));
        if !deployment_changes.is_empty() {
            out.push(Effect::DeploymentsChanged(deployment_changes));
        }
        if let Some(at) = wake_at {
            self.due.at(at.max(now));
        }
        self.in_force(covers, out);
    }

    /// Gateways have been told all that was declared up to `rev`.
    pub(super) fn in_force(&mut self, rev: Rev, out: &mut Vec<Effect>) {
        if rev > self.in_force {
            self.in_force = rev;
            out.push(Effect::InForce(rev));
        }
    }

    /// Sends a worker everything that it should hold, what should always be resident first.
    pub(super) fn greet(&mut self, worker: &WorkerId, out: &mut Vec<Effect>) {
        let mut change = self.world.whole_assignment(worker);
        let resident = |placed: &berth_spec::Placed| {
            let deployment = self.world.deployment(&placed.serving.deployment);
            deployment.is_some_and(|deployment| deployment.spec.replicas.min > 0)
        };
        change.set.sort_by_key(|placed| (!placed.urgent, !resident(placed)));
        let load =
            |placed: &berth_spec::Placed| Command { kind: CommandKind::Load, revision: placed.revision.id.clone() };
        let commands = change.set.iter().map(load).collect();
        if let Some(attached) = self.workers.get_mut(worker) {
            attached.greeted = true;
        }
        out.push(Effect::SendAssignment { worker: worker.clone(), change, commands });
    }

    /// Sends a gateway every route, now or with the first plan of a cluster: until then it keeps those of the last leader,
    /// who knew more.
    pub(super) fn gateway_attached(&mut self, id: GatewayId, now: Time, out: &mut Vec<Effect>) {
        if self.clustered() && !self.planned() {
            self.unwelcomed.insert(id);
        } else {
            self.welcome(id, now, out);
        }
    }

    /// Sends a gateway every route.
    fn welcome(&self, id: GatewayId, now: Time, out: &mut Vec<Effect>) {
        let change = self.whole_routes(now);
        out.push(Effect::SendRoutes { to: RouteRecipients::One(id), change });
    }

    /// Every route as things are.
    pub(super) fn whole_routes(&self, now: Time) -> RouteChange {
        RouteChange { seq: self.route_seq, ..self.world.whole_routes(now) }
    }

    /// An assignment's change in the words of logs and metrics. To be asked before the plan is taken over.
    fn commands(&self, worker: &WorkerId, change: &AssignmentChange) -> Vec<Command> {
        let assigned = self.world.worker(worker).map(|tracked| &tracked.assigned);
        let has = |revision| assigned.is_some_and(|assigned| assigned.contains_key(revision));
        // Revisions sort by deployment first: a worker may hold thousands of others.
        let has_other = |deployment: &DeploymentName| {
            let first = RevisionId::with_hash(deployment.clone(), [0; 6]);
            let next = assigned.and_then(|assigned| assigned.range(first..).next());
            next.is_some_and(|(revision, _)| revision.deployment() == deployment)
        };
        let set = change.set.iter().filter(|placed| !has(&placed.revision.id)).map(|placed| {
            let revision = placed.revision.id.clone();
            let kind = if has_other(revision.deployment()) { CommandKind::Reload } else { CommandKind::Load };
            Command { kind, revision }
        });
        let unset =
            change.unset.iter().map(|revision| Command { kind: CommandKind::Unload, revision: revision.clone() });
        set.chain(unset).collect()
    }
}
