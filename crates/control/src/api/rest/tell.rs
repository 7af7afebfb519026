//! Read access to all resources.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use berth_spec::{DeploymentName, Namespace};
use berth_wire::api::{
    AliasView, DeploymentView, ErrorBody, EventView, ExplainView, List, LogView, ReplicaView, RevisionView,
    RolloutHistory, TopView, WorkerView,
};

use super::ask::{Answer, Of, PathNamespace, RawParameters, deployment as named, lines, namespace, tagged};
use crate::{
    api::{
        error::ApiError,
        log::MOST_LINES,
        peer_queries::MOST_MODELS,
        query::Query,
        service::{ListPage, Service},
        watch::{DeploymentWatch, WatchReader, version},
    },
    events::{EventFilter, EventScope},
};

/// The most events in one answer: more than are kept.
const MOST_EVENTS: usize = 10_000;

/// Deployments, by name, a page at a time; or, with `watch=true`, as they change.
#[utoipa::path(
    get, path = "/v1/deployments", tag = "tell",
    params(
        ("namespace" = Option<String>, Query, description = "Only this namespace"),
        ("labelSelector" = Option<String>, Query, description = "`key=value`, `key!=value`, `key`, `!key`, joined by commas"),
        ("limit" = Option<u32>, Query, description = "The most in one page, up to 500"),
        ("continue" = Option<String>, Query, description = "metadata.continue of the page before"),
        ("watch" = Option<bool>, Query, description = "Newline-delimited JSON of WatchEvent: what there is, then changes"),
        ("resourceVersion" = Option<String>, Query, description = "With watch: only changes after this version"),
    ),
    responses(
        (status = 200, description = "A page, or a watch", body = List<DeploymentView>),
        (status = 400, description = "A parameter is wrong", body = ErrorBody),
        (status = 409, description = "With watch: the version is too old, list again", body = ErrorBody),
        (status = 503, description = "Not now", body = ErrorBody),
    )
)]
pub(super) async fn deployments(
    State(service): State<Arc<Service>>,
    inside: PathNamespace,
    reader: WatchReader,
    asked: RawParameters,
) -> Result<Response, ApiError> {
    let query = asked.read(&["namespace", "labelSelector", "limit", "continue", "watch", "resourceVersion"])?;
    let inside = inside.or_of(&query)?;
    let selector = query.text("labelSelector").unwrap_or_default();
    if query.flag("watch")? {
        let watch = DeploymentWatch::of(selector, query.text("resourceVersion").unwrap_or_default())?;
        return Ok(lines(service.watch(DeploymentWatch { namespace: inside, ..watch }, &reader).await?));
    }
    Ok(Json(service.list(&ListPage { namespace: inside, ..page(&query)? }).await?).into_response())
}

