//! Conversion of routes for gateways, and of the demand that they report.

use std::{collections::BTreeMap, iter::Peekable, time::Duration, vec};

use berth_spec::{
    ByteSize, Demand, DeploymentName, RevisionId, Route, RouteChange, Time, UseLimits, WorkerId,
    deployment::Concurrency,
    routes::{OnMiss, Readiness, Version},
};

use super::{
    aliases,
    name::{hash_of, hash_to, nanos},
    parts::{Budget, InParts, Numbering, fill},
    v1,
};

/// Demands in one message: each is less than 100 bytes.
pub const MOST_DEMANDS: usize = 8_192;

/// The most that a route's numbers and the tags around them take, in bytes. A bound, so that a route need not be
/// converted to know whether it goes into a part: which bytes it takes depends on who else is in it.
const NUMBERS: usize = 112;

/// The same bound for one revision in the route.
const REVISION: usize = 96;

impl InParts for RouteChange {
    type Part = v1::RoutePart;
    type Context = ();

    fn in_parts(self) -> impl Iterator<Item = v1::RoutePart> + Send + 'static {
        let Self { seq, base, set, unset, aliases: named, readiness } = self;
        let mut set = set.into_iter().peekable();
        let mut unset = unset.into_iter().map(|name| name.to_string()).peekable();
        let mut named = named.into_iter().peekable();
        let (mut readiness, mut numbering) = (Some(readiness_to(readiness)), Numbering::default());
        std::iter::from_fn(move || {
            let (part, mut budget) = (numbering.next()?, Budget::default());
            let (workers, routes) = fill_routes(&mut set, &mut budget);
            Some(v1::RoutePart {
                part,
                seq,
                base,
                workers,
                set: routes,
                unset: fill(&mut unset, &mut budget, String::len),
                aliases: fill(&mut named, &mut budget, aliases::bound).into_iter().map(aliases::to).collect(),
                readiness: readiness.take(),
                more: numbering.more(set.peek().is_some() || unset.peek().is_some() || named.peek().is_some()),
            })
        })
    }

    fn place(part: &v1::RoutePart) -> (u32, bool) {
        (part.part, part.more)
    }

    fn begin((): &(), first: &mut v1::RoutePart) -> Self {
        let readiness = first.readiness.take().map(readiness_of).unwrap_or_default();
        Self { seq: first.seq, base: first.base, readiness, ..Self::default() }
    }

    fn add(&mut self, part: v1::RoutePart) -> usize {
        let count = |change: &Self| change.set.len() + change.unset.len() + change.aliases.len();
        let listed = part.set.len() + part.unset.len() + part.aliases.len() + count(self);
        let workers: Vec<Option<WorkerId>> = part.workers.iter().map(|name| WorkerId::new(name).ok()).collect();
        self.set.extend(part.set.into_iter().filter_map(|route| route_of(route, &workers)));
        self.unset.extend(part.unset.iter().filter_map(|name| DeploymentName::new(name).ok()));
        self.aliases.extend(part.aliases.into_iter().filter_map(aliases::of));
        listed - count(self)
    }
}

/// The workers of a part, by the numbers that its routes use.
#[derive(Default)]
struct Workers {
    names: Vec<String>,
    numbers: BTreeMap<WorkerId, u32>,
}

impl Workers {
    fn number(&mut self, id: &WorkerId) -> u32 {
        if let Some(number) = self.numbers.get(id) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(id.to_string());
        self.numbers.insert(id.clone(), number);
        number
    }
}

fn fill_routes(set: &mut Peekable<vec::IntoIter<Route>>, budget: &mut Budget) -> (Vec<String>, Vec<v1::Route>) {
    let (mut workers, mut routes) = (Workers::default(), Vec::new());
    while let Some(route) = set.next_if(|route| budget.takes(bound(route))) {
        routes.push(route_to(route, &mut workers));
    }
    (workers.names, routes)
}

/// At least as many bytes as the route takes, its workers counted in.
fn bound(route: &Route) -> usize {
    let revisions: usize = route.split.iter().map(|(id, _)| REVISION + id.deployment().as_str().len()).sum();
    let version = |version: &Version| {
        let ready: usize = version.ready.iter().map(|worker| worker.as_str().len() + 10).sum();
        REVISION + version.name.len() + version.revision.deployment().as_str().len() + ready
    };
    let message = match &route.on_miss {
        OnMiss::NoCapacity { message, .. } | OnMiss::Failed { message, .. } | OnMiss::Restarting { message, .. } => {
            message.len()
        }
        OnMiss::Park | OnMiss::ScaledDown => 0,
    };
    let versions: usize = route.versions.iter().map(version).sum();
    let message = message + route.endpoint.as_ref().map_or(0, |path| path.len() + 4);
    NUMBERS + route.deployment.as_str().len() + revisions + versions + message
}

