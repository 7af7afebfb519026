//! The registry that is followed: see it, have it looked at now; the secrets that it gives to workers.

use std::sync::Arc;

use axum::{
    Json,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use berth_wire::api::{ErrorBody, List, SecretView, SourceView};

use super::ask::{Answer, RawParameters};
use crate::api::{error::ApiError, service::Service};

/// The sources of deployments: the Git registry, if one is followed.
#[utoipa::path(
    get, path = "/v1/sources", tag = "tell",
    responses((status = 200, description = "At most one", body = List<SourceView>))
)]
pub(super) async fn sources(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<List<SourceView>> {
    asked.nothing()?;
    Ok(Json(service.sources()))
}

/// Show the Git registry.
#[utoipa::path(
    get, path = "/v1/sources/git", tag = "tell",
    responses(
        (status = 200, description = "The registry", body = SourceView),
        (status = 404, description = "None is followed", body = ErrorBody),
    )
)]
pub(super) async fn source(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<SourceView> {
    asked.nothing()?;
    service.source().map(Json)
}

/// Looks at the registry now, and validates again what was refused. What comes of it is told by `GET`.
#[utoipa::path(
    post, path = "/v1/sources/git/sync", tag = "operate", operation_id = "sync_source",
    responses(
        (status = 200, description = "The registry as it was before", body = SourceView),
        (status = 404, description = "None is followed", body = ErrorBody),
    )
)]
pub(super) async fn sync(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<SourceView> {
    asked.nothing()?;
    service.sync().map(Json)
}

/// Takes the webhooks of Git hosts: something may have been pushed. Nothing in the body is believed; where a secret is
/// configured it has to be proved (`X-Hub-Signature-256`, `X-Hub-Signature`, `X-Gitea-Signature`, `X-Berth-Signature`,
/// `X-Gitlab-Token`, or `Authorization: Bearer`).
#[utoipa::path(
    post, path = "/v1/sources/git/webhook", tag = "operate", operation_id = "webhook",
    responses(
        (status = 202, description = "It will be looked at"),
        (status = 403, description = "The secret was not proved", body = ErrorBody),
        (status = 404, description = "No registry is followed", body = ErrorBody),
    )
)]
pub(super) async fn webhook(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    service.webhook(&headers, &body)?;
    Ok(StatusCode::ACCEPTED)
}

/// The secrets of workers, without their values.
#[utoipa::path(
    get, path = "/v1/secrets", tag = "tell",
    responses((status = 200, description = "By worker and name", body = List<SecretView>))
)]
pub(super) async fn secrets(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<List<SecretView>> {
    asked.nothing()?;
    service.secrets().await.map(Json)
}