/// Show a deployment.
#[utoipa::path(
    get, path = "/v1/deployments/{name}", tag = "tell",
    params(("name" = String, Path, description = "The deployment")),
    responses(
        (status = 200, description = "The deployment; its version is the ETag", body = DeploymentView),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(super) async fn deployment(
    State(service): State<Arc<Service>>,
    Of(of): Of,
    asked: RawParameters,
) -> Result<Response, ApiError> {
    asked.nothing()?;
    let found = service.get(&of).await?;
    Ok(tagged(&found.metadata.resource_version.clone(), found))
}

/// Explain the placement of a deployment.
#[utoipa::path(
    get, path = "/v1/deployments/{name}/explain", tag = "tell",
    params(("name" = String, Path, description = "The deployment")),
    responses(
        (status = 200, description = "A verdict per worker, with numbers", body = ExplainView),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(super) async fn explain(
    State(service): State<Arc<Service>>,
    Of(of): Of,
    asked: RawParameters,
) -> Answer<ExplainView> {
    asked.nothing()?;
    service.explain(&of).await.map(Json)
}

/// The generations of a deployment that were replaced, the latest first; each has a manifest that can be applied again.
#[utoipa::path(
    get, path = "/v1/deployments/{name}/history", tag = "tell",
    params(("name" = String, Path, description = "The deployment")),
    responses(
        (status = 200, description = "At most ten", body = RolloutHistory),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(super) async fn history(
    State(service): State<Arc<Service>>,
    Of(of): Of,
    asked: RawParameters,
) -> Answer<RolloutHistory> {
    asked.nothing()?;
    service.history(&of).await.map(Json)
}

/// The recent log of a model over all nodes: its own output, and the steps of its workers. To follow it, send `cursor` back.
#[utoipa::path(
    get, path = "/v1/deployments/{name}/log", tag = "tell",
    params(
        ("name" = String, Path, description = "The deployment"),
        ("after" = Option<String>, Query, description = "Only lines after this cursor"),
        ("limit" = Option<u32>, Query, description = "The most lines, the latest; 200 unless given, up to 1000"),
    ),
    responses(
        (status = 200, description = "Lines by time", body = LogView),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(super) async fn log(State(service): State<Arc<Service>>, Of(of): Of, asked: RawParameters) -> Answer<LogView> {
    let query = asked.read(&["after", "limit"])?;
    let limit = query.number("limit", MOST_LINES)?.unwrap_or(200);
    service.log(&of, query.text("after").unwrap_or_default(), limit).await.map(Json)
}

/// List workers.
#[utoipa::path(
    get, path = "/v1/workers", tag = "tell",
    responses((status = 200, description = "By name", body = List<WorkerView>))
)]
pub(super) async fn workers(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<List<WorkerView>> {
    asked.nothing()?;
    service.workers().await.map(Json)
}

/// Show a worker.
#[utoipa::path(
    get, path = "/v1/workers/{id}", tag = "tell",
    params(("id" = String, Path, description = "The worker")),
    responses(
        (status = 200, description = "The worker", body = WorkerView),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(super) async fn worker(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    asked: RawParameters,
) -> Answer<WorkerView> {
    asked.nothing()?;
    service.worker(&id).await.map(Json)
}

/// List replicas.
#[utoipa::path(
    get, path = "/v1/replicas", tag = "tell",
    params(
        ("namespace" = Option<String>, Query, description = "Only this namespace"),
        ("deployment" = Option<String>, Query, description = "Only those of this deployment: NAME, or NAMESPACE/NAME"),
    ),
    responses((status = 200, description = "By revision and worker", body = List<ReplicaView>))
)]
pub(super) async fn replicas(
    State(service): State<Arc<Service>>,
    inside: PathNamespace,
    asked: RawParameters,
) -> Answer<List<ReplicaView>> {
    let query = asked.read(&["namespace", "deployment"])?;
    let inside = inside.or_of(&query)?;
    let of = named(&query, inside.as_ref())?;
    service.replicas(inside.as_ref(), of.as_ref()).await.map(Json)
}

/// The revisions that are wanted or still have replicas.
#[utoipa::path(
    get, path = "/v1/revisions", tag = "tell",
    params(
        ("namespace" = Option<String>, Query, description = "Only this namespace"),
        ("labelSelector" = Option<String>, Query, description = "Labels of the deployment: `key=value`, joined by commas"),
        ("limit" = Option<u32>, Query, description = "The most deployments in one page, up to 500"),
        ("continue" = Option<String>, Query, description = "metadata.continue of the page before"),
    ),
    responses((status = 200, description = "By deployment", body = List<RevisionView>))
)]
pub(super) async fn revisions(
    State(service): State<Arc<Service>>,
    inside: PathNamespace,
    asked: RawParameters,
) -> Answer<List<RevisionView>> {
    let query = asked.read(&["namespace", "labelSelector", "limit", "continue"])?;
    let page = ListPage { namespace: inside.or_of(&query)?, ..page(&query)? };
    service.revisions(&page.equalities_only()?).await.map(Json)
}

/// Aliases, by name, a page at a time.
#[utoipa::path(
    get, path = "/v1/aliases", tag = "tell",
    params(
        ("namespace" = Option<String>, Query, description = "Only this namespace"),
        ("labelSelector" = Option<String>, Query, description = "`key=value`, `key!=value`, `key`, `!key`, joined by commas"),
        ("limit" = Option<u32>, Query, description = "The most in one page, up to 500"),
        ("continue" = Option<String>, Query, description = "metadata.continue of the page before"),
    ),
    responses((status = 200, description = "By name", body = List<AliasView>))
)]
pub(super) async fn aliases(
    State(service): State<Arc<Service>>,
    inside: PathNamespace,
    asked: RawParameters,
) -> Answer<List<AliasView>> {
    let query = asked.read(&["namespace", "labelSelector", "limit", "continue"])?;
    let inside = inside.or_of(&query)?;
    service.aliases(&ListPage { namespace: inside, ..page(&query)? }).await.map(Json)
}

