//! Answering questions from the world. A question costs no more than what it returns.

use std::{collections::BTreeSet, sync::Arc};

use berth_plan::{World, preview, report, world::Liveness};
use berth_spec::{DeploymentName, RevisionId, WorkerInfo};

use super::Driver;
use crate::{
    controller::Event,
    handle::{
        DriverRequest, Error, ReplicaView, aliases,
        view::{KnownDeployment, Scan, ScannedDeployments},
    },
};

/// Deployments examined in one step of a walk. Bounds the time that a filtered list occupies the loop.
const STEP: usize = 2_000;

impl Driver {
    pub(super) fn answer(&mut self, request: DriverRequest) {
        let now = (self.clock)();
        let world = self.brain.world();
        // Who asked may have gone away: nobody is left to be told.
        let _asker_gone = match request {
            DriverRequest::Status { name, reply } => reply.send(self.known(&name)).is_err(),
            DriverRequest::Scan { scan, reply } => reply.send(self.scan(&scan)).is_err(),
            DriverRequest::Aliases { scan, reply } => reply.send(self.scan_aliases(&scan)).is_err(),
            DriverRequest::AliasesOf { deployment, reply } => reply.send(world.aliases_of(&deployment)).is_err(),
            DriverRequest::Want { name, last_used, reply } => {
                let there = world.deployment(&name).is_some_and(|deployment| !deployment.deleting);
                self.feed(Event::Wanted { deployment: name, last_used });
                reply.send(there).is_err()
            }
            DriverRequest::AliasTargets { alias, reply } => {
                reply.send(report::alias_targets(world, &alias, now)).is_err()
            }
            DriverRequest::Explain { name, reply } => reply.send(report::explain(world, &name, now)).is_err(),
            DriverRequest::Preview { changes, reply } => reply.send(preview::preview(world, &changes, now)).is_err(),
            DriverRequest::Workers { reply } => reply.send(self.workers(world, now)).is_err(),
            DriverRequest::Absent { reply } => reply.send(self.brain.absent(now)).is_err(),
            DriverRequest::Expected { reply } => reply.send(self.brain.expected()).is_err(),
            DriverRequest::MassLoss { reply } => reply.send(world.mass_loss(now)).is_err(),
            DriverRequest::Replicas { reply } => reply.send(replicas(world)).is_err(),
            DriverRequest::Events { filter, reply } => reply.send(self.events.page(&filter)).is_err(),
            DriverRequest::Note { event, reply } => {
                self.events.push(*event);
                reply.send(()).is_err()
            }
            DriverRequest::AttachWorker { info, reply } => {
                let ends = if world.refuses(&info.id) {
                    Err(self.refuse(&info))
                } else {
                    self.connections.attach_worker(&info)
                };
                if ends.is_ok() {
                    self.feed(Event::WorkerAttached(*info));
                }
                reply.send(ends).is_err()
            }
            DriverRequest::SetCredentials { sets, reply } => {
                self.connections.set_credentials(sets);
                reply.send(()).is_err()
            }
            DriverRequest::AttachGateway { node, region, reply } => {
                let (id, ends) = self.connections.attach_gateway();
                self.feed(Event::GatewayAttached { id, node, region });
                reply.send(ends).is_err()
            }
        };
    }

    /// The registry does not name a worker. It tries again each second: told once for each start of it.
    fn refuse(&mut self, info: &WorkerInfo) -> Error {
        let error = Error::Unlisted(info.id.clone());
        if self.refused.insert(info.id.clone(), info.incarnation) != Some(info.incarnation) {
            tracing::warn!(event = "worker_refused", worker_id = %info.id, "{error}");
        }
        error
    }

    fn known(&self, name: &DeploymentName) -> Option<KnownDeployment> {
        let world = self.brain.world();
        let deployment = world.deployment(name)?.clone();
        let status = report::status(world, name, (self.clock)());
        Some(KnownDeployment { deployment, rev: self.brain.rev_of(name).unwrap_or_default(), status })
    }

    fn scan(&self, scan: &Scan) -> ScannedDeployments {
        let mut scanned = ScannedDeployments { found: Vec::new(), next: None, rev: *self.outputs.seen.borrow() };
        let mut last = None;
        for (looked, (name, _)) in self.brain.declared(scan.namespace.as_ref(), scan.after.as_ref()).enumerate() {
            if looked == STEP || scanned.found.len() == scan.limit {
                scanned.next = last;
                break;
            }
            last = Some(name.clone());
            let Some(deployment) = self.brain.world().deployment(name) else { continue };
            if scan.labels.iter().all(|(key, value)| deployment.labels.get(key) == Some(value)) {
                scanned.found.extend(self.known(name));
            }
        }
        scanned
    }

    fn scan_aliases(&self, scan: &Scan) -> aliases::ScannedAliases {
        let (world, now) = (self.brain.world(), (self.clock)());
        let mut scanned = aliases::ScannedAliases { found: Vec::new(), next: None, rev: *self.outputs.seen.borrow() };
        let (mut last, mut looked) = (None, 0);
        for (name, rev) in self.brain.declared_aliases(scan.namespace.as_ref(), scan.after.as_ref()) {
            if looked >= STEP || scanned.found.len() == scan.limit {
                scanned.next = last;
                break;
            }
            last = Some(name.clone());
            let Some(alias) = world.alias(name) else { continue };
            looked += 1;
            if scan.labels.iter().all(|(key, value)| alias.labels.get(key) == Some(value)) {
                looked += alias.targets.len();
                let targets = report::alias_targets(world, alias, now);
                scanned.found.push((Arc::clone(alias), rev, targets));
            }
        }
        scanned
    }
}

fn replicas(world: &World) -> Vec<ReplicaView> {
    let mut views = Vec::new();
    for (id, tracked) in world.workers() {
        let revisions: BTreeSet<&RevisionId> = tracked.assigned.keys().chain(tracked.inventory.keys()).collect();
        views.extend(revisions.into_iter().map(|revision| ReplicaView {
            revision: revision.clone(),
            version: tracked.assigned.get(revision).map(|placed| placed.revision.version.clone()),
            worker: id.clone(),
            residency: tracked.inventory.get(revision).cloned(),
            lost: matches!(tracked.liveness, Liveness::Lost { .. }),
            claim: tracked.assigned.get(revision).map(|placed| placed.claim),
            waits: report::waits(tracked, revision),
        }));
    }
    views.sort_by(|a, b| (&a.revision, &a.worker).cmp(&(&b.revision, &b.worker)));
    views
}
