//! A circuit breaker per dependency: a host that keeps failing is left alone for a while ([`berth_spec::circuit`]).
//!
//! Dependencies of different kinds (stores of artifacts, Git hosts, package indexes) fail apart from each other, even on
//! one host. A success forgets the dependency: there is no breaker of what is well.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use berth_spec::{
    Time,
    circuit::{CircuitBreaker, Limits},
    worker::{self, BreakerState, DependencyKind},
};

/// Failures in a row that open it: more than two models with a bad address cause, few enough that a dead host is soon
/// left alone.
pub const THRESHOLD: u32 = 5;
/// The time that it stays open: a host that restarts takes about so long.
pub const OPEN_FOR: Duration = Duration::from_secs(60);

const LIMITS: Limits = Limits { threshold: THRESHOLD, open_for: OPEN_FOR };

/// Something that the worker needs and that may fail.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dependency {
    kind: DependencyKind,
    name: Arc<str>,
}

impl Dependency {
    /// An object store or web server: `s3://bucket`, `https://host`.
    #[must_use]
    pub fn storage(origin: &str) -> Self {
        Self { kind: DependencyKind::Storage, name: origin.into() }
    }

    /// A Git host, by the origin of its URL.
    #[must_use]
    pub fn git(origin: &str) -> Self {
        Self { kind: DependencyKind::Git, name: origin.into() }
    }

    /// A package index, by the origin of its URL.
    #[must_use]
    pub fn packages(origin: &str) -> Self {
        Self { kind: DependencyKind::Packages, name: origin.into() }
    }

    /// The kind of dependency.
    #[must_use]
    pub const fn kind(&self) -> DependencyKind {
        self.kind
    }

    /// Its name in messages and metrics.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            DependencyKind::Storage => "",
            DependencyKind::Git => "the Git host ",
            DependencyKind::Packages => "the package index ",
        };
        write!(f, "{what}{}", self.name)
    }
}

/// As it is told.
fn told(dependency: &Dependency, breaker: &CircuitBreaker) -> worker::Breaker {
    worker::Breaker {
        dependency: Arc::clone(&dependency.name),
        kind: dependency.kind,
        state: breaker.state(),
        failures: breaker.failures(),
        opened_at: breaker.open().map(|(since, _)| since),
        retry_at: breaker.open().map(|(_, until)| until),
    }
}

/// The breakers of all dependencies that are not well.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breakers(BTreeMap<Dependency, CircuitBreaker>);

/// The most dependencies whose failures are counted: more than one worker has, and few enough for one report. A new one
/// beyond it is not counted.
const MAX_DEPENDENCIES: usize = 256;

impl Breakers {
    /// Asks to start an operation on it now; the error is the time to ask again.
    pub fn admit(&mut self, dependency: &Dependency, now: Time) -> Result<(), Time> {
        self.0.get_mut(dependency).map_or(Ok(()), |breaker| breaker.admit(now))
    }

    /// The first dependency of a kind that lets nothing through; one that is due is probed.
    pub fn admit_kind(&mut self, kind: DependencyKind, now: Time) -> Result<(), Time> {
        self.0
            .iter_mut()
            .filter(|(dependency, _)| dependency.kind == kind)
            .try_for_each(|(_, breaker)| breaker.admit(now))
    }

    /// Records that it did not answer, or with a passing fault.
    pub fn failed(&mut self, dependency: &Dependency, now: Time) {
        if self.0.len() < MAX_DEPENDENCIES || self.0.contains_key(dependency) {
            self.0.entry(dependency.clone()).or_insert(CircuitBreaker::new(LIMITS)).failed(now);
        }
    }

    /// Records that it answered. Returns true if it had been left alone until now.
    pub fn answered(&mut self, dependency: &Dependency) -> bool {
        self.0.remove(dependency).is_some_and(|breaker| breaker.state() != BreakerState::Closed)
    }

    /// A probe of these was let through and did not ask.
    pub fn unused(&mut self, is: impl Fn(&Dependency) -> bool, now: Time) {
        self.0.iter_mut().filter(|(dependency, _)| is(dependency)).for_each(|(_, breaker)| breaker.unused(now));
    }

    /// Every dependency that is not well, with its breaker.
    pub fn iter(&self) -> impl Iterator<Item = (&Dependency, &CircuitBreaker)> {
        self.0.iter()
    }

    /// The breakers in the form in which the worker reports them to the controller.
    #[must_use]
    pub fn told(&self) -> Vec<worker::Breaker> {
        self.0.iter().map(|(dependency, breaker)| told(dependency, breaker)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn one_host_fails_apart_as_a_store_and_as_a_git_host() {
        let (store, git) = (Dependency::storage("https://h"), Dependency::git("https://h"));
        let mut breakers = Breakers::default();
        (0..THRESHOLD).for_each(|_| breakers.failed(&git, at(1)));
        breakers.failed(&store, at(1));
        assert_eq!((breakers.admit(&git, at(2)), breakers.admit(&store, at(2))), (Err(at(61)), Ok(())));
        assert_eq!(breakers.admit_kind(DependencyKind::Git, at(2)), Err(at(61)));
        assert_eq!(breakers.admit_kind(DependencyKind::Packages, at(2)), Ok(()));
        let told = breakers.told();
        let shown =
            |b: &worker::Breaker| format!("{} {} {} {}", b.kind.as_str(), b.dependency, b.state.as_str(), b.failures);
        assert_eq!(told.iter().map(shown).collect::<Vec<_>>(), ["storage https://h closed 1", "git https://h open 5"]);
        assert_eq!((told[1].opened_at, told[1].retry_at), (Some(at(1)), Some(at(61))));
        assert!(!breakers.answered(&store) && breakers.answered(&git));
        assert!(breakers.told().is_empty(), "what is well is forgotten");
    }
}
