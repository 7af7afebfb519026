//! Settings of the server itself that clients see and operators change by the protocol's extensions: levels of the log, traces,
//! and registered shared memory. One form for REST and gRPC.

use std::sync::Arc;

use berth_spec::{Class, InferError};
use berth_wire::access::{Action, Asker, Resource};

use super::error_response::ErrorResponse;
use crate::{
    controls::{LogControl, LogSettings, TraceSettings},
    shared_memory::Regions,
    stack::Stack,
};

/// The extensions of the Open Inference Protocol that work here, as the server metadata tells them.
pub(super) fn extensions(stack: &Stack) -> Vec<&'static str> {
    let logging = stack.features.log.is_some();
    let all = [
        ("binary_tensor_data", true),
        ("classification", true),
        ("generate", true),
        ("logging", logging),
        ("model_configuration", true),
        ("model_repository", true),
        ("model_repository(unload_dependents)", true),
        ("parameters", true),
        ("statistics", true),
        ("system_shared_memory", stack.regions.is_some()),
        ("trace", true),
    ];
    all.into_iter().filter_map(|(name, works)| works.then_some(name)).collect()
}

fn unsupported(what: &str) -> ErrorResponse {
    ErrorResponse::new(
        Class::Unsupported,
        "unsupported",
        format!("{what} is not supported; GET /v2 lists the extensions that are"),
    )
}

/// Lets an operator change settings of the server.
fn may_change(asker: &Asker) -> Result<(), ErrorResponse> {
    asker.may(Action::OperateFleet, Resource::Server).map_err(|denied| ErrorResponse::forbidden(denied.to_string()))
}

fn log(stack: &Stack) -> Result<&LogControl, ErrorResponse> {
    stack.features.log.as_ref().ok_or_else(|| unsupported("the logging extension"))
}

/// The levels of the log in force. Unsupported where the gateway has no access to it.
pub(super) fn read_log(stack: &Stack) -> Result<LogSettings, ErrorResponse> {
    Ok((log(stack)?.read)())
}

/// Changes the levels of the log and gives those in force. A change needs the right to operate the fleet, and is logged.
pub(super) fn write_log(
    stack: &Stack,
    asker: &Asker,
    change: impl FnOnce(LogSettings) -> Result<LogSettings, InferError>,
) -> Result<LogSettings, ErrorResponse> {
    let control = log(stack)?;
    let before = (control.read)();
    let after = change(before)?;
    if after != before {
        may_change(asker)?;
        (control.write)(after).map_err(InferError::Internal)?;
        tracing::warn!(event = "log_settings_changed", principal = asker.name(), settings = ?after, "log settings changed");
    }
    Ok(after)
}

/// Reads which requests are traced. Traces that go nowhere are off.
pub(super) fn read_traces(stack: &Stack) -> TraceSettings {
    stack.traces.as_ref().map_or(TraceSettings { on: false, ..TraceSettings::default() }, |traces| traces.read())
}

/// Changes which requests are traced and gives what is in force. A change needs the right to operate the fleet.
pub(super) fn write_traces(
    stack: &Stack,
    asker: &Asker,
    change: impl FnOnce(TraceSettings) -> Result<TraceSettings, InferError>,
) -> Result<TraceSettings, ErrorResponse> {
    let before = read_traces(stack);
    let after = change(before)?;
    if after == before {
        return Ok(after);
    }
    may_change(asker)?;
    let Some(traces) = &stack.traces else {
        let message = "traces go nowhere: start the server with --otlp URL".to_owned();
        return Err(InferError::Invalid(message).into());
    };
    traces.write(after);
    tracing::warn!(event = "trace_settings_changed", principal = asker.name(), settings = ?after, "trace settings changed");
    Ok(after)
}

/// Trace settings of one model are those of the server: they can be read by its name, and not changed.
pub(super) fn of_model() -> ErrorResponse {
    unsupported("changing the trace settings of one model (leave its name out to change those of the server)")
}

/// Regions of shared memory, for an operator on this machine.
pub(super) fn regions<'a>(
    stack: &Stack,
    asker: &Asker,
    extensions: &'a http::Extensions,
) -> Result<&'a Arc<Regions>, ErrorResponse> {
    if stack.regions.is_none() {
        return Err(ErrorResponse::new(
            Class::Unsupported,
            "unsupported",
            "shared memory is off: --shared-memory turns it on, for clients on this machine".to_owned(),
        ));
    }
    // A region opens shared memory of other programs to whoever may call a model here.
    may_change(asker)?;
    Ok(Regions::of(extensions)?)
}
