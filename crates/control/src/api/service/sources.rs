//! The registry that is followed, and the secrets that it gives.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use berth_spec::{Generation, WorkerId};
use berth_wire::api::{
    API_VERSION, Kind, List, Metadata, RefusedCommit, SecretStatus, SecretView, SourceBreaker, SourceSpec,
    SourceStatus, SourceView, Timestamp, WriteBackStatus,
};

use super::Service;
use crate::{
    api::error::ApiError,
    source::{self, Trigger, proved},
};

impl Service {
    pub(crate) fn sources(&self) -> List<SourceView> {
        List::of(self.handle.board.source().iter().map(view).collect())
    }

    pub(crate) fn source(&self) -> Result<SourceView, ApiError> {
        self.handle.board.source().as_ref().map(view).ok_or_else(none)
    }

    pub(crate) fn sync(&self) -> Result<SourceView, ApiError> {
        if !self.handle.board.ask(Trigger::Sync) {
            return Err(none());
        }
        self.source()
    }

    pub(crate) fn webhook(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), ApiError> {
        let hook = self.handle.board.hook().ok_or_else(none)?;
        if !proved(&hook, headers, body) {
            hook.count("refused");
            tracing::warn!(event = "webhook_refused", "webhook refused: wrong signature");
            return Err(ApiError::forbidden(
                "the webhook does not prove that it knows the secret: give both sides the same",
            ));
        }
        hook.count("taken");
        self.handle.board.ask(Trigger::Webhook);
        Ok(())
    }

    pub(crate) async fn secrets(&self) -> Result<List<SecretView>, ApiError> {
        let secrets = self.handle.board.secrets();
        let mut has: BTreeMap<WorkerId, Generation> = BTreeMap::new();
        if !secrets.is_empty() {
            has.extend(self.handle.workers().await?.into_iter().map(|worker| (worker.info.id, worker.credentials)));
        }
        let view = |secret: &berth_secrets::SecretStatus| SecretView {
            api_version: API_VERSION.to_owned(),
            kind: SecretView::KIND.to_owned(),
            metadata: Metadata::named(format!("{}/{}", secret.worker, secret.name)),
            status: SecretStatus {
                worker: secret.worker.to_string(),
                name: secret.name.clone(),
                kind: secret.kind.map(|kind| kind.to_string()).unwrap_or_default(),
                backend: secret.backend.to_string(),
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

fn none() -> ApiError {
    ApiError::not_found("no registry is followed: start the controllers with --source git=URL#BRANCH")
}

fn view(source: &source::SourceView) -> SourceView {
    let breaker = |(dependency, breaker): (&String, &source::SourceBreaker)| SourceBreaker {
        dependency: dependency.clone(),
        state: breaker.state.as_str().to_owned(),
        failures: breaker.failures,
        retry_at: breaker.retry_at.map(Timestamp),
    };
    SourceView {
        api_version: API_VERSION.to_owned(),
        kind: SourceView::KIND.to_owned(),
        metadata: Metadata::named(source.kind),
        spec: SourceSpec { url: source.url.clone(), branch: source.branch.clone() },
        status: SourceStatus {
            state: source.state.to_owned(),
            seen: source.seen.clone(),
            applied: source.applied.clone(),
            applied_at: source.applied_at.map(Timestamp),
            author: source.author.clone(),
            signer: source.signer.clone(),
            subject: source.subject.clone(),
            deployments: source.deployments as u64,
            checked_at: source.checked_at.map(Timestamp),
            next_check: source.next_check.map(Timestamp),
            problem: source.problem.clone(),
            refused: source.refused.clone().map(|(commit, outcome)| RefusedCommit {
                commit,
                outcome,
                validated_again: source.validated_again.map(Timestamp),
            }),
            conflicts: source.conflicts.clone(),
            write_back: WriteBackStatus {
                to: source.write_back.clone(),
                commit: source.written.clone(),
                problem: source.write_problem.clone(),
            },
            breakers: source.breakers.iter().map(breaker).collect(),
        },
    }
}
