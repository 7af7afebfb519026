//! Records in the audit log of what requests may not reach.

use berth_audit::AuditLog;
use berth_spec::NameKey;
use berth_wire::{
    access::{Action, Arrival, Asker},
    api::{AuditOutcome, AuditPort, AuditRecord, AuditResource},
    request_id::RequestId,
};
use http::{Extensions, HeaderMap, StatusCode};

/// Records that somebody may not do something with a model or a function, whatever the answer tells of it.
pub(crate) fn out_of_reach(
    log: &AuditLog,
    asker: &Asker,
    headers: Option<&HeaderMap>,
    extensions: Option<&Extensions>,
    action: Action,
    resource: AuditResource,
) {
    let record = log.begin(AuditPort::Inference, asker.name(), action.as_str(), action.as_str());
    let outcome = AuditOutcome { status: StatusCode::FORBIDDEN.as_u16(), reason: "forbidden".to_owned() };
    let request_id = headers.and_then(RequestId::of).map(|id| id.to_string());
    let arrival = extensions.and_then(Extensions::get::<Arrival>);
    let address = arrival.and_then(|arrival| arrival.address);
    log.refuse(AuditRecord { request_id, address, outcome, ..record }.about(vec![resource]));
}

/// A model or a function, as the log names it.
pub(crate) fn resource(kind: &str, of: NameKey<'_>) -> AuditResource {
    let shown = |text: &str| text.chars().take(berth_spec::id::MAX_NAME).collect();
    AuditResource { kind: kind.to_owned(), namespace: Some(shown(of.namespace)), name: shown(of.name) }
}
