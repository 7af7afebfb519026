//! Outcomes of the hosts that preparing a model asked, for their circuit breakers; and the hosts that it may not ask.

use std::sync::{Mutex, PoisonError};

use berth_spec::Time;

use crate::breaker::Dependency;

/// Hosts that are left alone for now, and until when. What is here already is used all the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockedDependencies {
    /// The Git host of the card's code.
    pub git: Option<Time>,
    /// The package index.
    pub packages: Option<Time>,
}

/// The hosts that were asked, and `true` for those that answered.
#[derive(Debug, Default)]
pub(super) struct DependencyOutcomes(Mutex<Vec<(Dependency, bool)>>);

impl DependencyOutcomes {
    pub(super) fn answered(&self, dependency: Dependency) {
        self.note(dependency, true);
    }

    pub(super) fn failed(&self, dependency: Dependency) {
        self.note(dependency, false);
    }

    fn note(&self, dependency: Dependency, answered: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((dependency, answered));
    }

    /// All that was noted.
    pub(super) fn take(&self) -> Vec<(Dependency, bool)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
