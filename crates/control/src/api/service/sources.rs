//! Sources of deployments, and the secrets that they give to workers.

use std::{collections::BTreeMap, sync::LazyLock};

use axum::http::HeaderMap;
use berth_peer::port::Damped;
use berth_spec::{Generation, WorkerId};
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
    pub(crate) fn sources(&self) -> List<SourceView> {
        List::of(self.handle.sources().list().iter().map(view).collect())
    }

    pub(crate) fn source(&self, name: &str) -> Result<SourceView, ApiError> {
        let found = SourceName::new(name).ok().and_then(|name| self.handle.sources().get(&name));
        found.as_ref().map(view).ok_or_else(|| self.no_source(name))
    }

    pub(crate) fn sync(&self, name: &str) -> Result<SourceView, ApiError> {
        let before = self.source(name)?;
        let asked = SourceName::new(name).is_ok_and(|name| self.handle.sources().request(&name, Request::Sync));
        if asked { Ok(before) } else { Err(self.no_source(name)) }
    }

    pub(crate) async fn pause(&self, name: &str, pause: bool) -> Result<SourceView, ApiError> {
        if let Ok(known) = SourceName::new(name) {
            self.handle.pause_source(&known, pause).await?;
        }
        self.source(name)
    }

    pub(crate) fn webhook(&self, name: &str, headers: &HeaderMap, body: &[u8]) -> Result<(), ApiError> {
        let known = SourceName::new(name).ok();
        match known.and_then(|name| self.handle.sources().webhook(&name, headers, body)) {
            // Strangers reach this route, and names of sources are not for them.
            None => Err(ApiError::not_found(format!("there is no source {name:?}"))),
            Some(Ok(())) => Ok(()),
            Some(Err(problem)) => {
                // Strangers can do this at any rate.
                if let Some(times) = WEBHOOKS_REFUSED.tell(tokio::time::Instant::now()) {
                    tracing::warn!(
                        event = "webhook_refused",
                        source = name,
                        times,
                        "no valid proof of the webhook secret"
                    );
                }
                Err(ApiError::forbidden(problem))
            }
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
