//! The dashboard: its page, and the lists that it shows.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use berth_spec::status::Phase;
use berth_wire::api::{ErrorBody, HistoryView, List, ModelPage, Pulse, WorkerMemory};
use futures::StreamExt;

use super::ask::{Answer, Of, RawParameters, deployment as named, namespace};
use crate::api::{
    body::whole,
    dashboard,
    error::ApiError,
    query::Query,
    recorder,
    service::{MOST_PARTS, Selection, Service, Sort},
    trial,
    watch::version,
};

/// The most rows in one page. More do not fit on a screen.
const MOST_ROWS: usize = 200;

/// The farthest row that a page may begin with: more deployments than a cluster holds.
const FARTHEST: usize = 10_000_000;

/// The longest text to search for, in bytes: that of the longest name.
const LONGEST_SEARCH: usize = 1_024;

/// Limit for receiving a request that is tried. People type it; allows for bad links.
const ARRIVES_WITHIN: Duration = Duration::from_secs(10);

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
    let known =
        ["search", "namespace", "labelSelector", "phase", "sort", "descending", "offset", "limit", "deployment"];
    let query = asked.read(&known)?;
    if let Some(name) = named(&query, namespace(&query)?.as_ref())? {
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

/// Figures of the last hour or day: of a model, of a worker, or of all models together.
#[utoipa::path(
    get, path = "/v1/dashboard/history", tag = "tell", operation_id = "dashboard_history",
    params(
        ("deployment" = Option<String>, Query, description = "Of this deployment: NAME, or NAMESPACE/NAME"),
        ("worker" = Option<String>, Query, description = "Of this worker"),
        ("range" = Option<String>, Query, description = "hour (in steps of 10 s, unless given) or day (of 2 min)"),
    ),
    responses(
        (status = 200, description = "Lines of points; empty for a model that is not among the busiest", body = HistoryView),
        (status = 400, description = "A parameter is wrong", body = ErrorBody),
        (status = 404, description = "There is no worker of that name", body = ErrorBody),
    )
)]
pub(super) async fn history(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<HistoryView> {
    let query = asked.read(&["deployment", "worker", "range"])?;
    let range = query.text("range").map(recorder::range).transpose()?.unwrap_or_default();
    match (query.text("worker"), named(&query, None)?) {
        (Some(worker), None) => service.worker_history(worker, range).await.map(Json),
        (None, deployment) => service.model_history(deployment.as_ref(), range).await.map(Json),
        (Some(_), Some(_)) => {
            Err(ApiError::invalid("worker", "both a worker and a deployment are asked for", "ask for one"))
        }
    }
}

/// Live news as server-sent events: `events` with a list of new events, `pulse` with the state of the whole.
#[utoipa::path(
    get, path = "/v1/dashboard/stream", tag = "tell", operation_id = "dashboard_stream",
    params(("last-event-id" = Option<String>, Header, description = "Number of the last event that was received; 0 for those that are kept")),
    responses(
        (status = 200, description = "A stream", body = Pulse, content_type = "text/event-stream"),
        (status = 503, description = "Too many watch already", body = ErrorBody),
    )
)]
pub(super) async fn stream(
    State(service): State<Arc<Service>>,
    asked: RawParameters,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    asked.nothing()?;
    let after = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let after = after.map(|text| version("Last-Event-ID", text)).transpose()?;
    let news = service.news(after.map(|rev| rev.0)).await?;
    let fixed = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((fixed, Body::from_stream(news.map(Ok::<_, Infallible>))).into_response())
}

/// Inputs and outputs of a model, as its gateway says them.
#[utoipa::path(
    get, path = "/v1/deployments/{name}/try", tag = "tell", operation_id = "dashboard_signature",
    params(("name" = String, Path, description = "The deployment")),
    responses(
        (status = 200, description = "Model metadata of the Open Inference Protocol", body = Object),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 503, description = "Not now", body = ErrorBody),
    )
)]
pub(super) async fn signature(
    State(service): State<Arc<Service>>,
    Of(of): Of,
    asked: RawParameters,
) -> Result<Response, ApiError> {
    asked.nothing()?;
    let place = service.trial_place()?;
    service.trial(of, None, place).await.map(told)
}

/// Sends one inference to a model, as a client of this node's gateway. For trying it: up to 1 MiB, and one of eight at a time.
#[utoipa::path(
    post, path = "/v1/deployments/{name}/try", tag = "operate", operation_id = "dashboard_infer",
    params(("name" = String, Path, description = "The deployment")),
    request_body(content = Object, description = "An inference request of the Open Inference Protocol in JSON"),
    responses(
        (status = 200, description = "The model's answer, or with another status the gateway's refusal", body = Object),
        (status = 413, description = "It is too large", body = ErrorBody),
        (status = 503, description = "Not now", body = ErrorBody),
    )
)]
pub(super) async fn infer(
    State(service): State<Arc<Service>>,
    Of(of): Of,
    asked: RawParameters,
    body: Body,
) -> Result<Response, ApiError> {
    asked.nothing()?;
    let place = service.trial_place()?;
    let arrival = tokio::time::timeout(ARRIVES_WITHIN, whole(body, trial::MOST_BYTES)).await;
    let Ok(Ok(body)) = arrival else {
        let message = format!("the request is larger than {} MiB, or did not arrive whole", trial::MOST_BYTES >> 20);
        return Err(ApiError::new(berth_spec::Class::TooLarge, message));
    };
    service.trial(of, Some(body.into()), place).await.map(told)
}

/// The answer of a gateway as it came.
fn told(answer: trial::TrialAnswer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_GATEWAY);
    (status, [(header::CONTENT_TYPE, "application/json")], answer.body).into_response()
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
