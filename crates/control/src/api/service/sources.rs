//! Sources of deployments, and the secrets that they give to workers.

use std::{collections::BTreeMap, sync::LazyLock};

use axum::http::HeaderMap;
use berth_peer::port::Damped;
use berth_spec::{Generation, Origin, WorkerId};
use berth_wire::api::{
    API_VERSION, Kind, List, Metadata, RefusedRevision, SecretStatus, SecretView, SourceBreaker, SourceSpec,
    SourceStatus, SourceView, Timestamp,
};

use super::Service;
use crate::{
    api::error::ApiError,
    source::{self, Request, SourceName, WorkerSecret},
};

/// Damps the log line of webhooks without a valid proof: once a minute and process.
static WEBHOOKS_REFUSED: LazyLock<Damped> = LazyLock::new(Damped::default);

impl Service {
    pub(crate) async fn sources(&self) -> List<SourceView> {
        let mut views = Vec::new();
        for source in self.handle.sources().list() {
            views.push(self.looked_at(&source).await);
        }
        List::of(views)
    }

    pub(crate) async fn source(&self, name: &str) -> Result<SourceView, ApiError> {
        Ok(self.looked_at(&self.found(name)?).await)
    }

    fn found(&self, name: &str) -> Result<source::SourceStatus, ApiError> {
        let found = SourceName::new(name).ok().and_then(|name| self.handle.sources().get(&name));
        found.ok_or_else(|| self.no_source(name))
    }

    /// A source, with what became of its deployments. A controller that is too busy to say so does not hide the source.
    async fn looked_at(&self, source: &source::SourceStatus) -> SourceView {
        let mut view = view(source);
        if let Some(origin) = &source.origin {
            view.status.stuck = self.stuck_of(origin).await.ok();
        }
        view
    }

    pub(crate) fn sync(&self, name: &str) -> Result<SourceView, ApiError> {
        let before = view(&self.found(name)?);
        let asked = SourceName::new(name).is_ok_and(|name| self.handle.sources().request(&name, Request::Sync));
        if asked { Ok(before) } else { Err(self.no_source(name)) }
    }

    pub(crate) async fn pause(&self, name: &str, pause: bool) -> Result<SourceView, ApiError> {
        if let Ok(known) = SourceName::new(name) {
            self.handle.pause_source(&known, pause).await?;
        }
        self.found(name).map(|source| view(&source))
    }

    /// The source that a webhook is for. Tells no names, because strangers reach this route.
    pub(crate) fn webhook_source(&self, name: &str) -> Result<SourceName, ApiError> {
        let found = SourceName::new(name).ok().filter(|name| self.handle.sources().get(name).is_some());
        found.ok_or_else(|| nowhere(name))
    }

    pub(crate) fn webhook(&self, name: &SourceName, headers: &HeaderMap, body: &[u8]) -> Result<(), ApiError> {
        match self.handle.sources().webhook(name, headers, body) {
            None => Err(nowhere(name.as_str())),
            Some(Ok(())) => Ok(()),
            Some(Err(problem)) => Err(refused(name.as_str(), problem)),
        }
    }

    /// The Git sources, which a webhook for all of them is for.
    pub(crate) fn webhook_sources(&self) -> Result<Vec<SourceName>, ApiError> {
        let registries = self.handle.sources().list().into_iter().filter(|source| source.kind == Origin::GIT);
        let names: Vec<_> = registries.map(|source| source.name).collect();
        if names.is_empty() { Err(ApiError::not_found("this server follows no Git registry")) } else { Ok(names) }
    }

