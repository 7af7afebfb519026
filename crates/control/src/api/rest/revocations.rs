//! Revocations of node certificates: make, list and take them back.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use berth_wire::api::{ErrorBody, List, NewRevocation, RevocationView};

use super::ask::{Answer, RawParameters, SenderName};
use crate::api::{body::SmallBody, error::ApiError, service::Service, trail::Notes};

/// The revocations, by their time.
#[utoipa::path(
    get, path = "/v1/revocations", tag = "tell",
    responses(
        (status = 200, description = "All of them", body = List<RevocationView>),
        (status = 409, description = "The server is alone", body = ErrorBody),
    )
)]
pub(super) async fn revocations(
    State(service): State<Arc<Service>>,
    asked: RawParameters,
) -> Answer<List<RevocationView>> {
    asked.nothing()?;
    service.revocations().await.map(Json)
}

/// Revoke the certificates of a node, or one certificate: no node takes them any more, within seconds.
#[utoipa::path(
    post, path = "/v1/revocations", tag = "operate", operation_id = "revoke_certificates",
    request_body = NewRevocation,
    responses(
        (status = 201, description = "They are revoked", body = RevocationView),
        (status = 400, description = "No such certificates can be", body = ErrorBody),
        (status = 409, description = "The server is alone, or there are too many", body = ErrorBody),
    )
)]
pub(super) async fn revoke(
    State(service): State<Arc<Service>>,
    SenderName(by): SenderName,
    asked: RawParameters,
    notes: Notes,
    body: SmallBody,
) -> Result<(StatusCode, Json<RevocationView>), ApiError> {
    asked.nothing()?;
    let new: NewRevocation = serde_json::from_slice(body.bytes()).map_err(|error| {
        ApiError::invalid("body", format!("this is no revocation: {error}"), "send {\"spec\": {\"node\": …}}")
    })?;
    let made = service.revoke(&by, new).await?;
    notes.about_global("Revocation", &made.metadata.name);
    Ok((StatusCode::CREATED, Json(made)))
}

/// Take a revocation back: its certificates are taken again.
#[utoipa::path(
    delete, path = "/v1/revocations/{id}", tag = "operate", operation_id = "reinstate_certificates",
    params(("id" = String, Path, description = "Its name, as the list shows it")),
    responses(
        (status = 200, description = "It is taken back", body = RevocationView),
        (status = 404, description = "There is no such revocation", body = ErrorBody),
    )
)]
pub(super) async fn reinstate(
    State(service): State<Arc<Service>>,
    SenderName(by): SenderName,
    Path(id): Path<String>,
    asked: RawParameters,
) -> Answer<RevocationView> {
    asked.nothing()?;
    service.reinstate(&by, &id).await.map(Json)
}
