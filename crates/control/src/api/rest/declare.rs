//! Say what should be served.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use berth_spec::{UnknownWorkers, WorkerId, manifest::ParseContext};
use berth_wire::{
    access::{Action, Denied, Resource},
    api::{
        AliasView, Applied, ApplyResult, DeploymentView, ErrorBody, Outcome, PlanView, RegistryDraft, Validated,
        WorkerDraft,
    },
};

use super::ask::{Answer, Of, RawParameters, Sender, expect, namespace, write};
use crate::{
    api::{
        body::Manifests,
        error::ApiError,
        service::{ALIAS, CheckedDocuments, DEPLOYMENT, Delete, Service, coded_name, name},
        trail::Notes,
    },
    source::WorkerSettings,
};

/// Declares every document of the body, YAML or JSON; none where one is refused beforehand. If writing fails halfway,
/// the error's details list what was applied; applying everything again is safe.
#[utoipa::path(
    post, path = "/v1/apply", tag = "declare",
    params(
        ("namespace" = Option<String>, Query, description = "The namespace of documents that name none; no document may name another"),
        ("dryRun" = Option<bool>, Query, description = "Say what would become of it and change nothing"),
        ("force" = Option<bool>, Query, description = "Take over what another source declared"),
        ("x-berth-base-uri" = Option<String>, Header, description = "The file: URI of the folder that relative file: URIs start from"),
        ("x-berth-file" = Option<String>, Header, description = "What errors call the text"),
    ),
    request_body(content = String, content_type = "application/yaml", description = "Manifests, up to 16 MiB"),
    responses(
        (status = 200, description = "What became of each", body = Applied),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 409, description = "Changed meanwhile, or declared by another source", body = ErrorBody),
        (status = 413, description = "Too large", body = ErrorBody),
        (status = 415, description = "Neither YAML nor JSON", body = ErrorBody),
        (status = 422, description = "A manifest is wrong: details say where and what to do", body = ErrorBody),
        (status = 503, description = "Not now", body = ErrorBody),
    )
)]
pub(super) async fn apply(
    State(service): State<Arc<Service>>,
    Sender(asker): Sender,
    asked: RawParameters,
    notes: Notes,
    Manifests { text, context, permit: _permit }: Manifests,
) -> Answer<Applied> {
    let query = asked.read(&["namespace", "dryRun", "force"])?;
    let write = write(&query)?.noted(&notes);
    let documents = CheckedDocuments::inside(namespace(&query)?, text, context).await?;
    documents.note(&notes);
    documents.allowed(&asker, service.access())?;
    service.apply(documents, write).await.map(Json)
}

/// Preview the effect of applying the body. Changes nothing.
#[utoipa::path(
    post, path = "/v1/plan", tag = "declare",
    params(
        ("namespace" = Option<String>, Query, description = "The namespace of documents that name none; no document may name another"),
        ("delete" = Option<String>, Query, description = "Names of deployments that would be deleted, percent-coded, with commas between them"),
        ("x-berth-base-uri" = Option<String>, Header, description = "As with apply")),
    request_body(content = String, content_type = "application/yaml", description = "Manifests, up to 16 MiB"),
    responses(
        (status = 200, description = "Loads, evictions, memory before and after", body = PlanView),
        (status = 409, description = "Declared by another source", body = ErrorBody),
        (status = 422, description = "A manifest is wrong", body = ErrorBody),
    )
)]
pub(super) async fn plan(
    State(service): State<Arc<Service>>,
    Sender(asker): Sender,
    asked: RawParameters,
    Manifests { text, context, permit: _permit }: Manifests,
) -> Answer<PlanView> {
    let query = asked.read(&["namespace", "delete"])?;
    let names = query.text("delete").unwrap_or_default().split(',').filter(|name| !name.is_empty());
    let deleted = names.map(coded_name).collect::<Result<Vec<_>, _>>()?;
    for name in &deleted {
        let denied = asker.may(Action::Declare, Resource::Model(name.key()));
        denied.map_err(|denied| ApiError::forbidden(denied.to_string()))?;
    }
    let documents = CheckedDocuments::inside(namespace(&query)?, text, context).await?;
    documents.allowed(&asker, service.access())?;
    service.plan(documents, deleted, None).await.map(Json)
}

