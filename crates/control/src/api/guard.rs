//! Guard against web pages of other sites that use the API through a user's browser: every request passes
//! [`berth_wire::guard`].

use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse, Response},
};
use berth_wire::guard::Guard;

use super::error::ApiError;

/// Lets the request through or refuses it.
pub(super) async fn check(guard: Guard, request: Request, next: Next) -> Response {
    match guard.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(foreign) => ApiError::forbidden(foreign.to_string()).into_response(),
    }
}
