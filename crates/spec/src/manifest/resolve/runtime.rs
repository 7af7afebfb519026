//! Settings of the engine.

use super::Problems;
use crate::{
    Isolation, ModelFormat,
    deployment::RuntimeOptions,
    manifest::raw::{Problem, RawIsolation, RawNetwork, RawRuntime},
    network::Network,
};

/// The engine's settings of a model of this format.
pub(super) fn resolve(raw: &RawRuntime, format: &ModelFormat, problems: &mut Problems) -> RuntimeOptions {
    let isolation = raw.isolation.map(|level| match level {
        RawIsolation::None => Isolation::None,
        RawIsolation::Process => Isolation::Process,
        RawIsolation::Sandbox => Isolation::Sandbox,
    });
    if isolation == Some(Isolation::None) && *format == ModelFormat::PYTHON {
        let message = "Python always runs in a process of its own, and none is inside of the worker's";
        problems.push((
            "spec.runtime.isolation",
            Problem::new(message.to_owned(), "leave it out, or write process or sandbox"),
        ));
    }
    RuntimeOptions {
        execution_provider: raw.execution_provider.0.clone(),
        threads: u16::try_from(raw.threads.get()).unwrap_or(u16::MAX),
        isolation,
        network: raw.network.as_ref().map(|network| hosts(network, format, problems)),
    }
}

fn hosts(raw: &RawNetwork, format: &ModelFormat, problems: &mut Problems) -> Network {
    let mut wrong = |message: String, remedy: &str| {
        problems.push(("spec.runtime.network", Problem::new(message, remedy)));
    };
    if raw.hosts.len() > Network::MAX_HOSTS {
        wrong(format!("{} hosts are too many", raw.hosts.len()), "name at most 32");
    }
    if *format == ModelFormat::ONNX && !raw.hosts.is_empty() {
        wrong("graphs reach no network".to_owned(), "leave it out");
    }
    Network { hosts: raw.hosts.iter().map(|host| host.0.clone()).collect() }
}
