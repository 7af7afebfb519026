//! REST: requests in, JSON out. What is done is in `service`; here is only how it is asked for.

mod ask;
mod audit;
mod dashboard;
mod declare;
mod functions;
mod join_tokens;
mod nodes;
mod operate;
mod revocations;
mod sources;
mod tell;
mod tokens;

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    http::{Method, Uri},
    response::{IntoResponse, Response},
    routing::{MethodRouter, delete, get, post},
};
use berth_wire::api::MAX_BODY;
use utoipa::{
    OpenApi, PartialSchema,
    openapi::{
        RefOr, Required,
        path::{ParameterBuilder, ParameterIn},
    },
};

use super::{error::ApiError, query::nearest, service::Service};

/// A route's methods, in the order of the list.
type Methods = &'static [&'static str];

/// Every route: its path, its methods, its handlers. The router is made from it, and a test holds the OpenAPI document
/// against it.
#[expect(clippy::too_many_lines, reason = "a list of routes")]
pub(super) fn routes() -> Vec<(&'static str, Methods, MethodRouter<Arc<Service>>)> {
    vec![
        ("/v1/deployments", &["get"], get(tell::deployments)),
        (
            "/v1/deployments/{name}",
            &["get", "put", "delete"],
            get(tell::deployment).put(declare::put).merge(delete(declare::delete)),
        ),
        ("/v1/deployments/{name}/explain", &["get"], get(tell::explain)),
        ("/v1/deployments/{name}/history", &["get"], get(tell::history)),
        ("/v1/deployments/{name}/log", &["get"], get(tell::log)),
        ("/v1/deployments/{name}/try", &["get", "post"], get(dashboard::signature).post(dashboard::infer)),
        (
            "/v1/namespaces/{namespace}/deployments/{name}/try",
            &["get", "post"],
            get(dashboard::signature).post(dashboard::infer),
        ),
        ("/v1/namespaces/{namespace}/deployments", &["get"], get(tell::deployments)),
        (
            "/v1/namespaces/{namespace}/deployments/{name}",
            &["get", "put", "delete"],
            get(tell::deployment).put(declare::put).merge(delete(declare::delete)),
        ),
        ("/v1/namespaces/{namespace}/deployments/{name}/explain", &["get"], get(tell::explain)),
        ("/v1/namespaces/{namespace}/deployments/{name}/history", &["get"], get(tell::history)),
        ("/v1/namespaces/{namespace}/deployments/{name}/log", &["get"], get(tell::log)),
        ("/v1/apply", &["post"], post(declare::apply)),
        ("/v1/plan", &["post"], post(declare::plan)),
        ("/v1/plan/registry", &["post"], post(declare::plan_registry)),
        ("/v1/validate", &["post"], post(declare::validate)),
        ("/v1/workers", &["get"], get(tell::workers)),
        ("/v1/workers/{id}", &["get"], get(tell::worker)),
        ("/v1/workers/{id}/drain", &["post"], post(operate::drain)),
        ("/v1/workers/{id}/cordon", &["post"], post(operate::cordon)),
        ("/v1/workers/{id}/uncordon", &["post"], post(operate::uncordon)),
        ("/v1/nodes", &["get"], get(nodes::nodes)),
        ("/v1/nodes/{name}", &["get"], get(nodes::node)),
        ("/v1/nodes/{name}/cordon", &["post"], post(nodes::cordon)),
        ("/v1/nodes/{name}/uncordon", &["post"], post(nodes::uncordon)),
        ("/v1/nodes/{name}/drain", &["post"], post(nodes::drain)),
        ("/v1/replicas", &["get"], get(tell::replicas)),
        ("/v1/namespaces/{namespace}/replicas", &["get"], get(tell::replicas)),
        ("/v1/revisions", &["get"], get(tell::revisions)),
        ("/v1/namespaces/{namespace}/revisions", &["get"], get(tell::revisions)),
        ("/v1/aliases", &["get"], get(tell::aliases)),
        (
            "/v1/aliases/{name}",
            &["get", "put", "delete"],
            get(tell::alias).put(declare::put_alias).merge(delete(declare::delete_alias)),
        ),
        ("/v1/namespaces/{namespace}/aliases", &["get"], get(tell::aliases)),
        (
            "/v1/namespaces/{namespace}/aliases/{name}",
            &["get", "put", "delete"],
            get(tell::alias).put(declare::put_alias).merge(delete(declare::delete_alias)),
        ),
        ("/v1/events", &["get"], get(tell::events)),
        ("/v1/namespaces/{namespace}/events", &["get"], get(tell::events)),
        ("/v1/functions", &["get"], get(functions::functions)),
        (
            "/v1/functions/{name}",
            &["get", "put", "delete"],
            get(functions::function).put(functions::put).merge(delete(functions::delete)),
        ),
        ("/v1/functions/{name}/log", &["get"], get(functions::log)),
        ("/v1/functions/{name}/sbom", &["get"], get(functions::sbom)),
        ("/v1/functions/{name}/provenance", &["get"], get(functions::provenance)),
        ("/v1/functions/{name}/lock", &["get"], get(functions::lock)),
        ("/v1/namespaces/{namespace}/functions", &["get"], get(functions::functions)),
        (
            "/v1/namespaces/{namespace}/functions/{name}",
            &["get", "put", "delete"],
            get(functions::function).put(functions::put).merge(delete(functions::delete)),
        ),
        ("/v1/namespaces/{namespace}/functions/{name}/log", &["get"], get(functions::log)),
        ("/v1/namespaces/{namespace}/functions/{name}/sbom", &["get"], get(functions::sbom)),
        ("/v1/namespaces/{namespace}/functions/{name}/provenance", &["get"], get(functions::provenance)),
        ("/v1/namespaces/{namespace}/functions/{name}/lock", &["get"], get(functions::lock)),
        ("/v1/sources", &["get"], get(sources::sources)),
        ("/v1/sources/{name}", &["get"], get(sources::source)),
        ("/v1/sources/{name}/sync", &["post"], post(sources::sync)),
        ("/v1/sources/{name}/pause", &["post"], post(sources::pause)),
        ("/v1/sources/{name}/resume", &["post"], post(sources::resume)),
        ("/v1/sources/{name}/webhook", &["post"], post(sources::webhook)),
        ("/v1/webhook", &["post"], post(sources::webhook_of_all)),
        ("/v1/secrets", &["get"], get(sources::secrets)),
        ("/v1/whoami", &["get"], get(tokens::whoami)),
        ("/v1/tokens", &["get", "post"], get(tokens::tokens).post(tokens::create)),
        ("/v1/tokens/{id}", &["delete"], delete(tokens::revoke)),
        ("/v1/join-tokens", &["get", "post"], get(join_tokens::join_tokens).post(join_tokens::create)),
        ("/v1/join-tokens/{id}", &["delete"], delete(join_tokens::revoke)),
        ("/v1/revocations", &["get", "post"], get(revocations::revocations).post(revocations::revoke)),
        ("/v1/revocations/{id}", &["delete"], delete(revocations::reinstate)),
        ("/v1/audit", &["get"], get(audit::audit)),
        ("/v1/top", &["get"], get(tell::top)),
        ("/v1/dashboard/models", &["get"], get(dashboard::models)),
        ("/v1/dashboard/memory", &["get"], get(dashboard::memory)),
        ("/v1/dashboard/history", &["get"], get(dashboard::history)),
        ("/v1/dashboard/stream", &["get"], get(dashboard::stream)),
        ("/dashboard", &["get"], get(dashboard::moved)),
        ("/dashboard/", &["get"], get(dashboard::page)),
        ("/dashboard/{file}", &["get"], get(dashboard::file)),
        ("/healthz", &["get"], get(operate::healthz)),
        ("/readyz", &["get"], get(operate::readyz)),
        ("/version", &["get"], get(operate::version)),
        ("/metrics", &["get"], get(operate::metrics)),
        ("/openapi.json", &["get"], get(operate::openapi)),
        ("/", &["get"], get(operate::index)),
    ]
}

