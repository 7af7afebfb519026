//! The form of the file: eight bytes that say what it is and in which version, then the routes in postcard, then the
//! aliases, which version 2 has not, and the limits, which came with version 4.
//!
//! The structs here are the format. A change of them is a new version, and an older file is then refused, not guessed at:
//! routes are with the controller anyway.

use std::{collections::BTreeMap, time::Duration};

use berth_spec::{
    ByteSize, DeploymentName, RevisionId, Route, RouteChange, Time, UseLimits, WorkerId,
    deployment::Concurrency,
    routes::{AliasRoute, OnMiss, Readiness, Stickiness, Version},
};
use serde::{Deserialize, Serialize};

use crate::{
    deployment::DeploymentState,
    routes::{Routes, alias::AliasState},
};

/// The first bytes of the file; the last of them is the version.
const MAGIC: [u8; 8] = *b"berthrt\x04";

/// The first bytes of a file without limits.
const WITHOUT_LIMITS: [u8; 8] = *b"berthrt\x03";

/// The first bytes of a file without aliases.
const WITHOUT_ALIASES: [u8; 8] = *b"berthrt\x02";

/// The reason why a file is not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FormatError {
    #[error("it is no file of routes of this version")]
    Foreign,
    #[error("it is damaged: {0}")]
    Damaged(#[from] postcard::Error),
}

#[derive(Serialize, Deserialize)]
struct KeptTable {
    planned: bool,
    expected: u32,
    ready: u32,
    missing: Vec<DeploymentName>,
    routes: Vec<KeptRoute>,
}

#[derive(Serialize, Deserialize)]
struct KeptRoute {
    deployment: DeploymentName,
    versions: Vec<KeptVersion>,
    /// Indices into `versions`, with weights.
    split: Vec<(u32, u32)>,
    on_miss: KeptMiss,
    on_demand: bool,
    idempotent: bool,
    timeout: Duration,
    max: Option<u32>,
    queue: u32,
    endpoint: Option<Box<str>>,
}

/// Kept beside the routes: few have any. The limits themselves leave out what is not set, which this format cannot read.
#[derive(Serialize, Deserialize)]
struct KeptLimits {
    rate: Option<u32>,
    burst: Option<u32>,
    in_flight: Option<u32>,
    bytes_per_second: Option<ByteSize>,
    max_wait: Option<Duration>,
}

#[derive(Serialize, Deserialize)]
struct KeptAlias {
    name: DeploymentName,
    targets: Vec<(DeploymentName, u32)>,
    sticky: KeptSticky,
}

#[derive(Serialize, Deserialize)]
enum KeptSticky {
    None,
    Header(String),
    Client,
    Field(String),
}

#[derive(Serialize, Deserialize)]
struct KeptVersion {
    name: String,
    revision: RevisionId,
    ready: Vec<WorkerId>,
}

#[derive(Serialize, Deserialize)]
enum KeptMiss {
    Park,
    NoCapacity { message: String, retry_at: Option<u64> },
    Failed { message: String, retry_at: Option<u64> },
    ScaledDown,
    Restarting { message: String, again_at: u64 },
}

/// The file's bytes.
pub(super) fn encode(routes: &Routes, me: &WorkerId) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut limits = Vec::new();
    routes.each(|entry| {
        kept.push(KeptRoute::of(entry, me));
        let own = entry.route().terms.limits;
        if !own.is_empty() {
            limits.push((entry.name.clone(), KeptLimits::of(own)));
        }
    });
    let readiness = routes.readiness();
    let kept = KeptTable {
        planned: readiness.planned,
        expected: readiness.expected,
        ready: readiness.ready,
        missing: readiness.missing.clone(),
        routes: kept,
    };
    let aliases: Vec<KeptAlias> = routes.aliases().iter().map(|alias| KeptAlias::of(alias)).collect();
    let bytes = postcard::to_extend(&kept, MAGIC.to_vec());
    let bytes = bytes.and_then(|bytes| postcard::to_extend(&aliases, bytes));
    let bytes = bytes.and_then(|bytes| postcard::to_extend(&limits, bytes));
    bytes.expect("a Vec takes everything, and every length is known")
}

