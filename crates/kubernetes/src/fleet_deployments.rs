//! Deployments as the fleet tells of them, through watches that break.
//!
//! ```text
//! watch ──▶ Added of all there is, page by page ──▶ Bookmark: what was not told is gone ──▶ changes
//!   ▲                                                                                         │
//!   └── lagged: what was known stays until it is told anew, or not ◀──────────────────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};

use berth_control::handle::WatchEvent;
use berth_spec::DeploymentName;

use crate::{plan::digest, state::Observed};

/// Deployments that an event is about.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Affected {
    One(DeploymentName),
    /// All that there is has been told.
    All,
}

/// The deployments of the fleet, as they were told last.
#[derive(Debug)]
pub(crate) struct FleetDeployments {
    known: BTreeMap<DeploymentName, Observed>,
    /// While a watch tells what there is: the known ones that it has not told yet.
    untold: Option<BTreeSet<DeploymentName>>,
}

impl Default for FleetDeployments {
    fn default() -> Self {
        Self { known: BTreeMap::new(), untold: Some(BTreeSet::new()) }
    }
}

impl FleetDeployments {
    /// The state of a deployment; `None`: there is none, or none that was told.
    pub(crate) fn get(&self, name: &DeploymentName) -> Option<&Observed> {
        self.known.get(name)
    }

    /// True where nothing is known of a deployment that may be told yet.
    pub(crate) fn is_awaited(&self, name: &DeploymentName) -> bool {
        self.untold.is_some() && !self.known.contains_key(name)
    }

    /// A new watch begins, which tells all again.
    pub(crate) fn again(&mut self) {
        self.untold = Some(self.known.keys().cloned().collect());
    }

    /// Takes an event of the watch.
    pub(crate) fn on(&mut self, event: WatchEvent) -> Affected {
        match event {
            WatchEvent::Added(view) | WatchEvent::Modified(view) => {
                let generation = view.deployment.generation;
                let current = view.status.as_ref().is_some_and(|status| status.observed_generation == generation);
                let observed = Observed { spec: digest(&view.manifest), current, status: view.status };
                self.record(&view.deployment.name, observed)
            }
            WatchEvent::Deleted { name, .. } => {
                self.known.remove(&name);
                if let Some(untold) = &mut self.untold {
                    untold.remove(&name);
                }
                Affected::One(name)
            }
            WatchEvent::Bookmark(_) => {
                // No event comes of what went while nobody watched.
                for gone in self.untold.take().unwrap_or_default() {
                    self.known.remove(&gone);
                }
                Affected::All
            }
        }
    }

    fn record(&mut self, name: &DeploymentName, observed: Observed) -> Affected {
        if let Some(untold) = &mut self.untold {
            untold.remove(name);
        }
        self.known.insert(name.clone(), observed);
        Affected::One(name.clone())
    }
}

#[cfg(test)]
mod tests {
    use berth_control::store::Rev;

    use super::*;

    fn name(text: &str) -> DeploymentName {
        DeploymentName::new(text).expect("a name")
    }

    fn observed(spec: u64) -> Observed {
        Observed { spec, current: true, status: None }
    }

    fn spec(watched: &FleetDeployments, of: &str) -> Option<u64> {
        watched.get(&name(of)).map(|observed| observed.spec)
    }

    #[test]
    fn what_serves_stays_known_while_a_watch_that_lagged_is_told_anew_page_by_page() {
        let mut watched = FleetDeployments::default();
        for (of, spec) in [("team/a", 1), ("team/b", 2), ("team/gone", 3)] {
            watched.record(&name(of), observed(spec));
        }
        assert_eq!(watched.on(WatchEvent::Bookmark(Rev(7))), Affected::All);

        watched.again();
        // The first page is long in coming: nothing has changed meanwhile.
        assert_eq!(
            (spec(&watched, "team/a"), spec(&watched, "team/b"), spec(&watched, "team/gone")),
            (Some(1), Some(2), Some(3))
        );
        assert_eq!(watched.record(&name("team/a"), observed(4)), Affected::One(name("team/a")));
        // So is the second one, and before it ends the watch lags once more.
        assert_eq!((spec(&watched, "team/a"), spec(&watched, "team/b")), (Some(4), Some(2)));
        watched.again();
        watched.record(&name("team/a"), observed(5));
        watched.record(&name("team/b"), observed(2));
        assert_eq!(spec(&watched, "team/gone"), Some(3), "it may be on a page to come");
        assert_eq!(watched.on(WatchEvent::Bookmark(Rev(9))), Affected::All);
        assert_eq!(
            (spec(&watched, "team/a"), spec(&watched, "team/b"), spec(&watched, "team/gone")),
            (Some(5), Some(2), None)
        );
        // Bookmarks that end no telling take nothing.
        watched.on(WatchEvent::Bookmark(Rev(10)));
        assert_eq!(spec(&watched, "team/a"), Some(5));
        watched.on(WatchEvent::Deleted { name: name("team/a"), rev: Rev(11) });
        assert_eq!(spec(&watched, "team/a"), None);
    }

    #[test]
    fn nothing_is_said_of_what_may_be_told_yet() {
        let mut watched = FleetDeployments::default();
        assert!(watched.is_awaited(&name("team/a")), "the first telling has not ended");
        watched.record(&name("team/a"), observed(1));
        assert!(!watched.is_awaited(&name("team/a")) && watched.is_awaited(&name("team/b")));
        watched.on(WatchEvent::Bookmark(Rev(7)));
        assert!(!watched.is_awaited(&name("team/b")), "there is none");
        watched.again();
        assert!(watched.is_awaited(&name("team/b")) && !watched.is_awaited(&name("team/a")));
    }
}