/// The router of all routes.
pub(super) fn router(service: Arc<Service>) -> Router {
    let routes = routes();
    let mut router = Router::new();
    for (path, _, handlers) in routes {
        router = router.route(path, handlers);
    }
    router
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(no_such_path)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(service)
}

async fn no_such_path(request: Request) -> Response {
    let routes = routes();
    let path = request.uri().path();
    let message = match nearest(path, routes.iter().map(|(path, ..)| *path)) {
        Some(near) => format!("there is no path {path:?}: did you mean {near:?}? GET / lists all of them"),
        None => format!("there is no path {path:?}: GET / lists all of them"),
    };
    ApiError::not_found(message).into_response()
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::method_not_allowed(format!("{method} is not for {:?}: GET / lists what is", uri.path()))
}

/// The OpenAPI document, made from the handlers.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Berth control API",
        description = "Declares models and tells what became of them.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(
        tell::deployments,
        tell::deployment,
        tell::explain,
        tell::history,
        tell::log,
        tell::workers,
        tell::worker,
        nodes::nodes,
        nodes::node,
        tell::replicas,
        tell::revisions,
        tell::aliases,
        tell::alias,
        tell::events,
        tell::top,
        functions::functions,
        functions::function,
        functions::log,
        functions::sbom,
        functions::provenance,
        functions::lock,
        functions::put,
        functions::delete,
        sources::sources,
        sources::source,
        sources::sync,
        sources::pause,
        sources::resume,
        sources::webhook,
        sources::webhook_of_all,
        sources::secrets,
        tokens::whoami,
        tokens::tokens,
        tokens::create,
        tokens::revoke,
        join_tokens::join_tokens,
        join_tokens::create,
        join_tokens::revoke,
        revocations::revocations,
        revocations::revoke,
        revocations::reinstate,
        audit::audit,
        declare::put,
        declare::delete,
        declare::put_alias,
        declare::delete_alias,
        declare::apply,
        declare::plan,
        declare::plan_registry,
        declare::validate,
        operate::cordon,
        operate::uncordon,
        operate::drain,
        nodes::cordon,
        nodes::uncordon,
        nodes::drain,
        dashboard::signature,
        dashboard::infer,
        dashboard::models,
        dashboard::memory,
        dashboard::history,
        dashboard::stream,
        dashboard::moved,
        dashboard::page,
        dashboard::file,
        operate::healthz,
        operate::readyz,
        operate::version,
        operate::metrics,
        operate::openapi,
        operate::index,
    ),
    components(schemas(berth_wire::api::WatchEvent, berth_wire::api::EventWatch)),
    tags(
        (name = "declare", description = "Say what should be served"),
        (name = "tell", description = "See what is"),
        (name = "operate", description = "Keep it running"),
    )
)]
struct Document;