/// The whole change that leads to what was kept.
pub(super) fn decode(bytes: &[u8]) -> Result<RouteChange, FormatError> {
    let (magic, body) = bytes.split_at_checked(MAGIC.len()).ok_or(FormatError::Foreign)?;
    let (has_aliases, has_limits) = match magic {
        magic if magic == MAGIC => (true, true),
        magic if magic == WITHOUT_LIMITS => (true, false),
        magic if magic == WITHOUT_ALIASES => (false, false),
        _ => return Err(FormatError::Foreign),
    };
    let (KeptTable { planned, expected, ready, missing, routes }, rest) = postcard::take_from_bytes(body)?;
    let (aliases, rest): (Vec<KeptAlias>, _) =
        if has_aliases { postcard::take_from_bytes(rest)? } else { (Vec::new(), rest) };
    let limits: Vec<(DeploymentName, KeptLimits)> = if has_limits { postcard::from_bytes(rest)? } else { Vec::new() };
    let mut limits: BTreeMap<DeploymentName, KeptLimits> = limits.into_iter().collect();
    let limited = |kept: KeptRoute| {
        let limits = limits.remove(&kept.deployment).map(UseLimits::from).unwrap_or_default();
        Route { limits, ..Route::from(kept) }
    };
    let set = routes.into_iter().map(limited).collect();
    Ok(RouteChange {
        seq: 0,
        base: None,
        set,
        unset: Vec::new(),
        aliases: aliases.into_iter().map(AliasRoute::from).collect(),
        readiness: Readiness { planned, expected, ready, missing },
    })
}

impl KeptRoute {
    fn of(entry: &DeploymentState, me: &WorkerId) -> Self {
        let route = entry.route();
        let versions = route.targets.iter().map(|target| {
            let elsewhere = target.endpoints.iter().flat_map(|endpoints| endpoints.workers()).cloned();
            KeptVersion {
                name: target.version.to_string(),
                revision: target.revision.clone(),
                ready: target.ready.then(|| me.clone()).into_iter().chain(elsewhere).collect(),
            }
        });
        let terms = &route.terms;
        Self {
            deployment: entry.name.clone(),
            versions: versions.collect(),
            split: route.split.to_vec(),
            on_miss: KeptMiss::of(&terms.on_miss),
            on_demand: terms.on_demand,
            idempotent: terms.idempotent,
            timeout: terms.timeout,
            max: terms.concurrency.max,
            queue: terms.concurrency.queue,
            endpoint: terms.endpoint.clone(),
        }
    }
}

impl From<KeptRoute> for Route {
    fn from(kept: KeptRoute) -> Self {
        let shares = kept.split.iter().filter_map(|&(at, weight)| {
            let version = kept.versions.get(usize::try_from(at).ok()?)?;
            Some((version.revision.clone(), weight))
        });
        let split = shares.collect();
        let version = |KeptVersion { name, revision, ready }| Version { name, revision, ready };
        Self {
            deployment: kept.deployment,
            split,
            versions: kept.versions.into_iter().map(version).collect(),
            on_miss: kept.on_miss.into(),
            on_demand: kept.on_demand,
            timeout: kept.timeout,
            concurrency: Concurrency { max: kept.max, queue: kept.queue },
            limits: UseLimits::default(),
            idempotent: kept.idempotent,
            endpoint: kept.endpoint,
        }
    }
}

impl KeptLimits {
    fn of(limits: UseLimits) -> Self {
        let UseLimits { rate, burst, in_flight, bytes_per_second, max_wait } = limits;
        Self { rate, burst, in_flight, bytes_per_second, max_wait }
    }
}

impl From<KeptLimits> for UseLimits {
    fn from(kept: KeptLimits) -> Self {
        let KeptLimits { rate, burst, in_flight, bytes_per_second, max_wait } = kept;
        Self { rate, burst, in_flight, bytes_per_second, max_wait }
    }
}

impl KeptAlias {
    fn of(alias: &AliasState) -> Self {
        let targets = alias.targets();
        let sticky = match &targets.sticky {
            Stickiness::None => KeptSticky::None,
            Stickiness::Header(name) => KeptSticky::Header(name.clone()),
            Stickiness::Client => KeptSticky::Client,
            Stickiness::Field(path) => KeptSticky::Field(path.clone()),
        };
        let leads_to = targets.list.iter().map(|target| (target.name.clone(), target.weight)).collect();
        Self { name: alias.name.clone(), targets: leads_to, sticky }
    }
}

