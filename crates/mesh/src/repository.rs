//! The model repository extension: load, unload and the index, in the words of deployments.
//!
//! Models are declared, not loaded: a load asks that a declared deployment be resident now, an unload that an on-demand
//! one be paged out. Neither changes what is declared.

use std::{borrow::Cow, sync::Arc, time::Duration};

use berth_spec::{Class, DeploymentName, InferError, NameKey, routes::OnMiss};
use berth_wire::access::{Action, Asker, Resource};
use tokio::time::{Instant, timeout_at};

use crate::{
    deployment::DeploymentState,
    disclosure::without_places,
    oip::describe::{IndexEntry, RepositoryParameters, State},
    resolved::Resolved,
    routes::alias::AliasState,
    stack::Stack,
};

/// The reason why a load or unload was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The same that an inference would have got.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// A model is what its deployment says; another one is another deployment.
    #[error(
        "a load cannot change model {0:?}: parameters \"config\" and \"file:…\" are not supported; change its manifest and apply it"
    )]
    Overrides(String),
    /// The deployment wants to be resident.
    #[error("model {0:?} is declared with replicas.min of 1 or more: set replicas.min to 0 or delete the deployment")]
    Resident(String),
}

impl Error {
    pub(crate) fn class(&self) -> Class {
        match self {
            Self::Infer(error) => error.class(),
            Self::Overrides(_) => Class::Invalid,
            Self::Resident(_) => Class::Conflict,
        }
    }

    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Infer(error) => error.reason(),
            Self::Overrides(_) => "overrides",
            Self::Resident(_) => "resident",
        }
    }
}

/// Time after which an unload is asked for again: nothing else tells that a word was lost.
const UNLOAD_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Returns once the model answers, as Triton does, or with the reason why it will not. By alias: once all its targets do.
pub(crate) async fn load(
    stack: &Stack,
    model: NameKey<'_>,
    parameters: RepositoryParameters,
    timeout: Option<Duration>,
) -> Result<(), Error> {
    let entries = stack.behind(model, None)?;
    if parameters.overrides {
        return Err(Error::Overrides(model.name.to_owned()));
    }
    let _permit = stack.admission.enter()?;
    let deadline = Instant::now() + timeout.unwrap_or(stack.limits.load).min(stack.limits.deadline);
    let reached = entries.iter().map(|entry| {
        stack.demand.touch(entry, Instant::now());
        stack.reachable(entry, deadline)
    });
    futures::future::try_join_all(reached).await?;
    Ok(())
}

/// Returns once no replica is ready any more, here or elsewhere. By alias: of any of its targets.
pub(crate) async fn unload(stack: &Stack, model: NameKey<'_>, timeout: Option<Duration>) -> Result<(), Error> {
    let entries = stack.behind(model, None)?;
    if let Some(resident) = entries.iter().find(|entry| !entry.route().terms.on_demand) {
        return Err(Error::Resident(resident.name.to_string()));
    }
    let _permit = stack.admission.enter()?;
    let deadline = Instant::now() + timeout.unwrap_or(stack.limits.load).min(stack.limits.deadline);
    futures::future::try_join_all(entries.iter().map(|entry| unloaded(stack, entry, deadline))).await?;
    Ok(())
}

async fn unloaded(stack: &Stack, entry: &DeploymentState, deadline: Instant) -> Result<(), Error> {
    let hot = entry.hot();
    let mut asked = false;
    loop {
        let mut changed = std::pin::pin!(hot.queue.changed());
        changed.as_mut().enable();
        // One that was just loaded here answers before the route says so.
        if !entry.route().any_ready() && entry.would_lease(None, &stack.parking.replicas).is_err() {
            return Ok(());
        }
        if !asked {
            stack.demand.page_out(&entry.name);
            asked = true;
        }
        if timeout_at(deadline.min(Instant::now() + UNLOAD_RETRY_INTERVAL), changed).await.is_ok() {
            continue;
        }
        // The word may have been lost with a leader.
        asked = false;
        if Instant::now() >= deadline {
            let message = format!("model {:?} is still being unloaded", entry.name.as_str());
            return Err(InferError::TimedOut(message).into());
        }
    }
}