/// Preview the effect of a registry: of its deployments, and of its settings of workers in place of those in force.
/// Changes nothing.
#[utoipa::path(
    post, path = "/v1/plan/registry", tag = "declare",
    request_body(content = RegistryDraft, description = "All that the registry declares, up to 16 MiB"),
    responses(
        (status = 200, description = "Loads, evictions, memory before and after", body = PlanView),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 409, description = "Declared by another source", body = ErrorBody),
        (status = 422, description = "A manifest is wrong", body = ErrorBody),
    )
)]
pub(super) async fn plan_registry(
    State(service): State<Arc<Service>>,
    Sender(asker): Sender,
    asked: RawParameters,
    Manifests { text, context, permit: _permit }: Manifests,
) -> Answer<PlanView> {
    asked.nothing()?;
    let draft: RegistryDraft = serde_json::from_str(&text).map_err(|error| {
        let remedy = "send {\"manifests\": […], \"deleted\": […], \"workers\": {…}, \"unknownWorkers\": \"allow\"}";
        ApiError::invalid("body", format!("this is no registry: {error}"), remedy)
    })?;
    let deleted = draft.deleted.iter().map(|text| name(text)).collect::<Result<Vec<_>, _>>()?;
    let refused = |denied: Denied| ApiError::forbidden(denied.to_string());
    for name in &deleted {
        asker.may(Action::Declare, Resource::Model(name.key())).map_err(refused)?;
    }
    // Settings of workers move the models of everybody, and the answer says where.
    asker.may(Action::ReadFleet, Resource::Server).map_err(refused)?;
    let workers = worker_settings(draft.workers, draft.unknown_workers)?;
    let documents = CheckedDocuments::of_registry(&draft.manifests, context).await?;
    documents.allowed(&asker, service.access())?;
    service.plan(documents, deleted, Some(workers)).await.map(Json)
}

fn worker_settings(drafts: BTreeMap<String, WorkerDraft>, unknown: UnknownWorkers) -> Result<WorkerSettings, ApiError> {
    let typed = drafts.into_iter().map(|(worker, draft)| {
        let path = format!("workers.{worker}");
        let id = WorkerId::new(&worker)
            .map_err(|error| ApiError::invalid(&path, format!("{worker:?} is not a name: {error}"), ""))?;
        let terms = draft.typed().ok_or_else(|| {
            ApiError::invalid(&path, "the evictionStrategy is unknown", "write \"lru\" or \"priority\"")
        })?;
        Ok((id, terms))
    });
    Ok(WorkerSettings { terms: typed.collect::<Result<_, ApiError>>()?, unknown })
}

/// Checks the body against the rules for manifests, and nothing else.
#[utoipa::path(
    post, path = "/v1/validate", tag = "declare",
    params(
        ("namespace" = Option<String>, Query, description = "The namespace of documents that name none; no document may name another"),
        ("x-berth-base-uri" = Option<String>, Header, description = "As with apply"),
    ),
    request_body(content = String, content_type = "application/yaml", description = "Manifests, up to 16 MiB"),
    responses(
        (status = 200, description = "All manifests are valid", body = Validated),
        (status = 422, description = "A manifest is wrong", body = ErrorBody),
    )
)]
pub(super) async fn validate(
    State(service): State<Arc<Service>>,
    Sender(asker): Sender,
    asked: RawParameters,
    Manifests { text, context, permit: _permit }: Manifests,
) -> Answer<Validated> {
    let namespace = namespace(&asked.read(&["namespace"])?)?;
    let documents = CheckedDocuments::inside(namespace, text, context).await?;
    documents.allowed(&asker, service.access())?;
    Ok(Json(service.validated(&documents)))
}

/// Declare one deployment. `If-Match` (or `metadata.resourceVersion` in the body) detects other writers;
/// `If-None-Match: *` requires that it is new.
#[utoipa::path(
    put, path = "/v1/deployments/{name}", tag = "declare",
    params(
        ("name" = String, Path, description = "The deployment"),
        ("dryRun" = Option<bool>, Query, description = "Say what would become of it and change nothing"),
        ("force" = Option<bool>, Query, description = "Take over what another source declared"),
        ("if-match" = Option<String>, Header, description = "The ETag that the change is for"),
        ("x-berth-base-uri" = Option<String>, Header, description = "As with apply"),
    ),
    request_body(content = DeploymentView, description = "The manifest; status and what the server adds to metadata are ignored"),
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
    Of(of): Of,
    (Sender(asker), notes): (Sender, Notes),
    asked: RawParameters,
    headers: HeaderMap,
    Manifests { text, context, permit: _permit }: Manifests,
) -> Result<Response, ApiError> {
    let write = write(&asked.read(&["dryRun", "force"])?)?.noted(&notes);
    let context = ParseContext { namespace: of.to_namespace(), ..context };
    let documents = CheckedDocuments::parse(text, context).await?;
    documents.allowed(&asker, service.access())?;
    let result = service.put(DEPLOYMENT, &of, documents, write, expect(&headers)?).await?;
    Ok(written(result))
}

