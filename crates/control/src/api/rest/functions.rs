//! Functions: see them, declare them, read their logs and the documents of their artifacts.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use berth_spec::manifest::ParseContext;
use berth_wire::api::{ApplyResult, ErrorBody, FunctionView, List};

use super::{
    ask::{Answer, Of, PathNamespace, RawParameters, Sender, expect, write},
    declare::written,
};
use crate::{
    api::{
        body::Manifests,
        error::ApiError,
        service::{CheckedDocuments, Delete, FUNCTION, Service},
        trail::Notes,
    },
    functions::FunctionText,
};

/// The functions, by name.
#[utoipa::path(
    get, path = "/v1/functions", tag = "tell",
    params(("namespace" = Option<String>, Query, description = "Only this namespace")),
    responses((status = 200, description = "All of them", body = List<FunctionView>))
)]
pub(super) async fn functions(
    State(service): State<Arc<Service>>,
    inside: PathNamespace,
    asked: RawParameters,
) -> Answer<List<FunctionView>> {
    let inside = inside.or_of(&asked.read(&["namespace"])?)?;
    Ok(Json(service.functions(inside.as_ref())))
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
    Of(name): Of,
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
    Of(name): Of,
    asked: RawParameters,
) -> Result<Response, ApiError> {
    asked.nothing()?;
    let text = service.function_text(name, FunctionText::Log).await?;
    Ok(typed(text, "text/plain; charset=utf-8"))
}

/// The bill of materials of a function's artifact: its packages, as CycloneDX.
#[utoipa::path(
    get, path = "/v1/functions/{name}/sbom", tag = "tell", operation_id = "function_sbom",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "CycloneDX 1.6", body = String, content_type = "application/vnd.cyclonedx+json"),
        (status = 404, description = "There is no such function, or no artifact of it", body = ErrorBody),
    )
)]
pub(super) async fn sbom(
    State(service): State<Arc<Service>>,
    Of(name): Of,
    asked: RawParameters,
) -> Result<Response, ApiError> {
    asked.nothing()?;
    let text = service.function_text(name, FunctionText::Sbom).await?;
    Ok(typed(text, "application/vnd.cyclonedx+json"))
}

/// The provenance of a function's artifact: its inputs and its build, as an in-toto statement of SLSA.
#[utoipa::path(
    get, path = "/v1/functions/{name}/provenance", tag = "tell", operation_id = "function_provenance",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "SLSA Provenance v1", body = String, content_type = "application/vnd.in-toto+json"),
        (status = 404, description = "There is no such function, or no artifact of it", body = ErrorBody),
    )
)]
pub(super) async fn provenance(
    State(service): State<Arc<Service>>,
    Of(name): Of,
    asked: RawParameters,
) -> Result<Response, ApiError> {
    asked.nothing()?;
    let text = service.function_text(name, FunctionText::Provenance).await?;
    Ok(typed(text, "application/vnd.in-toto+json"))
}

/// The lock that the build of a function's artifact came to, where its code has none: `package-lock.json` or `requirements.lock`.
#[utoipa::path(
    get, path = "/v1/functions/{name}/lock", tag = "tell", operation_id = "function_lock",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "A file to be added to the code", body = String, content_type = "text/plain"),
        (status = 404, description = "There is no such function, or no lock was made", body = ErrorBody),
    )
)]
pub(super) async fn lock(
    State(service): State<Arc<Service>>,
    Of(name): Of,
    asked: RawParameters,
) -> Result<Response, ApiError> {
    asked.nothing()?;
    let text = service.function_text(name, FunctionText::Lock).await?;
    Ok(typed(text, "text/plain; charset=utf-8"))
}

/// Declare one function. `If-Match` (or `metadata.resourceVersion` in the body) detects other writers; `If-None-Match: *`
/// requires that it is new.
#[utoipa::path(
    put, path = "/v1/functions/{name}", tag = "declare", operation_id = "put_function",
    params(
        ("name" = String, Path, description = "The function"),
        ("dryRun" = Option<bool>, Query, description = "Say what would become of it and change nothing"),
        ("force" = Option<bool>, Query, description = "Take over what another source declared"),
        ("if-match" = Option<String>, Header, description = "The resource version that the change is for"),
        ("x-berth-base-uri" = Option<String>, Header, description = "As with apply"),
    ),
    request_body(content = FunctionView, description = "The manifest; status and what the server adds to metadata are ignored"),
    responses(
        (status = 200, description = "Changed, or unchanged", body = ApplyResult),
        (status = 201, description = "Created", body = ApplyResult),
        (status = 409, description = "Changed meanwhile, or declared by another source", body = ErrorBody),
        (status = 412, description = "If-Match names another version", body = ErrorBody),
        (status = 422, description = "The manifest is wrong", body = ErrorBody),
    )
)]
pub(super) async fn put(
    State(service): State<Arc<Service>>,
    Of(name): Of,
    (Sender(asker), notes): (Sender, Notes),
    asked: RawParameters,
    headers: HeaderMap,
    Manifests { text, context, permit: _permit }: Manifests,
) -> Result<Response, ApiError> {
    let write = write(&asked.read(&["dryRun", "force"])?)?.noted(&notes);
    let context = ParseContext { namespace: name.to_namespace(), ..context };
    let documents = CheckedDocuments::parse(text, context).await?;
    documents.allowed(&asker, service.access())?;
    service.put(FUNCTION, &name, documents, write, expect(&headers)?).await.map(written)
}

/// Asks for a function to go: it is removed from its platform, then forgotten.
#[utoipa::path(
    delete, path = "/v1/functions/{name}", tag = "declare", operation_id = "delete_function",
    params(
        ("name" = String, Path, description = "The function"),
        ("dryRun" = Option<bool>, Query, description = "Say what would become of it and change nothing"),
        ("force" = Option<bool>, Query, description = "Delete it even if another source declared it"),
        ("if-match" = Option<String>, Header, description = "The resource version that the deletion is for"),
    ),
    responses(
        (status = 200, description = "It is going", body = ApplyResult),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "Declared by another source", body = ErrorBody),
        (status = 412, description = "If-Match names another version", body = ErrorBody),
    )
)]
pub(super) async fn delete(
    State(service): State<Arc<Service>>,
    Of(name): Of,
    asked: RawParameters,
    notes: Notes,
    headers: HeaderMap,
) -> Answer<ApplyResult> {
    let write = write(&asked.read(&["dryRun", "force"])?)?.noted(&notes);
    let delete = Delete { write, expect: expect(&headers)? };
    service.delete_function(name, delete).await.map(Json)
}

fn typed(text: String, kind: &'static str) -> Response {
    let mut response = text.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
