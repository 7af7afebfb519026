//! Dependencies of builds and deployments: the place of the code, the registry of packages, Azure. One that keeps failing is left
//! alone for a while ([`berth_spec::circuit`]): hundreds of functions do not ask it one after the other.

use std::sync::{Mutex, PoisonError};

use berth_spec::{
    Time,
    worker::{Breaker, BreakerState},
};
use berth_worker::breaker::{Breakers, Dependency};
use url::Url;

use crate::deployment::{CodeUri, Language};

/// The circuit breakers of a controller.
#[derive(Debug, Default)]
pub(crate) struct Dependencies(Mutex<Breakers>);

/// Permission to ask a dependency. One that is dropped was not used.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    dependencies: &'a Dependencies,
    dependency: Dependency,
}

/// Refusal to ask a dependency that is left alone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BreakerOpen {
    pub(crate) message: String,
    pub(crate) until: Time,
}

impl Dependencies {
    /// Permission to ask a dependency now.
    pub(crate) fn admit(&self, dependency: Dependency, now: Time) -> Result<Permit<'_>, BreakerOpen> {
        self.change(|breakers| breakers.admit(&dependency, now)).map_err(|until| BreakerOpen {
            message: format!("{dependency} keeps failing and is left alone until {until}"),
            until,
        })?;
        Ok(Permit { dependencies: self, dependency })
    }

    /// The breakers of what is not well, for people.
    pub(crate) fn told(&self) -> Vec<Breaker> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).told()
    }

    /// Changes the breakers, and logs those that stand otherwise afterwards.
    fn change<T>(&self, change: impl FnOnce(&mut Breakers) -> T) -> T {
        let mut breakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = breakers.told();
        let done = change(&mut breakers);
        let after = breakers.told();
        let state_in = |breakers: &[Breaker], of: &Breaker| {
            let same = |breaker: &&Breaker| (breaker.kind, &breaker.dependency) == (of.kind, &of.dependency);
            breakers.iter().find(same).map_or(BreakerState::Closed, |breaker| breaker.state)
        };
        let gone = before
            .iter()
            .filter(|old| !after.iter().any(|new| (new.kind, &new.dependency) == (old.kind, &old.dependency)));
        for breaker in after.iter().chain(gone) {
            let (from, to) = (state_in(&before, breaker), state_in(&after, breaker));
            if from != to {
                tracing::warn!(
                    event = "circuit_breaker_changed",
                    dependency = %breaker.dependency,
                    dependency_type = breaker.kind.as_str(),
                    from = from.as_str(),
                    to = to.as_str(),
                    failures = breaker.failures,
                );
            }
        }
        done
    }
}

impl Permit<'_> {
    /// Notes that it answered.
    pub(crate) fn answered(self) {
        self.dependencies.change(|breakers| breakers.answered(&self.dependency));
    }

    /// Notes that it gave no answer, or one with a passing fault.
    pub(crate) fn failed(self, now: Time) {
        self.dependencies.change(|breakers| breakers.failed(&self.dependency, now));
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.dependencies
            .change(|breakers| breakers.unused(|dependency| *dependency == self.dependency, crate::driver::now()));
    }
}

/// The place of code; `None` for this machine.
pub(crate) fn of_code(code: &CodeUri) -> Option<Dependency> {
    Some(match code {
        CodeUri::File(_) => return None,
        CodeUri::Http(url) => Dependency::storage(&url.origin().ascii_serialization()),
        CodeUri::S3 { bucket, .. } => Dependency::storage(&format!("s3://{bucket}")),
        CodeUri::AzureBlob { container, .. } => Dependency::storage(&format!("azure-blob://{container}")),
        CodeUri::Git { url, .. } => {
            let host = Url::parse(url).ok().and_then(|url| Some(url.host_str()?.to_owned()));
            Dependency::git(&host.unwrap_or_else(|| url.clone()))
        }
    })
}

/// The registry of a language's packages.
pub(crate) fn of_packages(language: Language) -> Dependency {
    Dependency::packages(match language {
        Language::Python => "of Python",
        Language::JavaScript => "of npm",
    })
}

/// Azure Resource Manager.
pub(crate) fn of_azure() -> Dependency {
    Dependency::storage("Azure Resource Manager")
}

#[cfg(test)]
mod tests {
    use berth_worker::breaker::THRESHOLD;

    use super::*;

    const AT: Time = Time(1_000_000_000);

    #[test]
    fn what_keeps_failing_is_left_alone_and_one_probe_is_let_through() {
        let dependencies = Dependencies::default();
        let code = CodeUri::parse("https://h.example:8443/a/b.zip").expect("a URI");
        let host = || of_code(&code).expect("a dependency");
        for _ in 0..THRESHOLD {
            dependencies.admit(host(), AT).expect("a permit").failed(AT);
        }
        let refused = dependencies.admit(host(), AT).expect_err("a refusal");
        assert!(refused.message.starts_with("https://h.example:8443 keeps failing"), "{}", refused.message);
        assert!(dependencies.admit(of_packages(Language::Python), AT).is_ok(), "others are asked");
        let probe = dependencies.admit(host(), refused.until).expect("the probe");
        assert!(dependencies.admit(host(), refused.until).is_err(), "one at a time");
        // A build that is cancelled asks nothing.
        drop(probe);
        dependencies.admit(host(), crate::driver::now()).expect("the next probe").answered();
        assert!(dependencies.told().is_empty());
    }
}
