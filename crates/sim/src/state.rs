//! What survives a restart of the controller: what the store would hold.

use std::{collections::BTreeMap, sync::Arc};

use berth_control::{
    controller::{Commit, Restored},
    store::Rev,
};
use berth_plan::Record;
use berth_spec::{ByteSize, Deployment, DeploymentName, Digest, Generation};

/// The store's content.
#[derive(Debug, Default)]
pub struct State {
    rev: u64,
    deployments: BTreeMap<DeploymentName, (Arc<Deployment>, Rev)>,
    records: BTreeMap<DeploymentName, Record>,
    measured: BTreeMap<Digest, ByteSize>,
    generation: Generation,
}

impl State {
    /// What a controller that starts now reads.
    #[must_use]
    pub fn restore(&self) -> Restored {
        Restored {
            rev: Rev(self.rev),
            deployments: self.deployments.values().cloned().collect(),
            records: self.records.iter().map(|(name, record)| (name.clone(), record.clone())).collect(),
            measured: self.measured.iter().map(|(digest, size)| (*digest, *size)).collect(),
            cordons: BTreeMap::new(),
            generation: self.generation,
        }
    }

    /// Stores a deployment.
    pub fn declare(&mut self, deployment: Arc<Deployment>) -> Rev {
        self.rev += 1;
        let rev = Rev(self.rev);
        self.deployments.insert(deployment.name.clone(), (deployment, rev));
        rev
    }

    /// A deployment as it is stored.
    #[must_use]
    pub fn deployment(&self, name: &DeploymentName) -> Option<&Arc<Deployment>> {
        self.deployments.get(name).map(|(deployment, _)| deployment)
    }

    /// The names of all deployments.
    pub fn names(&self) -> impl Iterator<Item = &DeploymentName> {
        self.deployments.keys()
    }

    /// Takes what a plan wants stored, all or nothing: a deployment that changed meanwhile is not forgotten.
    #[must_use]
    pub fn commit(&mut self, commit: &Commit) -> bool {
        let current = |(name, rev): &(DeploymentName, Rev)| self.deployments.get(name).is_none_or(|(_, is)| is == rev);
        if !commit.forget.iter().all(current) {
            return false;
        }
        self.rev += 1;
        self.generation = commit.generation;
        for (name, record) in &commit.records {
            match record {
                Some(record) => self.records.insert(name.clone(), record.clone()),
                None => self.records.remove(name),
            };
        }
        for (name, _) in &commit.forget {
            self.deployments.remove(name);
        }
        true
    }

    /// Remembers what an artifact takes.
    pub fn measure(&mut self, digest: Digest, size: ByteSize) {
        self.measured.insert(digest, size);
    }
}
