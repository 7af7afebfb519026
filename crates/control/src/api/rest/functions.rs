//! Functions: see them, and read their logs.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use berth_wire::api::{ErrorBody, FunctionView, List};

use super::ask::{Answer, RawParameters};
use crate::api::{error::ApiError, service::Service};

/// The functions, by name.
#[utoipa::path(
    get, path = "/v1/functions", tag = "tell",
    responses((status = 200, description = "All of them", body = List<FunctionView>))
)]
pub(super) async fn functions(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<List<FunctionView>> {
    asked.nothing()?;
    Ok(Json(service.functions()))
}

/// Show a function.
#[utoipa::path(
    get, path = "/v1/functions/{name}", tag = "tell",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The function", body = FunctionView),
        (status = 404, description = "There is no such function", body = ErrorBody),
    )
)]
pub(super) async fn function(
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
    asked: RawParameters,
) -> Answer<FunctionView> {
    asked.nothing()?;
    service.function(&name).map(Json)
}

/// The log of a function's last build, then the end of what its process has said.
#[utoipa::path(
    get, path = "/v1/functions/{name}/log", tag = "tell", operation_id = "function_log",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "Text", body = String, content_type = "text/plain"),
        (status = 404, description = "There is no such function", body = ErrorBody),
    )
)]
pub(super) async fn log(
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
    asked: RawParameters,
) -> Result<Response, ApiError> {
    asked.nothing()?;
    let mut response = service.function_log(name).await?.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}
