//! Names each request: its id is in the log, in the answer, and in the body of an error.

use axum::{
    Json,
    body::HttpBody as _,
    extract::Request,
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};
use berth_wire::{
    api::{ErrorBody, ErrorInfo},
    request_id::RequestId,
};
use tracing::{Instrument as _, Span};

/// Middleware: gives a request its id, or keeps the client's, for the log and the answer.
pub(super) async fn name(mut request: Request, next: Next) -> Response {
    let id = RequestId::settle(request.headers_mut());
    let response = next.run(request).instrument(span(&id)).await;
    answered(response, id)
}

/// Span of all that is logged for a request.
pub(super) fn span(id: &RequestId) -> Span {
    tracing::info_span!("request", request_id = id.as_str())
}

/// The answer to the request of this id.
pub(super) fn answered(mut response: Response, id: RequestId) -> Response {
    // The answer to HEAD has no body.
    let empty = response.body().size_hint().exact() == Some(0);
    if let Some(mut error) = response.extensions_mut().remove::<ErrorInfo>().filter(|_| !empty) {
        error.request_id = Some(id.to_string());
        // It was that of the body without the id.
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Json(ErrorBody { error }).into_response().into_body();
    }
    id.mark(response.headers_mut());
    response
}