/// Kinds of things that are in namespaces.
const INSIDE: [&str; 6] = ["deployments", "aliases", "functions", "replicas", "revisions", "events"];

/// Builds the OpenAPI document. Paths of what is in namespaces are also there below a namespace.
pub(super) fn document() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    let paths = &mut document.paths.paths;
    let inside: Vec<_> = paths
        .iter()
        .filter_map(|(path, item)| {
            let rest = path.strip_prefix("/v1/").filter(|rest| INSIDE.iter().any(|kind| rest.starts_with(kind)))?;
            Some((format!("/v1/namespaces/{{namespace}}/{rest}"), item.clone()))
        })
        .collect();
    for (path, mut item) in inside {
        for operation in [&mut item.get, &mut item.put, &mut item.post, &mut item.delete].into_iter().flatten() {
            let namespace = ParameterBuilder::new()
                .name("namespace")
                .parameter_in(ParameterIn::Path)
                .required(Required::True)
                .description(Some("The namespace"))
                .schema(Some(String::schema()));
            let parameters = operation.parameters.get_or_insert_default();
            parameters.retain(|parameter| !matches!(parameter, RefOr::T(parameter) if parameter.name == "namespace"));
            parameters.insert(0, RefOr::T(namespace.build()));
            operation.operation_id = operation.operation_id.as_ref().map(|id| format!("{id}_in_namespace"));
        }
        paths.insert(path, item);
    }
    document
}

#[cfg(test)]
mod tests;
