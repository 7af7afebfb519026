//! Taking in aliases: nothing is planned for them, so gateways hear of a change at once.

use std::sync::Arc;

use berth_plan::alias_route;
use berth_spec::{Alias, DeploymentName, RouteChange, Time, event::Severity};

use super::{Controller, Effect, RouteRecipients};
use crate::store::Rev;

/// A change of an alias in the store.
#[derive(Debug, Clone)]
pub enum AliasChange {
    /// An alias that is new or changed.
    Set {
        /// The alias as it is now, whole.
        alias: Arc<Alias>,
        /// Rev of the commit that wrote it: its resource version.
        rev: Rev,
    },
    /// An alias that was deleted.
    Gone(DeploymentName),
}

impl Controller {
    pub(super) fn aliases_changed(&mut self, changes: Vec<AliasChange>, now: Time, out: &mut Vec<Effect>) {
        let (mut aliases, mut unset) = (Vec::new(), Vec::new());
        for change in changes {
            match change {
                AliasChange::Set { alias, rev } => {
                    self.alias_revs.insert(alias.name.clone(), rev);
                    let before = self.world.alias(&alias.name);
                    if before.is_none_or(|before| before.generation != alias.generation) {
                        out.push(told(&alias.name, "AliasChanged", leads_to(&alias), now));
                    }
                    aliases.push(alias_route(&alias));
                    self.world.set_alias(alias);
                }
                AliasChange::Gone(name) => {
                    self.alias_revs.remove(&name);
                    if self.world.alias(&name).is_some() {
                        self.world.remove_alias(&name);
                        out.push(told(&name, "AliasDeleted", format!("the alias {name} was deleted"), now));
                        unset.push(name);
                    }
                }
            }
        }
        // Gateways that this controller has not sent every route to hear of it with those.
        if aliases.is_empty() && unset.is_empty() || self.clustered() && !self.planned() {
            return;
        }
        let base = Some(self.route_seq);
        self.route_seq += 1;
        let readiness = self.readiness.clone();
        let change = RouteChange { seq: self.route_seq, base, set: Vec::new(), unset, aliases, readiness };
        out.push(Effect::SendRoutes { to: RouteRecipients::All, change });
    }

    /// The rev at which an alias was last written; `None`: it is not known.
    #[must_use]
    pub fn rev_of_alias(&self, name: &DeploymentName) -> Option<Rev> {
        self.alias_revs.get(name).copied()
    }
}

fn leads_to(alias: &Alias) -> String {
    let targets: Vec<String> = alias.targets.iter().map(|(name, weight)| format!("{name} ({weight})")).collect();
    format!("the alias {} leads to {}", alias.name, targets.join(", "))
}

fn told(name: &DeploymentName, reason: &'static str, message: String, now: Time) -> Effect {
    Effect::Emit(berth_spec::Event {
        at: now,
        severity: Severity::Normal,
        reason,
        message,
        deployment: Some(name.clone()),
        worker: None,
        function: None,
    })
}
