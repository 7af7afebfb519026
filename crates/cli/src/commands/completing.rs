//! Shell completion of names: asks the server that `BERTH_API` or the context names, and completes nothing if it does not
//! answer quickly.

use std::{collections::BTreeSet, ffi::OsStr, time::Duration};

use berth_spec::DeploymentName;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use super::resource::{Resource, names};
use crate::{
    client::{ApiArgs, ConnectArgs, DEFAULT_API},
    contexts,
};

/// Limit for an answer. A key press must not hang where no server runs.
const PATIENCE: Duration = Duration::from_millis(500);

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

/// A namespace that holds a deployment, an alias or a function.
pub(crate) fn namespaces() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let names = [Resource::Deployments, Resource::Aliases, Resource::Functions].into_iter().flat_map(known);
        let names = names.filter_map(|name| name.parse::<DeploymentName>().ok());
        let all: BTreeSet<String> = names.map(|name| name.namespace().to_owned()).collect();
        let begins = word.to_string_lossy();
        all.into_iter().filter(|name| name.starts_with(&*begins)).map(CompletionCandidate::new).collect()
    })
}

/// `KIND/NAME`; a name of the kind that an earlier word says; else a name of a model, or a kind.
pub(crate) fn targets() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let word = word.to_string_lossy();
        if let Some((kind, name)) = word.split_once('/')
            && let Ok(resource) = kind.parse()
        {
            return offered(resource, &format!("{kind}/"), name);
        }
        if let Some(resource) = kind_before() {
            return offered(resource, "", &word);
        }
        if let Some((kinds, begins)) = word.rsplit_once(',') {
            let more = Resource::plurals().filter(|kind| kind.starts_with(begins));
            return more.map(|kind| CompletionCandidate::new(format!("{kinds},{kind}"))).collect();
        }
        let mut found = offered(Resource::Deployments, "", &word);
        found.extend(offered(Resource::Aliases, "", &word));
        let kinds = Resource::plurals().filter(|kind| kind.starts_with(&*word));
        found.extend(kinds.map(CompletionCandidate::new));
        found
    })
}

/// The same for a command that takes only these kinds, the usual one first: names of the first, and `KIND/NAME` of each.
pub(crate) fn targets_of(kinds: &'static [Resource]) -> ArgValueCompleter {
    ArgValueCompleter::new(move |word: &OsStr| {
        let word = word.to_string_lossy();
        if let Some((kind, name)) = word.split_once('/')
            && let Some(resource) = kind.parse::<Resource>().ok().filter(|resource| kinds.contains(resource))
        {
            return offered(resource, &format!("{kind}/"), name);
        }
        if let Some(resource) = kind_before().filter(|resource| kinds.contains(resource)) {
            return offered(resource, "", &word);
        }
        kinds.first().map_or_else(Vec::new, |usual| offered(*usual, "", &word))
    })
}

/// A context of the file of contexts.
pub(crate) fn contexts() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let word = word.to_string_lossy();
        let known = contexts::Contexts::read().map(|all| all.contexts).unwrap_or_default();
        let names = known.into_iter().map(|context| context.name).filter(|name| name.starts_with(&*word));
        names.map(CompletionCandidate::new).collect()
    })
}

pub(crate) fn sources() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| offered(Resource::Sources, "", &word.to_string_lossy()))
}

/// The kind that the command line names so far: `berth get nodes <TAB>`. A shell hands it over as `berth -- berth get nodes ''`.
fn kind_before() -> Option<Resource> {
    let words = std::env::args().skip_while(|word| word != "--").skip(3);
    let words: Vec<String> = words.collect();
    let (_, before) = words.split_last()?;
    before.iter().find_map(|word| word.parse().ok())
}

/// Names of that kind that begin so, each with `before` in front. Where `BERTH_NAMESPACE` names a namespace, deployments
/// and functions are those in it, by their names alone.
fn offered(resource: Resource, before: &str, begins: &str) -> Vec<CompletionCandidate> {
    let mut known = known(resource);
    let is_inside = matches!(resource, Resource::Deployments | Resource::Functions);
    if let Some(namespace) = std::env::var_os("BERTH_NAMESPACE").filter(|_| is_inside) {
        let names = known.into_iter().filter_map(|name| name.parse::<DeploymentName>().ok());
        let inside = names.filter(|name| *namespace == *name.namespace());
        known = inside.map(|name| name.name().to_owned()).collect();
    }
    let known = known.into_iter().filter(|name| name.starts_with(begins)).take(MOST);
    known.map(|name| CompletionCandidate::new(format!("{before}{name}"))).collect()
}

/// Names of that kind, as the server lists them.
fn known(resource: Resource) -> Vec<String> {
    let variable = |name: &str| std::env::var_os(name)?.into_string().ok().filter(|text| !text.is_empty());
    let context = contexts::in_force(variable("BERTH_CONTEXT").as_deref(), variable("BERTH_API").is_some());
    let context = context.ok().flatten();
    let text = |name: &str| variable(name).or_else(|| context.as_ref()?.variable(name));
    let api = text("BERTH_API").unwrap_or_else(|| DEFAULT_API.to_owned());
    let known = super::block_on(async {
        let client = ApiArgs { api, connect: ConnectArgs::from_variables(text) }.client()?;
        let known = tokio::time::timeout(PATIENCE, names(&client, resource)).await;
        known.map_err(|_| crate::failure::Failure::TimedOut(String::new()))?
    });
    known.unwrap_or_default()
}
