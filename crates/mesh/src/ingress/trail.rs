//! Records in the audit log: refused requests of the inference port, and loads and unloads by its clients.

use std::{borrow::Cow, net::IpAddr};

use berth_audit::AuditLog;
use berth_spec::{Class, NameKey};
use berth_wire::{
    access::{Action, Arrival, Asker, sender_name},
    api::{AuditOutcome, AuditPort, AuditRecord},
    request_id::RequestId,
};
use http::{Extensions, HeaderMap, Request, StatusCode};

use super::{access::asker, error_response::ErrorResponse};
use crate::{stack::Stack, trail::resource};

/// Longest path that is recorded, in characters. A stranger chooses it.
const MAX_PATH_CHARS: usize = 128;

/// Records that a request was refused, if it was for want of a role or a token.
pub(super) fn refused<B>(
    log: &AuditLog,
    request: &Request<B>,
    action: Action,
    from: Option<IpAddr>,
    error: &ErrorResponse,
) {
    let status = error.status();
    if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return;
    }
    let principal = request.extensions().get::<Asker>().map_or("nobody", Asker::name);
    let operation = format!("{} {}", request.method(), shown(request.uri().path()));
    let record = log.begin(AuditPort::Inference, principal, action.as_str(), operation);
    log.refuse(AuditRecord {
        request_id: RequestId::of(request.headers()).map(|id| id.to_string()),
        address: from,
        outcome: outcome_of(error),
        ..record
    });
}

/// A load or unload of a client, while it is done.
pub(super) struct Change<'a> {
    log: &'a AuditLog,
    record: AuditRecord,
}

impl<'a> Change<'a> {
    /// Begins it, if changes can be recorded.
    pub(super) fn begin(
        stack: &'a Stack,
        headers: &HeaderMap,
        extensions: &Extensions,
        operation: &'static str,
        model: NameKey<'_>,
    ) -> Result<Self, ErrorResponse> {
        let log = &stack.audit;
        log.check().map_err(|why| ErrorResponse::new(Class::Stalled, "unavailable", why.to_string()))?;
        let asker = asker(&stack.access, extensions);
        let sender = sender_name(&asker, extensions);
        let record = log.begin(AuditPort::Inference, &sender, Action::LoadModels.as_str(), operation);
        let record = AuditRecord {
            request_id: RequestId::of(headers).map(|id| id.to_string()),
            address: extensions.get::<Arrival>().and_then(|arrival| arrival.address),
            ..record
        };
        Ok(Self { log, record: record.about(vec![resource("Model", model)]) })
    }

    /// Writes the record with the status and reason of the outcome.
    pub(super) async fn end(self, done: &Result<(), ErrorResponse>) {
        let outcome = match done {
            Ok(()) => AuditOutcome { status: StatusCode::OK.as_u16(), reason: String::new() },
            Err(error) => outcome_of(error),
        };
        self.log.record(AuditRecord { at: self.log.now(), outcome, ..self.record }).await;
    }
}

/// The beginning of a path, and a sign where there is more.
fn shown(path: &str) -> Cow<'_, str> {
    match path.char_indices().nth(MAX_PATH_CHARS) {
        Some((end, _)) => Cow::Owned(format!("{}…", &path[..end])),
        None => Cow::Borrowed(path),
    }
}

fn outcome_of(error: &ErrorResponse) -> AuditOutcome {
    AuditOutcome { status: error.status().as_u16(), reason: error.reason().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_cut() {
        assert_eq!(shown("/v2/models/iris/infer"), "/v2/models/iris/infer");
        let long = format!("/{}", "é".repeat(MAX_PATH_CHARS));
        assert_eq!(shown(&long), format!("/{}…", "é".repeat(MAX_PATH_CHARS - 1)));
    }
}
