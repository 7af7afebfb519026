//! Keep it running: health, version, metrics, cordons, and what there is to call.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{Html, IntoResponse, Response},
};
use berth_spec::Cordon;
use berth_wire::api::{ErrorBody, ReadinessView, VersionView, WorkerView};

use super::{
    ask::{Answer, NamedRequest},
    document,
};
use crate::api::{error::ApiError, service::Service};

/// Keeps new replicas off a worker. Those that it holds stay.
#[utoipa::path(
    post, path = "/v1/workers/{id}/cordon", tag = "operate",
    params(("id" = String, Path, description = "The worker")),
    responses(
        (status = 200, description = "The worker as it is now", body = WorkerView),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(super) async fn cordon(NamedRequest { service, name }: NamedRequest) -> Answer<WorkerView> {
    service.cordon(&name, Cordon::Cordoned).await.map(Json)
}

/// Lets a worker take new replicas again.
#[utoipa::path(
    post, path = "/v1/workers/{id}/uncordon", tag = "operate",
    params(("id" = String, Path, description = "The worker")),
    responses(
        (status = 200, description = "The worker as it is now", body = WorkerView),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(super) async fn uncordon(NamedRequest { service, name }: NamedRequest) -> Answer<WorkerView> {
    service.cordon(&name, Cordon::Open).await.map(Json)
}

/// Moves the replicas of a worker elsewhere: copies first, then they leave. It goes on answering meanwhile.
#[utoipa::path(
    post, path = "/v1/workers/{id}/drain", tag = "operate",
    params(("id" = String, Path, description = "The worker")),
    responses(
        (status = 200, description = "The worker as it is now", body = WorkerView),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(super) async fn drain(NamedRequest { service, name }: NamedRequest) -> Answer<WorkerView> {
    service.cordon(&name, Cordon::Draining).await.map(Json)
}

/// Report that the process is alive.
#[utoipa::path(
    get, path = "/healthz", tag = "operate",
    responses((status = 200, description = "It does", body = String, content_type = "text/plain"))
)]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Report if all resident models are ready.
#[utoipa::path(
    get, path = "/readyz", tag = "operate",
    responses(
        (status = 200, description = "It does", body = ReadinessView),
        (status = 503, description = "It does not yet", body = ReadinessView),
    )
)]
pub(super) async fn readyz(State(service): State<Arc<Service>>) -> Response {
    let readiness = service.readiness();
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

/// Show the version of Berth.
#[utoipa::path(
    get, path = "/version", tag = "operate",
    responses((status = 200, description = "Its version", body = VersionView))
)]
pub(super) async fn version(State(service): State<Arc<Service>>) -> Json<VersionView> {
    Json(service.version())
}

/// Every metric of the process.
#[utoipa::path(
    get, path = "/metrics", tag = "operate",
    responses((status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text"))
)]
pub(super) async fn metrics(State(service): State<Arc<Service>>) -> Result<Response, ApiError> {
    let text = service.metrics().await?;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}

/// Return this document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "operate",
    responses((status = 200, description = "OpenAPI 3.1", body = Object))
)]
pub(super) async fn openapi(State(service): State<Arc<Service>>) -> Response {
    let mut document = document();
    document.info.version = service.version().version;
    Json(document).into_response()
}

/// A page for people that lists what there is.
#[utoipa::path(
    get, path = "/", tag = "operate",
    responses((status = 200, description = "The page", body = String, content_type = "text/html"))
)]
pub(super) async fn index(State(service): State<Arc<Service>>) -> Html<String> {
    let mut rows = String::new();
    for (path, item) in &document().paths.paths {
        for (method, operation) in
            [("GET", &item.get), ("PUT", &item.put), ("POST", &item.post), ("DELETE", &item.delete)]
        {
            let Some(operation) = operation else { continue };
            let summary = operation.summary.as_deref().unwrap_or_default();
            let link = if method == "GET" && !path.contains('{') {
                format!("<a href=\"{path}\">{path}</a>")
            } else {
                path.clone()
            };
            // Writing to a String cannot fail.
            let _ = writeln!(rows, "<tr><td>{method}</td><td><code>{link}</code></td><td>{summary}</td></tr>");
        }
    }
    let version = service.version().version;
    Html(format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Berth control API</title>\
         <style>body{{font:15px/1.5 system-ui;margin:3rem auto;max-width:60rem;padding:0 1rem;color-scheme:light dark}}\
         td{{padding:.15rem 1rem .15rem 0;vertical-align:top}}</style>\
         <h1>Berth {version}: control API</h1>\
         <p><a href=\"dashboard/\"><b>Open the dashboard</b></a>, or use it with <code>berth get deployments</code> or with curl.</p>\
         <table>{rows}</table></html>"
    ))
}
