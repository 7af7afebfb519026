//! Join tokens: make, list and revoke them.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use berth_wire::api::{CreatedJoinToken, ErrorBody, JoinTokenView, List, NewJoinToken};

use super::ask::{Answer, RawParameters, SenderName, created_secret};
use crate::api::{body::SmallBody, error::ApiError, service::Service, trail::Notes};

/// The join tokens, by the time of their creation; never their secrets.
#[utoipa::path(
    get, path = "/v1/join-tokens", tag = "tell",
    responses((status = 200, description = "All of them", body = List<JoinTokenView>))
)]
pub(super) async fn join_tokens(
    State(service): State<Arc<Service>>,
    asked: RawParameters,
) -> Answer<List<JoinTokenView>> {
    asked.nothing()?;
    service.join_tokens().await.map(Json)
}

/// Make a join token. The answer has its secret, which is shown this once.
#[utoipa::path(
    post, path = "/v1/join-tokens", tag = "operate", operation_id = "create_join_token",
    request_body = NewJoinToken,
    responses(
        (status = 201, description = "It is made", body = CreatedJoinToken),
        (status = 400, description = "No such token can be", body = ErrorBody),
        (status = 409, description = "The leader issues no certificates, or there are too many", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(service): State<Arc<Service>>,
    SenderName(by): SenderName,
    asked: RawParameters,
    notes: Notes,
    body: SmallBody,
) -> Result<Response, ApiError> {
    asked.nothing()?;
    let new: NewJoinToken = serde_json::from_slice(body.bytes()).map_err(|error| {
        ApiError::invalid("body", format!("this is no join token: {error}"), "send {\"spec\": {\"roles\": …}}")
    })?;
    let created = service.create_join_token(&by, new).await?;
    notes.about_global("JoinToken", &created.token.metadata.name);
    Ok(created_secret(created))
}

/// Revoke a join token: no node joins with it any more.
#[utoipa::path(
    delete, path = "/v1/join-tokens/{id}", tag = "operate", operation_id = "revoke_join_token",
    params(("id" = String, Path, description = "Its public part, as the list shows it")),
    responses(
        (status = 200, description = "It is revoked", body = JoinTokenView),
        (status = 404, description = "There is no such token", body = ErrorBody),
    )
)]
pub(super) async fn revoke(
    State(service): State<Arc<Service>>,
    SenderName(by): SenderName,
    Path(id): Path<String>,
    asked: RawParameters,
) -> Answer<JoinTokenView> {
    asked.nothing()?;
    service.revoke_join_token(&by, &id).await.map(Json)
}