pub(super) fn written(result: ApplyResult) -> Response {
    let status = if result.outcome == Outcome::Created { StatusCode::CREATED } else { StatusCode::OK };
    (status, Json(result)).into_response()
}

/// Asks for a deployment to go: its replicas drain, then it is forgotten. Asking again changes nothing.
#[utoipa::path(
    delete, path = "/v1/deployments/{name}", tag = "declare",
    params(
        ("name" = String, Path, description = "The deployment"),
        ("dryRun" = Option<bool>, Query, description = "Say what would become of it and change nothing"),
        ("force" = Option<bool>, Query, description = "Delete it even if another source declared it"),
        ("if-match" = Option<String>, Header, description = "The ETag that the deletion is for"),
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
    Of(of): Of,
    asked: RawParameters,
    notes: Notes,
    headers: HeaderMap,
) -> Answer<ApplyResult> {
    let write = write(&asked.read(&["dryRun", "force"])?)?.noted(&notes);
    let delete = Delete { write, expect: expect(&headers)? };
    service.delete(&of, delete).await.map(Json)
}

/// Declare one alias. `If-Match` (or `metadata.resourceVersion` in the body) detects other writers; `If-None-Match: *`
/// requires that it is new.
#[utoipa::path(
    put, path = "/v1/aliases/{name}", tag = "declare",
    params(
        ("name" = String, Path, description = "The alias"),
        ("dryRun" = Option<bool>, Query, description = "Say what would become of it and change nothing"),
        ("force" = Option<bool>, Query, description = "Take over what another source declared"),
        ("if-match" = Option<String>, Header, description = "The ETag that the change is for"),
    ),
    request_body(content = AliasView, description = "The manifest; status and what the server adds to metadata are ignored"),
    responses(
        (status = 200, description = "Changed, or unchanged", body = ApplyResult),
        (status = 201, description = "Created", body = ApplyResult),
        (status = 409, description = "Changed meanwhile, declared by another source, or a deployment has the name", body = ErrorBody),
        (status = 412, description = "If-Match names another version", body = ErrorBody),
        (status = 422, description = "The manifest is wrong", body = ErrorBody),
    )
)]
pub(super) async fn put_alias(
    State(service): State<Arc<Service>>,
    Of(of): Of,
    (Sender(asker), notes): (Sender, Notes),
    asked: RawParameters,
    headers: HeaderMap,
    Manifests { text, context, permit: _permit }: Manifests,
) -> Result<Response, ApiError> {
    let write = write(&asked.read(&["dryRun", "force"])?)?.noted(&notes);
    let context = ParseContext { namespace: of.to_namespace(), ..context };
    let documents = CheckedDocuments::parse(text, context).await?;
    documents.allowed(&asker, service.access())?;
    service.put(ALIAS, &of, documents, write, expect(&headers)?).await.map(written)
}

/// Deletes an alias. The deployments that it leads to stay.
#[utoipa::path(
    delete, path = "/v1/aliases/{name}", tag = "declare",
    params(
        ("name" = String, Path, description = "The alias"),
        ("dryRun" = Option<bool>, Query, description = "Say what would become of it and change nothing"),
        ("force" = Option<bool>, Query, description = "Delete it even if another source declared it"),
        ("if-match" = Option<String>, Header, description = "The ETag that the deletion is for"),
    ),
    responses(
        (status = 200, description = "It is deleted", body = ApplyResult),
        (status = 404, description = "There is none of that name", body = ErrorBody),
        (status = 409, description = "Declared by another source", body = ErrorBody),
        (status = 412, description = "If-Match names another version", body = ErrorBody),
    )
)]
pub(super) async fn delete_alias(
    State(service): State<Arc<Service>>,
    Of(of): Of,
    asked: RawParameters,
    notes: Notes,
    headers: HeaderMap,
) -> Answer<ApplyResult> {
    let write = write(&asked.read(&["dryRun", "force"])?)?.noted(&notes);
    let delete = Delete { write, expect: expect(&headers)? };
    service.delete_alias(&of, delete).await.map(Json)
}
