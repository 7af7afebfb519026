//! The audit logs of all nodes as one.

use berth_audit::{AuditLog, Query};
use berth_wire::api::{API_VERSION, AuditView, Kind, NodeAudit, Timestamp};

use super::{error::ApiError, log::Cursor, query};

/// The most records in one answer: some hundred KiB.
pub(super) const MAX_RECORDS: usize = 1_000;

/// Parameters of a question for records.
pub(super) const PARAMETERS: [&str; 4] = ["after", "limit", "since", "principal"];

/// Reads a question for records; what it says of `after` is left to the caller.
pub(super) fn query(query: &query::Query) -> Result<Query, ApiError> {
    let since = query.text("since").map(|text| {
        text.parse::<Timestamp>().map_err(|error| ApiError::invalid("since", error.to_string(), "write a time in UTC"))
    });
    Ok(Query {
        after: 0,
        since: since.transpose()?.map(|since| since.0),
        principal: query.text("principal").map(str::to_owned),
        limit: query.number("limit", MAX_RECORDS)?.unwrap_or(200),
    })
}

/// The question that is sent to another node.
pub(super) fn to_ask(query: &Query, after: u64) -> String {
    let mut text = url::form_urlencoded::Serializer::new(String::new());
    text.append_pair("after", &after.to_string()).append_pair("limit", &query.limit.to_string());
    if let Some(since) = query.since {
        text.append_pair("since", &Timestamp(since).to_string());
    }
    if let Some(principal) = &query.principal {
        text.append_pair("principal", principal);
    }
    text.finish()
}

/// Answers another node.
pub(super) fn own(log: &AuditLog, raw: Option<&str>) -> Result<NodeAudit, ApiError> {
    let asked = query::Query::parse(raw, &PARAMETERS)?;
    let after = asked.text("after").and_then(|after| after.parse().ok()).unwrap_or_default();
    Ok(log.read(&Query { after, ..query(&asked)? }))
}

/// One log of many nodes: by time, at most `limit` records, the latest.
pub(super) fn together(logs: Vec<NodeAudit>, mut cursor: Cursor, missing: Vec<String>, limit: usize) -> AuditView {
    let mut items = Vec::new();
    for log in logs {
        cursor.read_to(log.node, log.last);
        items.extend(log.records);
    }
    items.sort_by(|one, other| (one.at, &one.node).cmp(&(other.at, &other.node)));
    items.drain(..items.len().saturating_sub(limit));
    let (api_version, kind) = (API_VERSION.to_owned(), AuditView::KIND.to_owned());
    AuditView { api_version, kind, items, cursor: cursor.text(), missing }
}
