//! Shell completion of names: asks the server that `BERTH_API` or the context names, and completes nothing if it does not
//! answer quickly.

use std::{collections::BTreeSet, ffi::OsStr, time::Duration};

use berth_spec::DeploymentName;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use futures::future::join_all;

use super::resource::{Resource, names};
use crate::{
    client::{ApiArgs, ConnectArgs, DEFAULT_API},
    contexts,
};

/// Limit for an answer. A key press must not hang where no server runs.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Names that are offered at most: more are of no use on a screen.
const MAX_NAMES: usize = 200;

/// `node/NAME`, or what begins as a name does.
pub(crate) fn nodes() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let word = word.to_string_lossy();
        match word.split_once('/') {
            None if word.is_empty() || "node/".starts_with(&*word) => offered(&[Resource::Nodes], "node/", ""),
            None => offered(&[Resource::Nodes], "", &word),
            Some((kind, name)) => offered(&[Resource::Nodes], &format!("{kind}/"), name),
        }
    })
}

/// Completes names of deployments.
pub(crate) fn deployments() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| offered(&[Resource::Deployments], "", &word.to_string_lossy()))
}

/// A namespace that holds a deployment, an alias or a function.
pub(crate) fn namespaces() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let names = known(&[Resource::Deployments, Resource::Aliases, Resource::Functions]);
        let names = names.into_iter().filter_map(|(_, name)| name.parse::<DeploymentName>().ok());
        let all: BTreeSet<String> = names.map(|name| name.namespace().to_owned()).collect();
        let begins = word.to_string_lossy();
        all.into_iter().filter(|name| name.starts_with(&*begins)).map(CompletionCandidate::new).collect()
    })
}

/// The words of `berth get`: those of things with an address, of any other kind after its name, and lists of kinds.
pub(crate) fn listed() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let word = word.to_string_lossy();
        if !word.contains('/')
            && kind_before().is_none()
            && let Some((kinds, begins)) = word.rsplit_once(',')
        {
            let more = Resource::plurals().filter(|kind| kind.starts_with(begins));
            return more.map(|kind| CompletionCandidate::new(format!("{kinds},{kind}"))).collect();
        }
        target(&Resource::all().collect::<Vec<_>>(), &Resource::ADDRESSED, &word)
    })
}

/// The words of a command that takes only these kinds.
pub(crate) fn targets_of(kinds: &'static [Resource]) -> ArgValueCompleter {
    ArgValueCompleter::new(move |word: &OsStr| target(kinds, kinds, &word.to_string_lossy()))
}

/// `KIND/NAME`; a name of the kind that an earlier word says; else a name of what a bare word may mean, or a kind. With one kind alone
/// nobody writes it.
fn target(kinds: &[Resource], bare: &[Resource], word: &str) -> Vec<CompletionCandidate> {
    if let Some((kind, name)) = word.split_once('/')
        && let Some(resource) = kind.parse::<Resource>().ok().filter(|resource| kinds.contains(resource))
    {
        return offered(&[resource], &format!("{kind}/"), name);
    }
    if let Some(resource) = kind_before().filter(|resource| kinds.contains(resource)) {
        return offered(&[resource], "", word);
    }
    let mut found = offered(bare, "", word);
    if kinds.len() > 1 {
        let plurals = kinds.iter().map(|kind| kind.plural()).filter(|kind| kind.starts_with(word));
        found.extend(plurals.map(CompletionCandidate::new));
    }
    found
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
    ArgValueCompleter::new(|word: &OsStr| offered(&[Resource::Sources], "", &word.to_string_lossy()))
}

/// The kind that the command line names so far: `berth get nodes <TAB>`. A shell hands it over as `berth -- berth get nodes ''`.
fn kind_before() -> Option<Resource> {
    let words = std::env::args().skip_while(|word| word != "--").skip(3);
    let words: Vec<String> = words.collect();
    let (_, before) = words.split_last()?;
    before.iter().find_map(|word| word.parse().ok())
}

/// Names of these kinds that begin so, each once and with `before` in front. Where `BERTH_NAMESPACE` or the context names a namespace, things that are in
/// one are those in it, by their names alone.
fn offered(kinds: &[Resource], before: &str, begins: &str) -> Vec<CompletionCandidate> {
    let namespace = settings()("BERTH_NAMESPACE");
    let written = |(resource, name): (Resource, String)| match &namespace {
        Some(namespace) if resource.is_addressed_by_namespace() => {
            let name = name.parse::<DeploymentName>().ok()?;
            (namespace.as_str() == name.namespace()).then(|| name.name().to_owned())
        }
        _ => Some(name),
    };
    let mut seen = BTreeSet::new();
    let names = known(kinds).into_iter().filter_map(written);
    let names = names.filter(|name| name.starts_with(begins) && seen.insert(name.clone())).take(MAX_NAMES);
    names.map(|name| CompletionCandidate::new(format!("{before}{name}"))).collect()
}

/// The variables that say something, else the values of the context.
fn settings() -> impl Fn(&str) -> Option<String> {
    let variable = |name: &str| std::env::var_os(name)?.into_string().ok().filter(|text| !text.is_empty());
    let context = contexts::in_force(variable("BERTH_CONTEXT").as_deref(), variable("BERTH_API").is_some());
    let context = context.ok().flatten();
    move |name: &str| variable(name).or_else(|| context.as_ref()?.variable(name))
}

/// Names of these kinds, as the server lists them; none of a kind that it does not list in time.
fn known(kinds: &[Resource]) -> Vec<(Resource, String)> {
    let text = settings();
    let api = text("BERTH_API").unwrap_or_else(|| DEFAULT_API.to_owned());
    let known = super::block_on(async {
        let client = ApiArgs { api, connect: ConnectArgs::from_variables(text) }.client()?;
        let asked = kinds.iter().map(|&kind| tokio::time::timeout(ANSWER_TIMEOUT, names(&client, kind)));
        Ok(join_all(asked).await)
    });
    let known = kinds.iter().zip(known.unwrap_or_default());
    known.flat_map(|(&kind, names)| names.into_iter().flatten().flatten().map(move |name| (kind, name))).collect()
}
