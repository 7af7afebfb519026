//! Records what requests of the control API change, and who was refused.
//!
//! ```text
//! request ─▶ Trail::begin ─▶ handler, which takes notes ─▶ Trail::end ─▶ AuditLog
//!               └ none: nothing is changed         └ 401, 403: damped
//! ```
//! The node that did something, or refused it, records it: of what was relayed, the leader.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{extract::Request, response::Response};
use berth_audit::AuditLog;
use berth_spec::{DeploymentName, Event, Time, event::Severity};
use berth_wire::{
    access::{Action, Arrival, Asker, sender_name},
    api::{AuditOutcome, AuditPort, AuditRecord, AuditResource, ErrorInfo},
    request_id::RequestId,
};
use http::{HeaderMap, StatusCode};

use super::needs::{self, Need};
use crate::events::AUDITED;

/// Notes of a handler about what it was asked for: an extension of requests that change something.
#[derive(Debug, Clone, Default)]
pub struct Notes(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    resources: Vec<AuditResource>,
    /// Nothing is changed.
    dry_run: bool,
}

impl Notes {
    /// Takes down something that is to be changed.
    pub fn about(&self, kind: &str, name: &DeploymentName) {
        self.push(AuditResource {
            kind: kind.to_owned(),
            namespace: Some(name.namespace().to_owned()),
            name: name.name().to_owned(),
        });
    }

    /// Takes down something that is in no namespace.
    pub(super) fn about_global(&self, kind: &str, name: &str) {
        self.push(AuditResource { kind: kind.to_owned(), namespace: None, name: name.to_owned() });
    }

    /// Takes down that nothing is to be changed.
    pub(super) fn dry_run(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).dry_run = true;
    }

    fn push(&self, resource: AuditResource) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).resources.push(resource);
    }

    fn take(&self) -> Noted {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A request that changes something, while it is being answered.
pub(super) struct Trail {
    record: AuditRecord,
    notes: Notes,
    action: Action,
}

impl Trail {
    /// Of a request that asks for a change; `None` for all others.
    pub(super) fn begin(log: &AuditLog, request: &mut Request) -> Option<Self> {
        let need = needs::of(request.method(), request.uri().path()).filter(Need::changes)?;
        let (record, action) = (described(log, request, Some(&need)), need.action);
        let notes = Notes::default();
        request.extensions_mut().insert(notes.clone());
        Some(Self { record, notes, action })
    }

    /// Records the outcome. The event for people, if something was changed or tried.
    pub(super) async fn end(self, log: &AuditLog, outcome: AuditOutcome) -> Option<Event> {
        let Self { record, notes, action } = self;
        let noted = notes.take();
        let refused = matches!(outcome.status, 401 | 403);
        if noted.dry_run && !refused {
            return None;
        }
        let record = AuditRecord { at: log.now(), outcome, ..record };
        let resources = [record.resources.clone(), noted.resources].concat();
        let record = record.about(resources);
        if refused {
            log.refuse(record);
            return None;
        }
        // A webhook only says that there may be something new. The source records what was.
        if action == Action::SendWebhook {
            return None;
        }
        let event = event(&record);
        log.record(record).await;
        Some(event)
    }
}

/// Records that a request was refused.
pub(super) fn refused(log: &AuditLog, request: &Request, status: StatusCode, reason: &str) {
    let need = needs::of(request.method(), request.uri().path());
    let mut record = described(log, request, need.as_ref());
    record.outcome = AuditOutcome { status: status.as_u16(), reason: reason.to_owned() };
    if status == StatusCode::UNAUTHORIZED {
        "nobody".clone_into(&mut record.principal);
    }
    log.refuse(record);
}

/// The record of a request, but for its outcome.
fn described(log: &AuditLog, request: &Request, need: Option<&Need<'_>>) -> AuditRecord {
    let extensions = request.extensions();
    let arrival = extensions.get::<Arrival>().copied();
    let asker = sender_name(extensions.get().unwrap_or(&Asker::OPEN), extensions);
    let action = need.map_or(Action::ManageTokens, |need| need.action);
    // The path of what is no route is a stranger's text.
    let path = need.map_or("(no route)", |need| if need.names_method() { request.uri().path() } else { need.pattern });
    let operation = format!("{} {}", request.method(), path.get(..256).unwrap_or(path));
    let port = arrival.map_or(AuditPort::Api, |arrival| arrival.port);
    let record = log.begin(port, &asker, action.as_str(), operation);
    AuditRecord {
        request_id: RequestId::of(request.headers()).map(|id| id.to_string()),
        address: arrival.and_then(|arrival| arrival.address),
        resources: need.and_then(Need::resource).into_iter().collect(),
        ..record
    }
}

/// The outcome that an answer tells.
pub(super) fn outcome(response: &Response) -> AuditOutcome {
    if let Some(error) = response.extensions().get::<ErrorInfo>() {
        return AuditOutcome { status: error.code, reason: error.reason.clone() };
    }
    match grpc_code(response.headers()) {
        Some(code) => {
            AuditOutcome { status: berth_wire::status::http_of_grpc(code).as_u16(), reason: format!("{code:?}") }
        }
        None => AuditOutcome { status: response.status().as_u16(), reason: String::new() },
    }
}

/// Code of a gRPC answer that is an error from its beginning.
fn grpc_code(headers: &HeaderMap) -> Option<tonic::Code> {
    let code = tonic::Code::from_bytes(headers.get("grpc-status")?.as_bytes());
    (code != tonic::Code::Ok).then_some(code)
}

fn event(record: &AuditRecord) -> Event {
    let AuditRecord { principal, operation, outcome, resources, .. } = record;
    let names: Vec<&str> = resources.iter().take(4).map(|resource| resource.name.as_str()).collect();
    let more = resources.len().saturating_sub(names.len()) as u64 + record.more_resources;
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let names = if names.is_empty() { String::new() } else { format!(" ({}{more})", names.join(", ")) };
    let reason = if outcome.reason.is_empty() { String::new() } else { format!(" {}", outcome.reason) };
    let id = record.request_id.as_deref().unwrap_or("-");
    let deployment = match resources.as_slice() {
        [one] if one.kind == "ModelDeployment" => {
            DeploymentName::new(&format!("{}/{}", one.namespace.as_deref().unwrap_or("default"), one.name)).ok()
        }
        _ => None,
    };
    Event {
        at: Time(record.at.0.0),
        severity: if outcome.is_success() { Severity::Normal } else { Severity::Warning },
        reason: AUDITED,
        message: format!("{principal}: {operation}{names}: {}{reason}, request {id}", outcome.status),
        deployment,
        worker: None,
        function: None,
    }
}
