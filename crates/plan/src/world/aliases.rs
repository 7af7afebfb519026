//! Declared names that lead to deployments. Nothing is placed for them: gateways share requests out among the targets.

use std::sync::Arc;

use berth_spec::{Alias, DeploymentName};

use super::World;

impl World {
    /// Takes an alias in, new or changed.
    pub fn set_alias(&mut self, alias: Arc<Alias>) {
        self.aliases.insert(alias.name.clone(), alias);
    }

    /// Forgets an alias.
    pub fn remove_alias(&mut self, name: &DeploymentName) {
        self.aliases.remove(name);
    }

    /// An alias by its name.
    #[must_use]
    pub fn alias(&self, name: &DeploymentName) -> Option<&Arc<Alias>> {
        self.aliases.get(name)
    }

    /// Every alias, by name.
    pub fn aliases(&self) -> impl Iterator<Item = &Arc<Alias>> {
        self.aliases.values()
    }
}