/// A deployment or an alias, as the repository index lists it.
pub(crate) enum RepositoryModel {
    Deployment(Arc<DeploymentState>),
    /// An alias, and its targets that exist.
    Alias(Arc<AliasState>, Vec<Arc<DeploymentState>>),
}

impl RepositoryModel {
    fn name(&self) -> &DeploymentName {
        match self {
            Self::Deployment(entry) => &entry.name,
            Self::Alias(alias, _) => &alias.name,
        }
    }

    /// Calls `each` for every row.
    pub(crate) fn index(&self, ready_only: bool, each: impl FnMut(IndexEntry<'_>)) {
        match self {
            Self::Deployment(entry) => index(entry, ready_only, each),
            Self::Alias(alias, targets) => index_alias(alias, targets, ready_only, each),
        }
    }
}

/// One row without a version: ready while one of the targets is.
fn index_alias(
    alias: &AliasState,
    targets: &[Arc<DeploymentState>],
    ready_only: bool,
    mut each: impl FnMut(IndexEntry<'_>),
) {
    let ready = targets.iter().any(|entry| entry.route().any_ready());
    let (state, reason) = if ready { (State::Ready, "") } else { (State::Unavailable, "no target is ready") };
    if ready || !ready_only {
        each(IndexEntry { name: alias.name.name(), version: "", state, reason });
    }
}

/// Calls `each` for every version of `entry` that the index tells: all reachable ones, or one without a version.
fn index(entry: &DeploymentState, ready_only: bool, mut each: impl FnMut(IndexEntry<'_>)) {
    let route = entry.route();
    let name = entry.name.name();
    let waiting = entry.used().is_some_and(|hot| hot.queue.waiting() > 0);
    let mut tell = |version: &str, state: State, reason: &str| {
        if !ready_only || state == State::Ready {
            each(IndexEntry { name, version, state, reason });
        }
    };
    if route.targets.is_empty() {
        let (state, reason) = absent(&route, waiting);
        tell("", state, &reason);
    }
    for target in route.targets.iter() {
        match &target.replica {
            _ if target.answers() => tell(&target.version, State::Ready, ""),
            Some(_) => tell(&target.version, State::Unloading, ""),
            None => {
                let (state, reason) = absent(&route, waiting);
                tell(&target.version, state, &reason);
            }
        }
    }
}

/// The state of what is not here.
fn absent(route: &Resolved, waiting: bool) -> (State, Cow<'_, str>) {
    match &route.terms.on_miss {
        OnMiss::Park if waiting || !route.terms.on_demand => (State::Loading, "".into()),
        OnMiss::Park => (State::Unavailable, "unloaded".into()),
        OnMiss::NoCapacity { message, .. } | OnMiss::Failed { message, .. } | OnMiss::Restarting { message, .. } => {
            (State::Unavailable, without_places(message))
        }
        OnMiss::ScaledDown => (State::Unavailable, "scaled down".into()),
    }
}

/// The deployments and aliases of a namespace, which the index tells, in the order of their names.
pub(crate) fn entries(stack: &Stack, namespace: &str, asker: &Asker) -> Vec<RepositoryModel> {
    let mut entries: Vec<_> = stack.routes.all_in(namespace).into_iter().map(RepositoryModel::Deployment).collect();
    let aliases = stack.routes.aliases_in(namespace);
    if !aliases.is_empty() {
        entries.extend(aliases.into_iter().map(|alias| {
            let targets = alias.targets().existing();
            let targets = targets.iter().filter_map(|name| stack.routes.peek(name)).collect();
            RepositoryModel::Alias(alias, targets)
        }));
        entries.sort_by(|one, other| one.name().cmp(other.name()));
    }
    if !asker.is_open() {
        entries.retain(|entry| asker.may(Action::ReadModels, Resource::Model(entry.name().key())).is_ok());
    }
    entries
}
