//! Checks what must hold whatever goes wrong: no acknowledged write is lost, and no request is answered by what nobody
//! declared or by what was deleted. The oracle knows only what clients were told.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_spec::{Deployment, DeploymentName, RevisionId, RouteChange, WorkerId};

use crate::{request::Request, store::Store};

/// The answers to clients, and what follows from them.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// The last acknowledged state of each deployment.
    acknowledged: BTreeMap<DeploymentName, Arc<Deployment>>,
    /// Deployments whose last change was a deletion.
    deleted: BTreeSet<DeploymentName>,
    /// Every revision that was ever declared.
    revisions: BTreeMap<DeploymentName, BTreeSet<RevisionId>>,
    /// Gateways that have applied that a deployment is deleted, as long as it is.
    withdrawn: BTreeSet<(WorkerId, DeploymentName)>,
}

impl Oracle {
    /// A client is told that this is stored.
    pub(crate) fn declared(&mut self, deployment: &Arc<Deployment>) {
        let name = &deployment.name;
        self.revisions.entry(name.clone()).or_default().insert(deployment.revision_id());
        self.acknowledged.insert(name.clone(), deployment.clone());
        if deployment.deleting {
            self.deleted.insert(name.clone());
        } else {
            self.deleted.remove(name);
            self.withdrawn.retain(|(_, withdrawn)| withdrawn != name);
        }
    }

    /// The store forgot deployments. Says which of them nobody deleted.
    pub(crate) fn forgotten<'a>(&self, names: impl Iterator<Item = &'a DeploymentName>) -> Vec<String> {
        let kept = names.filter(|name| !self.deleted.contains(*name));
        kept.map(|name| format!("{name} is gone from the store and nobody deleted it")).collect()
    }

    /// A gateway applied routes.
    pub(crate) fn applied(&mut self, gateway_id: &WorkerId, change: &RouteChange) {
        let set: BTreeSet<&DeploymentName> = match change.base {
            Some(_) => BTreeSet::new(),
            None => change.set.iter().map(|route| &route.deployment).collect(),
        };
        for name in &self.deleted {
            let gone = change.unset.contains(name) || (change.base.is_none() && !set.contains(name));
            if gone {
                self.withdrawn.insert((gateway_id.clone(), name.clone()));
            }
        }
    }

    /// A gateway forwards a request to a revision.
    pub(crate) fn may_go(&self, gateway_id: &WorkerId, name: &DeploymentName, revision: &RevisionId) -> Option<String> {
        let withdrawn = self.withdrawn.contains(&(gateway_id.clone(), name.clone()));
        withdrawn.then(|| format!("{gateway_id} forwards to {revision} after it has applied that {name} is deleted"))
    }

    /// A request was answered by a revision.
    pub(crate) fn may_answer(&self, request: &Request, revision: &RevisionId) -> Option<String> {
        let name = &request.name;
        let declared = self.revisions.get(name).is_some_and(|revisions| revisions.contains(revision));
        if !declared {
            return Some(format!("a request for {name} was answered by {revision}, which nobody declared"));
        }
        let once = self.acknowledged.get(name).is_some_and(|deployment| !deployment.spec.idempotent);
        (once && request.runs > 1)
            .then(|| format!("a request for {name} that must run once was run {} times", request.runs))
    }

    /// Acknowledged writes that the store does not hold.
    pub(crate) fn lost(&self, store: &Store) -> Vec<String> {
        let mut lost = Vec::new();
        for (name, deployment) in &self.acknowledged {
            match store.deployment(name) {
                Some(stored) if stored.generation >= deployment.generation => {}
                None if deployment.deleting => {}
                stored => lost.push(format!(
                    "{name} was acknowledged as generation {}, and the store holds {:?}",
                    deployment.generation,
                    stored.map(|stored| stored.generation)
                )),
            }
        }
        lost
    }
}
