//! Tokens: make, list and revoke them; and who the sender of a request is.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::Response,
};
use berth_wire::api::{CreatedToken, ErrorBody, List, NewToken, PrincipalView, TokenView};

use super::ask::{Answer, RawParameters, Sender, SenderName, created_secret};
use crate::api::{body::SmallBody, error::ApiError, service::Service, trail::Notes};

/// The sender of the request: its name, its roles and where they hold, the end of its token.
#[utoipa::path(
    get, path = "/v1/whoami", tag = "tell",
    responses((status = 200, description = "The principal", body = PrincipalView))
)]
pub(super) async fn whoami(Sender(asker): Sender, asked: RawParameters) -> Answer<PrincipalView> {
    asked.nothing()?;
    Ok(Json(PrincipalView::of(&asker)))
}

/// The tokens, by the time of their creation; never their secrets.
#[utoipa::path(
    get, path = "/v1/tokens", tag = "tell",
    responses((status = 200, description = "All of them", body = List<TokenView>))
)]
pub(super) async fn tokens(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<List<TokenView>> {
    asked.nothing()?;
    service.tokens().await.map(Json)
}

/// Make a token. The answer has its secret, which is shown this once.
#[utoipa::path(
    post, path = "/v1/tokens", tag = "operate", operation_id = "create_token",
    request_body = NewToken,
    responses(
        (status = 201, description = "It is made", body = CreatedToken),
        (status = 400, description = "No such token can be", body = ErrorBody),
        (status = 409, description = "There are too many", body = ErrorBody),
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
    let new: NewToken = serde_json::from_slice(body.bytes()).map_err(|error| {
        ApiError::invalid("body", format!("this is no token: {error}"), "send {\"spec\": {\"role\": …}}")
    })?;
    let created = service.create_token(&by, new).await?;
    notes.about_global("Token", &created.token.metadata.name);
    Ok(created_secret(created))
}

/// Revoke a token: nobody gets in with it any more.
#[utoipa::path(
    delete, path = "/v1/tokens/{id}", tag = "operate", operation_id = "revoke_token",
    params(("id" = String, Path, description = "Its public part, as the list shows it")),
    responses(
        (status = 200, description = "It is revoked", body = TokenView),
        (status = 404, description = "There is no such token", body = ErrorBody),
    )
)]
pub(super) async fn revoke(
    State(service): State<Arc<Service>>,
    SenderName(by): SenderName,
    Path(id): Path<String>,
    asked: RawParameters,
) -> Answer<TokenView> {
    asked.nothing()?;
    service.revoke_token(&by, &id).await.map(Json)
}
