//! Index of endpoint paths. Several deployments may declare one path, one for each region; two in one region cannot both
//! answer there, and the later one is told so.

use berth_spec::{Deployment, DeploymentName, member::REGION};

use super::World;

impl World {
    /// Keeps the index true for one deployment; `after` is how it will be, or nothing.
    pub(super) fn readdress(&mut self, name: &DeploymentName, after: Option<&Deployment>) {
        let before = self.entries.get(name).and_then(|entry| entry.deployment.spec.endpoint.clone());
        let after = after.and_then(|deployment| deployment.spec.endpoint.clone());
        if before == after {
            return;
        }
        if let Some(path) = before
            && let Some(names) = self.endpoints.get_mut(&path)
        {
            names.remove(name);
            if names.is_empty() {
                self.endpoints.remove(&path);
            }
        }
        if let Some(path) = after {
            self.endpoints.entry(path).or_default().insert(name.clone());
        }
    }

    /// The deployment that declared the same path for the same region before this one did.
    #[must_use]
    pub fn endpoint_taken_by(&self, name: &DeploymentName) -> Option<&DeploymentName> {
        let this = self.deployment(name).filter(|this| !this.deleting)?;
        let others = self.endpoints.get(this.spec.endpoint.as_ref()?)?;
        let earlier = |other: &&DeploymentName| {
            self.deployment(other).is_some_and(|other| {
                !other.deleting && (other.created, &other.name) < (this.created, name) && share_a_region(this, other)
            })
        };
        others.iter().find(earlier)
    }
}

/// Returns true if both may have replicas in one region. One that names no region may be anywhere.
fn share_a_region(one: &Deployment, other: &Deployment) -> bool {
    let regions = |deployment: &Deployment| -> Vec<String> {
        let spec = &deployment.spec;
        let selected = spec.selector.required.get(REGION).into_iter();
        selected.chain(spec.regions.keys()).cloned().collect()
    };
    let (one, other) = (regions(one), regions(other));
    one.is_empty() || other.is_empty() || one.iter().any(|region| other.contains(region))
}