impl From<KeptAlias> for AliasRoute {
    fn from(kept: KeptAlias) -> Self {
        let sticky = match kept.sticky {
            KeptSticky::None => Stickiness::None,
            KeptSticky::Header(name) => Stickiness::Header(name),
            KeptSticky::Client => Stickiness::Client,
            KeptSticky::Field(path) => Stickiness::Field(path),
        };
        Self { name: kept.name, targets: kept.targets, sticky }
    }
}

impl KeptMiss {
    fn of(on_miss: &OnMiss) -> Self {
        let at = |time: &Option<Time>| time.map(|time| time.0);
        match on_miss {
            OnMiss::Park => Self::Park,
            OnMiss::NoCapacity { message, retry_at } => {
                Self::NoCapacity { message: message.clone(), retry_at: at(retry_at) }
            }
            OnMiss::Failed { message, retry_at } => Self::Failed { message: message.clone(), retry_at: at(retry_at) },
            OnMiss::ScaledDown => Self::ScaledDown,
            OnMiss::Restarting { message, again_at } => {
                Self::Restarting { message: message.clone(), again_at: again_at.0 }
            }
        }
    }
}

impl From<KeptMiss> for OnMiss {
    fn from(kept: KeptMiss) -> Self {
        match kept {
            KeptMiss::Park => Self::Park,
            KeptMiss::NoCapacity { message, retry_at } => Self::NoCapacity { message, retry_at: retry_at.map(Time) },
            KeptMiss::Failed { message, retry_at } => Self::Failed { message, retry_at: retry_at.map(Time) },
            KeptMiss::ScaledDown => Self::ScaledDown,
            KeptMiss::Restarting { message, again_at } => Self::Restarting { message, again_at: Time(again_at) },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{local::LocalReplicas, resolved::Resolver, routes::Applier};

    fn name(text: &str) -> DeploymentName {
        DeploymentName::new(text).expect("a name")
    }

    #[test]
    fn what_is_kept_comes_back() {
        for on_miss in [
            OnMiss::Failed { message: "no".to_owned(), retry_at: Some(Time(7)) },
            OnMiss::Restarting { message: "died".to_owned(), again_at: Time(8) },
        ] {
            comes_back(on_miss);
        }
    }

    fn comes_back(on_miss: OnMiss) {
        let me = WorkerId::new("a").expect("a name");
        let revision = |version: &str| RevisionId::of(name("iris"), version.as_bytes());
        let version = |version: &str, ready| Version { name: version.to_owned(), revision: revision(version), ready };
        let iris = Route {
            deployment: name("iris"),
            split: vec![(revision("2"), 90), (revision("1"), 10)],
            versions: vec![version("1", vec![me.clone()]), version("2", Vec::new())],
            on_miss,
            on_demand: true,
            timeout: Duration::from_millis(1_500),
            concurrency: Concurrency { max: Some(3), queue: 9 },
            limits: UseLimits { rate: Some(9), max_wait: Some(Duration::from_millis(7)), ..UseLimits::default() },
            idempotent: false,
            endpoint: Some("/v1/iris".into()),
        };
        let set = vec![iris];
        let readiness = Readiness { planned: true, expected: 2, ready: 1, missing: vec![name("rose")] };
        let change = RouteChange { seq: 0, base: None, set, unset: Vec::new(), aliases: Vec::new(), readiness };
        let routes = Arc::new(Routes::new());
        let resolver = Resolver { me: me.clone(), replicas: Arc::new(LocalReplicas::default()), remotes: None };
        Applier::new(Arc::clone(&routes), resolver).apply(change.clone()).expect("it is whole");
        assert_eq!(decode(&encode(&routes, &me)).expect("readable"), change);
        assert!(matches!(decode(b"berthrt\x01"), Err(FormatError::Foreign)));
        assert!(matches!(decode(b""), Err(FormatError::Foreign)));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_and_nothing_worse(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut file = MAGIC.to_vec();
            file.extend(bytes);
            let _ = decode(&file);
        }
    }
}
