//! Properties that must hold once nothing goes wrong any more and there was time.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{DeploymentName, RevisionId, WorkerId, status::Phase};

use super::Cluster;

impl Cluster {
    /// Lists what is not as it should be once everything had time to settle: writes that are lost, replicas that were
    /// assigned and are not there, deployments that neither arrive nor say why, requests that nobody answers, gateways
    /// that do not know what was declared.
    #[must_use]
    pub fn unsettled(&self) -> Vec<String> {
        let mut wrong = self.oracle.lost(&self.store);
        let Some(world) = self.world() else {
            wrong.push("nobody leads".to_owned());
            return wrong;
        };
        let brain = self.leader().and_then(|leader| self.controllers[leader].leads()).map(|(_, brain)| brain);
        if brain.is_some_and(berth_control::controller::Controller::committing) {
            wrong.push("the leader waits for the store for ever".to_owned());
        }
        for (gateway_id, name, waiting) in self.waiting() {
            wrong.push(format!("{name}: {waiting} parked at {gateway_id}"));
        }
        for deployment in world.deployments() {
            let name = &deployment.name;
            let phase = berth_plan::report::status(world, name, self.now).map(|status| status.phase);
            if matches!(phase, Some(Phase::Progressing | Phase::Terminating) | None) {
                wrong.push(format!("{name} is {phase:?}"));
            }
            if self.store.deployment(name) != Some(deployment) {
                wrong.push(format!("the leader knows another {name} than the store"));
            }
        }
        for (id, machine) in &self.machines {
            let assigned = world.worker(id).map(|controllers| controllers.assigned.keys().collect::<BTreeSet<_>>());
            let held: BTreeSet<&RevisionId> = machine.agent.residencies().map(|(revision, _)| revision).collect();
            if assigned.as_ref() != Some(&held) {
                wrong.push(format!("{id} holds {held:?} and is assigned {assigned:?}"));
            }
        }
        wrong.extend(self.unrouted(world));
        wrong
    }

    fn waiting(&self) -> impl Iterator<Item = (&WorkerId, &DeploymentName, usize)> {
        self.gateways
            .iter()
            .flat_map(|(id, gateway)| gateway.parked().iter().map(move |(name, lot)| (id, name, lot.len())))
    }

    /// Every gateway has every route as the leader would tell it, and no other.
    fn unrouted(&self, world: &berth_plan::World) -> Vec<String> {
        let routes = world.whole_routes(self.now).set;
        let routes: BTreeMap<_, _> = routes.iter().map(|route| (&route.deployment, route)).collect();
        let mut wrong = Vec::new();
        for (id, gateway) in self.gateways.iter().filter(|(id, _)| self.awake(id)) {
            for (name, route) in &routes {
                let known = gateway.route(name);
                let ready = |route: &berth_spec::Route| {
                    route
                        .versions
                        .iter()
                        .map(|version| (version.revision.clone(), version.ready.clone()))
                        .collect::<Vec<_>>()
                };
                if known.is_none_or(|known| known.split != route.split || ready(known) != ready(route)) {
                    wrong.push(format!("{id} routes {name} to {:?} instead of {:?}", known.map(ready), ready(route)));
                }
            }
            let more = gateway.routes.keys().filter(|name| !routes.contains_key(name));
            wrong.extend(more.map(|name| format!("{id} routes {name}, which does not exist")));
        }
        wrong
    }

    /// The places of all replicas, by deployment.
    #[must_use]
    pub fn placement(&self) -> BTreeMap<DeploymentName, Vec<(WorkerId, RevisionId)>> {
        self.audit.places().clone()
    }

    /// The replicas that workers answer for, by their own reports.
    #[must_use]
    pub fn callable(&self) -> BTreeSet<(WorkerId, RevisionId)> {
        let each = |(id, machine): (&WorkerId, &crate::node::Machine)| {
            machine.callable.keys().map(|revision| (id.clone(), revision.clone())).collect::<Vec<_>>()
        };
        self.machines.iter().flat_map(each).collect()
    }
}