    /// Takes one webhook for these sources. Tells no names, because strangers reach this route.
    pub(crate) fn webhook_of_all(
        &self,
        registries: &[SourceName],
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(), ApiError> {
        let sources = self.handle.sources();
        // Each is asked: the first that takes it must not keep it from the others.
        let taken: Vec<_> = registries.iter().filter_map(|name| sources.webhook(name, headers, body)).collect();
        if taken.iter().any(Result::is_ok) {
            return Ok(());
        }
        match taken.into_iter().find_map(Result::err) {
            Some(problem) => Err(refused("all", problem)),
            None => Err(ApiError::not_found("this server follows no Git registry")),
        }
    }

    fn no_source(&self, name: &str) -> ApiError {
        let names: Vec<String> = self.handle.sources().list().iter().map(|source| source.name.to_string()).collect();
        ApiError::not_found(if names.is_empty() {
            "no sources are configured: start the controllers with --source git+URL#BRANCH or --source FOLDER"
                .to_owned()
        } else {
            format!("there is no source {name:?}: there are {}", names.join(", "))
        })
    }

    pub(crate) async fn secrets(&self) -> Result<List<SecretView>, ApiError> {
        let secrets = self.handle.sources().secrets();
        let mut has: BTreeMap<WorkerId, Generation> = BTreeMap::new();
        if !secrets.is_empty() {
            has.extend(self.handle.workers().await?.into_iter().map(|worker| (worker.info.id, worker.credentials)));
        }
        let view = |secret: &WorkerSecret| SecretView {
            api_version: API_VERSION.to_owned(),
            kind: SecretView::KIND.to_owned(),
            metadata: Metadata::named(format!("{}/{}", secret.worker, secret.name)),
            status: SecretStatus {
                worker: secret.worker.to_string(),
                name: secret.name.clone(),
                kind: secret.kind.clone(),
                backend: secret.backend.clone(),
                held_by: secret.held_by.clone(),
                generation: secret.generation.0,
                adopted: secret.generation > Generation(0)
                    && has.get(&secret.worker).is_some_and(|has| *has >= secret.generation),
                renewed_at: secret.renewed.map(Timestamp),
                expires_at: secret.expires.map(Timestamp),
                problem: secret.problem.clone(),
            },
        };
        Ok(List::of(secrets.iter().map(view).collect()))
    }
}

/// The answer to a webhook for a source that there is not.
fn nowhere(source: &str) -> ApiError {
    ApiError::not_found(format!("there is no source {source:?}"))
}

/// The answer to a webhook without a valid proof, and its log line: strangers can send these at any rate.
fn refused(source: &str, problem: String) -> ApiError {
    if let Some(times) = WEBHOOKS_REFUSED.tell(tokio::time::Instant::now()) {
        tracing::warn!(event = "webhook_refused", source, times, "no valid proof of the webhook secret");
    }
    ApiError::forbidden(problem)
}

fn view(source: &source::SourceStatus) -> SourceView {
    let breaker = |(dependency, breaker): (&String, &source::SourceBreaker)| SourceBreaker {
        dependency: dependency.clone(),
        state: breaker.state.as_str().to_owned(),
        failures: breaker.failures,
        retry_at: breaker.retry_at.map(Timestamp),
    };
    SourceView {
        api_version: API_VERSION.to_owned(),
        kind: SourceView::KIND.to_owned(),
        metadata: Metadata::named(source.name.to_string()),
        spec: SourceSpec { kind: source.kind.to_owned(), location: source.location.clone() },
        status: SourceStatus {
            state: source.state.as_str().to_owned(),
            paused: source.paused,
            seen: source.seen.clone(),
            applied: source.revision.clone(),
            applied_at: source.applied_at.map(Timestamp),
            deployments: source.counts.deployments as u64,
            disabled: source.counts.disabled as u64,
            stuck: None,
            checked_at: source.checked_at.map(Timestamp),
            next_check: source.next_check.map(Timestamp),
            problem: source.problem.clone(),
            refused: source.refused.clone().map(|refused| RefusedRevision {
                commit: refused.revision,
                outcome: refused.outcome,
                validated_again: refused.validated_again.map(Timestamp),
            }),
            conflicts: source.conflicts.clone(),
            breakers: source.breakers.iter().map(breaker).collect(),
            details: source.details.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        },
    }
}
