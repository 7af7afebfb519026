//! The first words of a server, on standard error.

use std::io::Write;

use super::{compose::System, settings::Settings};

/// Says where it listens. JSON logs get an event instead, so that they stay JSON.
pub(super) fn show(settings: &Settings, system: &System) {
    let (http, api) = (system.http, system.api);
    let info = system.worker.info();
    let version = env!("CARGO_PKG_VERSION");
    let source = settings.sources.shown();
    tracing::info!(
        event = "started",
        version,
        %http,
        %api,
        data = %settings.server.data.display(),
        source,
        memory = %info.memory,
        "serving"
    );
    if settings.server.telemetry.json {
        return;
    }
    let mut text = format!(
        "\nberth {version}: worker {}, {} of memory for models\n\n  models answer   http://{http}/v2   (REST and gRPC)\n  control API     http://{api}\n  dashboard       http://{api}/dashboard/\n  state           {}\n",
        info.id,
        info.memory,
        settings.server.data.display(),
    );
    match source {
        Some(source) => text.push_str(&format!("  follows         {source}\n")),
        None => text.push_str("  declare models  berth apply -f FILE\n"),
    }
    for missing in system.worker.missing() {
        text.push_str(&format!("\n  warning: {missing}\n"));
    }
    // Nobody to tell if standard error is gone.
    let _ = writeln!(std::io::stderr(), "{text}");
}