/// Show an alias.
#[utoipa::path(
    get, path = "/v1/aliases/{name}", tag = "tell",
    params(("name" = String, Path, description = "The alias")),
    responses(
        (status = 200, description = "The alias; its version is the ETag", body = AliasView),
        (status = 404, description = "There is none of that name", body = ErrorBody),
    )
)]
pub(super) async fn alias(
    State(service): State<Arc<Service>>,
    Of(of): Of,
    asked: RawParameters,
) -> Result<Response, ApiError> {
    asked.nothing()?;
    let found = service.alias(&of).await?;
    Ok(tagged(&found.metadata.resource_version.clone(), found))
}

/// List recent events, oldest first; with `watch=true`, stream them. Below a namespace only those about deployments and functions in it.
#[utoipa::path(
    get, path = "/v1/events", tag = "tell",
    params(
        ("namespace" = Option<String>, Query, description = "Only those about this namespace, and those about none"),
        ("deployment" = Option<String>, Query, description = "Only those about this deployment: NAME, or NAMESPACE/NAME"),
        ("function" = Option<String>, Query, description = "Only those about this function: NAME, or NAMESPACE/NAME"),
        ("limit" = Option<u32>, Query, description = "The most, the latest; all that are kept unless given"),
        ("resourceVersion" = Option<String>, Query, description = "Only those after this number"),
        ("watch" = Option<bool>, Query, description = "Newline-delimited JSON of EventWatch: what there is, then new ones"),
    ),
    responses(
        (status = 200, description = "Events, or a watch", body = List<EventView>),
        (status = 400, description = "A parameter is wrong", body = ErrorBody),
    )
)]
pub(super) async fn events(
    State(service): State<Arc<Service>>,
    PathNamespace(inside): PathNamespace,
    reader: WatchReader,
    asked: RawParameters,
) -> Result<Response, ApiError> {
    let query = asked.read(&["namespace", "deployment", "function", "limit", "resourceVersion", "watch"])?;
    let (scope, (deployment, function)) = match inside {
        Some(inside) => {
            let about = about(&query, Some(&inside))?;
            (EventScope::Namespace(inside), about)
        }
        None => {
            let inside = namespace(&query)?;
            let about = about(&query, inside.as_ref())?;
            (inside.map_or(EventScope::All, EventScope::NamespaceAndSystem), about)
        }
    };
    let filter = EventFilter {
        scope,
        deployment,
        function,
        after: query.text("resourceVersion").map_or(Ok(0), |text| version("resourceVersion", text).map(|rev| rev.0))?,
        limit: query.number("limit", MOST_EVENTS)?.unwrap_or(0),
    };
    if query.flag("watch")? {
        return Ok(lines(service.watch_events(filter, &reader)?));
    }
    Ok(Json(service.events(filter).await?).into_response())
}

/// Rates and latencies per model over all gateways, the busiest first. Rates need two looks, half a second to ten seconds apart.
#[utoipa::path(
    get, path = "/v1/top", tag = "tell",
    params(("limit" = Option<u32>, Query, description = "The most models; 100 unless given")),
    responses((status = 200, description = "Figures", body = TopView))
)]
pub(super) async fn top(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<TopView> {
    let query = asked.read(&["limit"])?;
    service.top(query.number("limit", MOST_MODELS)?.unwrap_or(100)).await.map(Json)
}

/// The deployment and the function that events are to be about: whole names where a namespace is given, else in the written form.
fn about(query: &Query, inside: Option<&Namespace>) -> Result<(Option<DeploymentName>, Option<String>), ApiError> {
    let key = |text: &str| match inside.map(|inside| DeploymentName::within(inside, text)) {
        Some(Ok(name)) => name.to_string(),
        // A key of a function may be any text.
        Some(Err(_)) | None => text.to_owned(),
    };
    Ok((named(query, inside)?, query.text("function").map(key)))
}

fn page(query: &Query) -> Result<ListPage, ApiError> {
    let page = ListPage::of(
        query.text("labelSelector").unwrap_or_default(),
        query.number("limit", usize::MAX)?,
        query.text("continue").unwrap_or_default(),
    )?;
    Ok(ListPage { namespace: namespace(query)?, ..page })
}
