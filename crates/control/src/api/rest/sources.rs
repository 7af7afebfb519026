//! Sources of deployments: see them, have one looked at now, pause and resume it; the secrets that they give to workers.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Request, State},
    http::StatusCode,
};
use berth_wire::api::{ErrorBody, List, SecretView, SourceView};

use super::ask::{Answer, RawParameters};
use crate::api::{body::SmallBody, error::ApiError, service::Service};

/// The sources of deployments, by name.
#[utoipa::path(
    get, path = "/v1/sources", tag = "tell",
    responses((status = 200, description = "All of them", body = List<SourceView>))
)]
pub(super) async fn sources(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<List<SourceView>> {
    asked.nothing()?;
    Ok(Json(service.sources().await))
}

/// Show a source.
#[utoipa::path(
    get, path = "/v1/sources/{name}", tag = "tell",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The source", body = SourceView),
        (status = 404, description = "There is no such source", body = ErrorBody),
    )
)]
pub(super) async fn source(
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
    asked: RawParameters,
) -> Answer<SourceView> {
    asked.nothing()?;
    service.source(&name).await.map(Json)
}

/// Read the source now, and validate a refused commit again. `GET` shows the result.
#[utoipa::path(
    post, path = "/v1/sources/{name}/sync", tag = "operate", operation_id = "sync_source",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The source as it was before", body = SourceView),
        (status = 404, description = "There is no such source", body = ErrorBody),
    )
)]
pub(super) async fn sync(
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
    asked: RawParameters,
) -> Answer<SourceView> {
    asked.nothing()?;
    service.sync(&name).map(Json)
}

/// Pauses the source: what it declared stays, and nothing new is taken until it is resumed. A pause survives restarts.
#[utoipa::path(
    post, path = "/v1/sources/{name}/pause", tag = "operate", operation_id = "pause_source",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The source", body = SourceView),
        (status = 404, description = "There is no such source", body = ErrorBody),
    )
)]
pub(super) async fn pause(
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
    asked: RawParameters,
) -> Answer<SourceView> {
    asked.nothing()?;
    service.pause(&name, true).await.map(Json)
}

/// Resumes the source, and reads it now.
#[utoipa::path(
    post, path = "/v1/sources/{name}/resume", tag = "operate", operation_id = "resume_source",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The source", body = SourceView),
        (status = 404, description = "There is no such source", body = ErrorBody),
    )
)]
pub(super) async fn resume(
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
    asked: RawParameters,
) -> Answer<SourceView> {
    asked.nothing()?;
    service.pause(&name, false).await.map(Json)
}

/// Takes the webhooks of Git hosts: something may have been pushed. Nothing in the body is believed; where a secret is
/// configured the request has to prove it (`X-Hub-Signature-256`, `X-Hub-Signature`, `X-Gitea-Signature`,
/// `X-Berth-Signature`, `X-Gitlab-Token`, or `Authorization: Bearer`).
#[utoipa::path(
    post, path = "/v1/sources/{name}/webhook", tag = "operate", operation_id = "webhook",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 202, description = "The source will be read"),
        (status = 403, description = "The secret was not proved", body = ErrorBody),
        (status = 404, description = "There is no such source", body = ErrorBody),
        (status = 413, description = "It is larger than 1 MiB", body = ErrorBody),
        (status = 503, description = "Too many are being read", body = ErrorBody),
    )
)]
pub(super) async fn webhook(
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    // Strangers send these: nothing is read for a name that nobody configured.
    let source = service.webhook_source(&name)?;
    let headers = request.headers().clone();
    let body = SmallBody::of_webhook(request, &service).await?;
    service.webhook(&source, &headers, body.bytes())?;
    Ok(StatusCode::ACCEPTED)
}

/// Takes a webhook for all Git registries that are followed, so that the sender need not know their names. The proof is that of the
/// webhook of one source.
#[utoipa::path(
    post, path = "/v1/webhook", tag = "operate", operation_id = "webhook_of_all",
    responses(
        (status = 202, description = "The registries will be read"),
        (status = 403, description = "The secret was not proved", body = ErrorBody),
        (status = 404, description = "No Git registry is followed", body = ErrorBody),
        (status = 413, description = "It is larger than 1 MiB", body = ErrorBody),
        (status = 503, description = "Too many are being read", body = ErrorBody),
    )
)]
pub(super) async fn webhook_of_all(
    State(service): State<Arc<Service>>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let registries = service.webhook_sources()?;
    let headers = request.headers().clone();
    let body = SmallBody::of_webhook(request, &service).await?;
    service.webhook_of_all(&registries, &headers, body.bytes())?;
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
