//! The dashboard: its page, and the lists that it shows.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use berth_spec::status::Phase;
use berth_wire::api::{ErrorBody, List, ModelPage, WorkerMemory};

use super::ask::{Answer, RawParameters, deployment as named, namespace};
use crate::api::{
    dashboard,
    error::ApiError,
    query::Query,
    service::{Selection, Service, Sort},
};

/// The most rows in one page. More do not fit on a screen.
const MOST_ROWS: usize = 200;

/// The farthest row that a page may begin with: more deployments than a cluster holds.
const FARTHEST: usize = 10_000_000;

/// The longest text to search for, in bytes: that of the longest name.
const LONGEST_SEARCH: usize = 1_024;

/// The most replicas that a worker's memory is split into.
const MOST_PARTS: usize = 100;

/// One page of models, searched, filtered and sorted here.
#[utoipa::path(
    get, path = "/v1/dashboard/models", tag = "tell", operation_id = "dashboard_models",
    params(
        ("search" = Option<String>, Query, description = "Only names with this part, in any case"),
        ("namespace" = Option<String>, Query, description = "Only this namespace"),
        ("labelSelector" = Option<String>, Query, description = "`key=value`, `key!=value`, `key`, `!key`, joined by commas"),
        ("phase" = Option<String>, Query, description = "Only this phase"),
        ("sort" = Option<String>, Query, description = "name, phase, ready, memory, lastUsed, requests, failures, misses, latency"),
        ("descending" = Option<bool>, Query, description = "The largest first"),
        ("offset" = Option<u32>, Query, description = "Number of rows before the page"),
        ("limit" = Option<u32>, Query, description = "The most rows, up to 200; 50 unless given"),
        ("deployment" = Option<String>, Query, description = "Only this deployment: NAME, or NAMESPACE/NAME; nothing else is looked at"),
    ),
    responses(
        (status = 200, description = "A page", body = ModelPage),
        (status = 400, description = "A parameter is wrong", body = ErrorBody),
    )
)]
pub(super) async fn models(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<ModelPage> {
    let known = [
        "search", "namespace", "labelSelector", "phase", "sort", "descending", "offset", "limit", "deployment",
    ];
    let query = asked.read(&known)?;
    if let Some(name) = named(&query)? {
        return service.model_alone(&name).await.map(Json);
    }
    service.model_page(selection(&query)?).await.map(Json)
}

/// Memory of every worker by model, the largest one by one.
#[utoipa::path(
    get, path = "/v1/dashboard/memory", tag = "tell", operation_id = "dashboard_memory",
    params(("largest" = Option<u32>, Query, description = "The most replicas of a worker one by one, up to 100; 12 unless given")),
    responses((status = 200, description = "By worker", body = List<WorkerMemory>))
)]
pub(super) async fn memory(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<List<WorkerMemory>> {
    let largest = asked.read(&["largest"])?.number("largest", MOST_PARTS)?;
    service.worker_memory(largest.unwrap_or(12)).await.map(Json)
}

/// Redirect to the dashboard.
#[utoipa::path(
    get, path = "/dashboard", tag = "operate", operation_id = "dashboard_moved",
    responses((status = 308, description = "To /dashboard/"), (status = 200, description = "The page, after that"))
)]
pub(super) async fn moved() -> Response {
    dashboard::moved()
}

/// The dashboard, for people.
#[utoipa::path(
    get, path = "/dashboard/", tag = "operate", operation_id = "dashboard_page",
    responses((status = 200, description = "The page", body = String, content_type = "text/html"))
)]
pub(super) async fn page() -> Response {
    dashboard::file("").unwrap_or_else(|| ApiError::not_found("this build has no dashboard").into_response())
}

/// Files of the dashboard.
#[utoipa::path(
    get, path = "/dashboard/{file}", tag = "operate", operation_id = "dashboard_file",
    params(("file" = String, Path, description = "Name of the file")),
    responses(
        (status = 200, description = "The file"),
        (status = 404, description = "There is no such file", body = ErrorBody),
    )
)]
pub(super) async fn file(Path(file): Path<String>) -> Response {
    let missing = || ApiError::not_found(format!("the dashboard has no file {file:?}: open /dashboard/"));
    dashboard::file(&file).unwrap_or_else(|| missing().into_response())
}

fn selection(query: &Query) -> Result<Selection, ApiError> {
    let search = query.text("search").unwrap_or_default();
    if search.len() > LONGEST_SEARCH {
        let message = format!("the query parameter search is longer than {LONGEST_SEARCH} bytes");
        return Err(ApiError::invalid("search", message, "shorten it"));
    }
    let phase = query.text("phase").map(phase).transpose()?;
    let sort = query.text("sort").map(sort).transpose()?.unwrap_or_default();
    let offset = match query.text("offset") {
        None | Some("0") => 0,
        Some(_) => query.number("offset", FARTHEST)?.unwrap_or(0),
    };
    Ok(Selection {
        search: search.to_owned(),
        namespace: namespace(query)?,
        labels: query.text("labelSelector").unwrap_or_default().parse()?,
        phase,
        sort,
        descending: query.flag("descending")?,
        offset,
        limit: query.number("limit", MOST_ROWS)?.unwrap_or(50),
    })
}

fn phase(text: &str) -> Result<Phase, ApiError> {
    one_of("phase", text, &Phase::ALL.map(|phase| (phase.as_str(), phase)))
}

fn sort(text: &str) -> Result<Sort, ApiError> {
    one_of("sort", text, &Sort::NAMES)
}

/// The value that `text` names.
fn one_of<T: Copy>(parameter: &str, text: &str, values: &[(&str, T)]) -> Result<T, ApiError> {
    let found = values.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
        let message = format!("the query parameter {parameter} is {text:?}");
        ApiError::invalid(parameter, message, format!("write one of {}", names.join(", ")))
    })
}
