//! A circuit breaker per dependency: a host that keeps failing is left alone for a while (seed G §8.3).
//!
//! ```text
//!          5 failures in a row                60 s
//! Closed ──────────────────────▶ Open ─────────────────▶ HalfOpen (one probe)
//!    ▲                             ▲                        │      │
//!    │                             └──────── it fails ──────┘      │
//!    └────────────────────────────────────── it succeeds ──────────┘
//! ```
//! Dependencies of different kinds (stores of artifacts, Git hosts, package indexes) fail apart from each other, even on
//! one host. A success forgets the dependency: there is no breaker of what is well.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use berth_spec::{
    Time,
    worker::{self, BreakerState, DependencyKind},
};

/// Failures in a row that open it. Halved, two models with a bad address shut a healthy host; doubled, a dead host is
/// asked by every model twice before anybody stops.
pub const THRESHOLD: u32 = 5;
/// How long it stays open. Halved, a host that restarts is hit as it comes up; doubled, models wait for a host that is well.
pub const OPEN_FOR: Duration = Duration::from_secs(60);

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

    /// A Git host.
    #[must_use]
    pub fn git(origin: &str) -> Self {
        Self { kind: DependencyKind::Git, name: origin.into() }
    }

    /// A package index.
    #[must_use]
    pub fn packages(origin: &str) -> Self {
        Self { kind: DependencyKind::Packages, name: origin.into() }
    }

    /// What it is.
    #[must_use]
    pub const fn kind(&self) -> DependencyKind {
        self.kind
    }

    /// Which it is.
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

/// The state of one dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breaker {
    /// All is let through.
    Closed {
        /// Failures in a row.
        failures: u32,
    },
    /// Nothing is let through.
    Open {
        /// Failures in a row.
        failures: u32,
        /// Since when.
        since: Time,
        /// Until when.
        until: Time,
    },
    /// One probe is under way; nothing else is let through.
    HalfOpen {
        /// Failures in a row.
        failures: u32,
        /// When it opened.
        since: Time,
        /// When a probe that never came back is given up.
        until: Time,
    },
}

impl Default for Breaker {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

impl Breaker {
    /// Whether an operation may start now; if not, when to ask again.
    pub fn admit(&mut self, now: Time) -> Result<(), Time> {
        match *self {
            Self::Closed { .. } => Ok(()),
            Self::Open { until, .. } | Self::HalfOpen { until, .. } if now < until => Err(until),
            Self::Open { failures, since, .. } | Self::HalfOpen { failures, since, .. } => {
                *self = Self::HalfOpen { failures, since, until: now + OPEN_FOR };
                Ok(())
            }
        }
    }

    /// The dependency did not answer, or with a passing fault.
    pub fn failed(&mut self, now: Time) {
        *self = match *self {
            Self::Closed { failures } if failures + 1 < THRESHOLD => Self::Closed { failures: failures + 1 },
            Self::Closed { failures } => Self::Open { failures: failures + 1, since: now, until: now + OPEN_FOR },
            Self::HalfOpen { failures, since, .. } => {
                Self::Open { failures: failures.saturating_add(1), since, until: now + OPEN_FOR }
            }
            open @ Self::Open { .. } => open,
        };
    }

    /// The probe that was let through never asked: the next one may.
    pub fn unused(&mut self, now: Time) {
        if let Self::HalfOpen { failures, since, .. } = *self {
            *self = Self::Open { failures, since, until: now };
        }
    }

    /// As it is told.
    fn told(&self, dependency: &Dependency) -> worker::Breaker {
        let (state, failures, opened_at, retry_at) = match *self {
            Self::Closed { failures } => (BreakerState::Closed, failures, None, None),
            Self::Open { failures, since, until } => (BreakerState::Open, failures, Some(since), Some(until)),
            Self::HalfOpen { failures, since, until } => (BreakerState::HalfOpen, failures, Some(since), Some(until)),
        };
        let (kind, name) = (dependency.kind, Arc::clone(&dependency.name));
        worker::Breaker { dependency: name, kind, state, failures, opened_at, retry_at }
    }
}

/// The breakers of all dependencies that are not well.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breakers(BTreeMap<Dependency, Breaker>);

/// The most dependencies that failures are counted of. Halved, a worker whose line is down forgets some while it counts
/// others; doubled, its reports are twice as long. A new one beyond it is not counted.
const MOST: usize = 256;

impl Breakers {
    /// Whether an operation on it may start now; if not, when to ask again.
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

    /// It did not answer, or with a passing fault.
    pub fn failed(&mut self, dependency: &Dependency, now: Time) {
        if self.0.len() < MOST || self.0.contains_key(dependency) {
            self.0.entry(dependency.clone()).or_default().failed(now);
        }
    }

    /// It answered. Whether it had been left alone until now.
    pub fn answered(&mut self, dependency: &Dependency) -> bool {
        self.0.remove(dependency).is_some_and(|breaker| !matches!(breaker, Breaker::Closed { .. }))
    }

    /// A probe of these was let through and did not ask.
    pub fn unused(&mut self, is: impl Fn(&Dependency) -> bool, now: Time) {
        self.0.iter_mut().filter(|(dependency, _)| is(dependency)).for_each(|(_, breaker)| breaker.unused(now));
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&Dependency, &Breaker)> {
        self.0.iter()
    }

    /// As they are told.
    #[must_use]
    pub fn told(&self) -> Vec<worker::Breaker> {
        self.0.iter().map(|(dependency, breaker)| breaker.told(dependency)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn opens_after_five_probes_once_and_closes() {
        let mut breaker = Breaker::default();
        for _ in 0..THRESHOLD {
            assert_eq!(breaker.admit(at(1)), Ok(()));
            breaker.failed(at(1));
        }
        assert_eq!(breaker.admit(at(2)), Err(at(61)));
        assert_eq!(breaker.admit(at(61)), Ok(()), "the probe");
        assert_eq!(breaker.admit(at(61)), Err(at(121)), "only one");
        breaker.failed(at(62));
        assert_eq!(breaker.admit(at(100)), Err(at(122)));
        assert_eq!(breaker.admit(at(122)), Ok(()));
        breaker.unused(at(123));
        assert_eq!(breaker.admit(at(123)), Ok(()), "the probe did not ask: the next one does");
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
