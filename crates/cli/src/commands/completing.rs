//! Shell completion of names: asks the server that `BERTH_API` names, and completes nothing if it does not answer
//! quickly.

use std::{ffi::OsStr, time::Duration};

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

/// Names of that kind that begin so, each with `before` in front.
fn offered(resource: Resource, before: &str, begins: &str) -> Vec<CompletionCandidate> {
    let api =
        std::env::var_os("BERTH_API").map_or_else(|| DEFAULT_API.to_owned(), |api| api.to_string_lossy().into_owned());
    let known = super::block_on(async {
        let client = ApiArgs { api }.client()?;
        let known = tokio::time::timeout(PATIENCE, names(&client, resource)).await;
        known.map_err(|_| crate::failure::Failure::TimedOut(String::new()))?
    });
    let known = known.unwrap_or_default().into_iter().filter(|name| name.starts_with(begins)).take(MOST);
    known.map(|name| CompletionCandidate::new(format!("{before}{name}"))).collect()
}