fn route_to(route: Route, workers: &mut Workers) -> v1::Route {
    let owner = |id: &RevisionId| (*id.deployment() != route.deployment).then(|| id.deployment().to_string());
    let share =
        |(id, weight): &(RevisionId, u32)| v1::Share { deployment: owner(id), hash: hash_to(id), weight: *weight };
    let mut version = |version: &Version| v1::Version {
        name: (version.name != version.revision.hash()).then(|| version.name.clone()),
        deployment: owner(&version.revision),
        hash: hash_to(&version.revision),
        ready: version.ready.iter().map(|worker| workers.number(worker)).collect(),
    };
    let (on_miss, message, retry_at) = match &route.on_miss {
        OnMiss::Park => (v1::Miss::Park, String::new(), None),
        OnMiss::NoCapacity { message, retry_at } => (v1::Miss::NoCapacity, message.clone(), *retry_at),
        OnMiss::Failed { message, retry_at } => (v1::Miss::Failed, message.clone(), *retry_at),
        OnMiss::ScaledDown => (v1::Miss::ScaledDown, String::new(), None),
        OnMiss::Restarting { message, again_at } => (v1::Miss::Restarting, message.clone(), Some(*again_at)),
    };
    v1::Route {
        split: route.split.iter().map(share).collect(),
        versions: route.versions.iter().map(&mut version).collect(),
        on_miss: on_miss.into(),
        message,
        retry_at: retry_at.map(|at| at.0),
        on_demand: route.on_demand,
        timeout: nanos(route.timeout),
        max: route.concurrency.max,
        queue: route.concurrency.queue,
        not_idempotent: !route.idempotent,
        endpoint: route.endpoint.as_deref().map(str::to_owned),
        limits: (route.limits != UseLimits::default()).then(|| limits_to(route.limits)),
        deployment: route.deployment.to_string(),
    }
}

/// `None`: a name in it cannot be understood.
fn route_of(route: v1::Route, workers: &[Option<WorkerId>]) -> Option<Route> {
    let deployment = DeploymentName::new(&route.deployment).ok()?;
    let revision = |owner: Option<String>, hash: &[u8]| {
        let owner = match owner {
            Some(name) => DeploymentName::new(&name).ok()?,
            None => deployment.clone(),
        };
        Some(RevisionId::with_hash(owner, hash_of(hash)?))
    };
    let share = |share: v1::Share| Some((revision(share.deployment, &share.hash)?, share.weight));
    let split = route.split.into_iter().map(share).collect::<Option<_>>()?;
    let version = |version: v1::Version| {
        let revision = revision(version.deployment, &version.hash)?;
        let name = version.name.unwrap_or_else(|| revision.hash());
        let worker = |number: u32| workers.get(usize::try_from(number).ok()?)?.clone();
        Some(Version { name, revision, ready: version.ready.into_iter().filter_map(worker).collect() })
    };
    let versions = route.versions.into_iter().map(version).collect::<Option<_>>()?;
    let (message, retry_at) = (route.message, route.retry_at.map(Time));
    let on_miss = match v1::Miss::try_from(route.on_miss) {
        Ok(v1::Miss::NoCapacity) => OnMiss::NoCapacity { message, retry_at },
        Ok(v1::Miss::Failed) => OnMiss::Failed { message, retry_at },
        Ok(v1::Miss::ScaledDown) => OnMiss::ScaledDown,
        Ok(v1::Miss::Restarting) => OnMiss::Restarting { message, again_at: retry_at.unwrap_or_default() },
        // Whatever a later version means: waiting has a deadline, and refusing could be wrong.
        Ok(v1::Miss::Park) | Err(_) => OnMiss::Park,
    };
    Some(Route {
        split,
        versions,
        on_miss,
        on_demand: route.on_demand,
        timeout: Duration::from_nanos(route.timeout),
        concurrency: Concurrency { max: route.max, queue: route.queue },
        limits: route.limits.map(limits_of).unwrap_or_default(),
        idempotent: !route.not_idempotent,
        endpoint: route.endpoint.map(Into::into),
        deployment,
    })
}

fn limits_to(limits: UseLimits) -> v1::UseLimits {
    let UseLimits { rate, burst, in_flight, bytes_per_second, max_wait } = limits;
    let (bytes_per_second, max_wait) = (bytes_per_second.map(|bytes| bytes.0), max_wait.map(nanos));
    v1::UseLimits { rate, burst, in_flight, bytes_per_second, max_wait }
}

fn limits_of(limits: v1::UseLimits) -> UseLimits {
    let v1::UseLimits { rate, burst, in_flight, bytes_per_second, max_wait } = limits;
    let (bytes_per_second, max_wait) = (bytes_per_second.map(ByteSize), max_wait.map(Duration::from_nanos));
    UseLimits { rate, burst, in_flight, bytes_per_second, max_wait }
}

fn readiness_to(readiness: Readiness) -> v1::Readiness {
    let Readiness { planned, expected, ready, missing } = readiness;
    v1::Readiness { planned, expected, ready, missing: missing.iter().map(ToString::to_string).collect() }
}

fn readiness_of(readiness: v1::Readiness) -> Readiness {
    let v1::Readiness { planned, expected, ready, missing } = readiness;
    let missing = missing.iter().filter_map(|name| DeploymentName::new(name).ok()).collect();
    Readiness { planned, expected, ready, missing }
}

/// Demands for the wire, in messages of at most [`MOST_DEMANDS`].
pub fn demands_to(demands: &[Demand]) -> impl Iterator<Item = v1::Demands> {
    let demand = |demand: &Demand| v1::Demand {
        deployment: demand.deployment.to_string(),
        waiting: demand.waiting,
        in_flight: demand.in_flight,
        last_used: demand.last_used.0,
        requests: demand.requests,
    };
    demands.chunks(MOST_DEMANDS).map(move |some| v1::Demands { demands: some.iter().map(demand).collect() })
}

/// Demands from the wire; those whose name cannot be understood are left out.
#[must_use]
pub fn demands_of(demands: v1::Demands) -> Vec<Demand> {
    let demand = |demand: v1::Demand| {
        Some(Demand {
            deployment: DeploymentName::new(&demand.deployment).ok()?,
            waiting: demand.waiting,
            in_flight: demand.in_flight,
            last_used: Time(demand.last_used),
            requests: demand.requests,
        })
    };
    demands.demands.into_iter().filter_map(demand).collect()
}
