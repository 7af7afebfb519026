//! Declared names that lead to deployments. Nothing is placed for them: gateways share requests out among the targets.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_spec::{Alias, DeploymentName};

use super::World;

/// Aliases by name, and by target.
#[derive(Debug, Clone, Default)]
pub(super) struct Aliases {
    by_name: BTreeMap<DeploymentName, Arc<Alias>>,
    by_target: BTreeMap<DeploymentName, BTreeSet<DeploymentName>>,
}

impl World {
    /// Takes an alias in, new or changed.
    pub fn set_alias(&mut self, alias: Arc<Alias>) {
        self.remove_alias(&alias.name);
        for (target, _) in &alias.targets {
            self.aliases.by_target.entry(target.clone()).or_default().insert(alias.name.clone());
        }
        self.aliases.by_name.insert(alias.name.clone(), alias);
    }

    /// Forgets an alias; an unknown one changes nothing.
    pub fn remove_alias(&mut self, name: &DeploymentName) {
        let Some(alias) = self.aliases.by_name.remove(name) else { return };
        for (target, _) in &alias.targets {
            if let Some(names) = self.aliases.by_target.get_mut(target) {
                names.remove(name);
                if names.is_empty() {
                    self.aliases.by_target.remove(target);
                }
            }
        }
    }

    /// The alias of this name, as it was declared.
    #[must_use]
    pub fn alias(&self, name: &DeploymentName) -> Option<&Arc<Alias>> {
        self.aliases.by_name.get(name)
    }

    /// Every alias, by name.
    pub fn aliases(&self) -> impl Iterator<Item = &Arc<Alias>> {
        self.aliases.by_name.values()
    }

    /// The aliases that name a deployment as a target, those with a weight of 0 included.
    #[must_use]
    pub fn aliases_of(&self, deployment: &DeploymentName) -> Vec<DeploymentName> {
        self.aliases.by_target.get(deployment).into_iter().flatten().cloned().collect()
    }
}
