//! Shell completion of names: asks the server that `BERTH_API` names, and completes nothing if it does not answer
//! quickly.

use std::{collections::BTreeSet, ffi::OsStr, time::Duration};

use berth_spec::DeploymentName;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use super::resource::{Resource, names};
use crate::client::{ApiArgs, DEFAULT_API};

/// Limit for an answer. A key press must not hang where no server runs.
const PATIENCE: Duration = Duration::from_millis(800);

/// Names that are offered at most: more are of no use on a screen.
const MOST: usize = 200;

/// `node/NAME`, or what begins as a name does.
pub(crate) fn nodes() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let word = word.to_string_lossy();
        match word.split_once('/') {
            None if word.is_empty() || "node/".starts_with(&*word) => offered(Resource::Nodes, "node/", ""),
            None => offered(Resource::Nodes, "", &word),
            Some((kind, name)) => offered(Resource::Nodes, &format!("{kind}/"), name),
        }
    })
}

/// Completes names of deployments.
pub(crate) fn deployments() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| offered(Resource::Deployments, "", &word.to_string_lossy()))
}

/// A namespace that holds a deployment.
pub(crate) fn namespaces() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let names = [Resource::Deployments, Resource::Aliases].into_iter().flat_map(known);
        let names = names.filter_map(|name| name.parse::<DeploymentName>().ok());
        let all: BTreeSet<String> = names.map(|name| name.namespace().to_owned()).collect();
        let begins = word.to_string_lossy();
        all.into_iter().filter(|name| name.starts_with(&*begins)).map(CompletionCandidate::new).collect()
    })
}

/// A kind of thing, or KIND/NAME.
pub(crate) fn targets() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let word = word.to_string_lossy();
        match word.split_once('/') {
            Some((kind, name)) => match kind.parse() {
                Ok(resource) => offered(resource, &format!("{kind}/"), name),
                Err(_) => Vec::new(),
            },
            None => Resource::plurals().filter(|kind| kind.starts_with(&*word)).map(CompletionCandidate::new).collect(),
        }
    })
}

/// Names of that kind that begin so, each with `before` in front. Where `BERTH_NAMESPACE` names a namespace, deployments
/// are those in it, by their names alone.
fn offered(resource: Resource, before: &str, begins: &str) -> Vec<CompletionCandidate> {
    let mut known = known(resource);
    if let Some(namespace) = std::env::var_os("BERTH_NAMESPACE").filter(|_| resource == Resource::Deployments) {
        let names = known.into_iter().filter_map(|name| name.parse::<DeploymentName>().ok());
        let inside = names.filter(|name| *namespace == *name.namespace());
        known = inside.map(|name| name.name().to_owned()).collect();
    }
    let known = known.into_iter().filter(|name| name.starts_with(begins)).take(MOST);
    known.map(|name| CompletionCandidate::new(format!("{before}{name}"))).collect()
}

/// Names of that kind, as the server lists them.
fn known(resource: Resource) -> Vec<String> {
    let api =
        std::env::var_os("BERTH_API").map_or_else(|| DEFAULT_API.to_owned(), |api| api.to_string_lossy().into_owned());
    let known = super::block_on(async {
        let client = ApiArgs { api }.client()?;
        let known = tokio::time::timeout(PATIENCE, names(&client, resource)).await;
        known.map_err(|_| crate::failure::Failure::TimedOut(String::new()))?
    });
    known.unwrap_or_default()
}
