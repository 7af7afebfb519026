//! The audit log.

use std::sync::Arc;

use axum::{Json, extract::State};
use berth_wire::api::{AuditView, ErrorBody};

use super::ask::{Answer, RawParameters};
use crate::api::{audit, service::Service};

/// The recent audit records of all nodes: who did what to what, with which outcome. To follow them, send `cursor` back.
#[utoipa::path(
    get, path = "/v1/audit", tag = "tell", operation_id = "audit",
    params(
        ("after" = Option<String>, Query, description = "Only records after this cursor"),
        ("limit" = Option<u32>, Query, description = "The most records, the latest; 200 unless given, up to 1000"),
        ("since" = Option<String>, Query, description = "Only records since this time: 2026-11-21T07:30:00Z"),
        ("principal" = Option<String>, Query, description = "Only records of this principal"),
    ),
    responses(
        (status = 200, description = "Records by time", body = AuditView),
        (status = 400, description = "A parameter is wrong", body = ErrorBody),
    )
)]
pub(super) async fn audit(State(service): State<Arc<Service>>, asked: RawParameters) -> Answer<AuditView> {
    let query = asked.read(&audit::PARAMETERS)?;
    let after = query.text("after").unwrap_or_default().to_owned();
    Ok(Json(service.audit(&after, audit::query(&query)?).await))
}
