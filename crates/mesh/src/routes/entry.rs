//! The place of a deployment in the table of routes.
//!
//! Nearly all of 100,000 deployments are cold: nothing is ready, and no request came. Such a one is a few words in the
//! table, and its [`DeploymentState`] is made when somebody asks for it.
//!
//! ```text
//! Cold ──asked for, or a route that says more──▶ Live
//! ```

use std::sync::Arc;

use berth_spec::{DeploymentName, RevisionId, Route};

use crate::{
    deployment::DeploymentState,
    resolved::{Resolved, Target, Terms},
};

/// The place of a deployment in the table.
pub(super) enum RouteEntry {
    /// Nothing is ready, and no request has come yet.
    Cold(ColdRoute),
    /// The state that requests share.
    Live(Arc<DeploymentState>),
}

/// The route of a deployment whose only revision is ready nowhere and has no version name of its own.
#[derive(Clone)]
pub(super) struct ColdRoute {
    terms: Arc<Terms>,
    /// Bytes that tell the revision from others of the deployment.
    hash: [u8; 6],
    /// The share of requests that the revision gets, where the route gives shares.
    weight: Option<u32>,
}

impl ColdRoute {
    /// The short form of a route; `None` for one that says more than it can hold.
    pub(super) fn of(route: &Route, terms: &Arc<Terms>) -> Option<Self> {
        let [version] = &*route.versions else { return None };
        let weight = match &*route.split {
            [] => None,
            [(revision, weight)] if *revision == version.revision => Some(*weight),
            _ => return None,
        };
        let plain = version.ready.is_empty()
            && terms.endpoint.is_none()
            && *version.revision.deployment() == route.deployment
            && version.name == version.revision.hash();
        plain.then(|| Self { terms: Arc::clone(terms), hash: version.revision.hash_bytes(), weight })
    }

    /// Makes the state that requests for the deployment share.
    pub(super) fn state(&self, name: &DeploymentName) -> Arc<DeploymentState> {
        let target = Target::cold(RevisionId::with_hash(name.clone(), self.hash));
        let resolved = Resolved::cold(target, self.weight, Arc::clone(&self.terms));
        Arc::new(DeploymentState::new(name.clone(), Arc::new(resolved)))
    }
}

impl RouteEntry {
    /// The state; a temporary one if no request has come yet.
    pub(super) fn state(&self, name: &DeploymentName) -> Arc<DeploymentState> {
        match self {
            Self::Cold(cold) => cold.state(name),
            Self::Live(state) => Arc::clone(state),
        }
    }

    /// The state, if a request has come.
    pub(super) fn live(&self) -> Option<&Arc<DeploymentState>> {
        match self {
            Self::Cold(_) => None,
            Self::Live(state) => Some(state),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_spec::{
        WorkerId,
        deployment::Concurrency,
        routes::{OnMiss, Version},
    };

    use super::*;
    use crate::resolved::RevisionSelector;

    fn route(change: impl FnOnce(&mut Route)) -> Route {
        let deployment = DeploymentName::new("iris").expect("a name");
        let revision = RevisionId::of(deployment.clone(), b"1");
        let version = Version { name: revision.hash(), revision: revision.clone(), ready: Vec::new() };
        let mut route = Route {
            deployment,
            versions: vec![version],
            split: vec![(revision, 100)],
            on_miss: OnMiss::Park,
            on_demand: true,
            timeout: Duration::from_secs(1),
            concurrency: Concurrency { max: None, queue: 1 },
            limits: berth_spec::UseLimits::default(),
            idempotent: true,
            endpoint: None,
        };
        change(&mut route);
        route
    }

    fn cold(route: &Route) -> Option<ColdRoute> {
        ColdRoute::of(route, &Arc::new(Terms::of(route)))
    }

    #[test]
    fn a_cold_route_becomes_the_state_that_it_says() {
        for shared in [true, false] {
            let route = route(|route| {
                if !shared {
                    route.split.clear();
                }
            });
            let state = cold(&route).expect("it is cold").state(&route.deployment);
            let resolved = state.route();
            assert_eq!(resolved.targets.len(), 1);
            assert_eq!(&*resolved.targets[0].version, route.versions[0].name);
            assert_eq!(resolved.targets[0].revision, route.versions[0].revision);
            assert_eq!(resolved.split.len(), usize::from(shared));
            assert_eq!(
                resolved.pick(RevisionSelector::default(), || 0).is_ok(),
                shared,
                "a route that shares nothing out is a miss"
            );
            assert!(resolved.pick(RevisionSelector::of(Some("2")), || 0).is_err());
        }
    }

    #[test]
    fn a_route_that_says_more_is_not_cold() {
        let changes: [fn(&mut Route); 5] = [
            |route| route.versions[0].ready.push(WorkerId::new("w").expect("a name")),
            |route| route.versions[0].name = "2.0.0".to_owned(),
            |route| route.endpoint = Some("/v1/iris".into()),
            |route| route.versions.push(route.versions[0].clone()),
            |route| route.versions.clear(),
        ];
        for change in changes {
            assert!(cold(&route(change)).is_none());
        }
    }
}
