//! The first words of a node, on standard error.

use std::{fmt::Write as _, io::Write as _, net::SocketAddr, path::PathBuf};

use berth_spec::Member;
use berth_worker::Worker;
use tracing::field::display;

use super::{Started, settings::NodeSettings};

/// Addresses and settings shown at the start.
pub(super) struct Banner {
    /// `None`: it answers no clients.
    http: Option<SocketAddr>,
    api: SocketAddr,
    scheme: &'static str,
    /// Certificate that clients must be told to trust.
    ca: Option<PathBuf>,
    /// `None`: it is alone.
    me: Option<Member>,
    memory: Option<String>,
    missing: Vec<String>,
}

impl Banner {
    pub(super) fn of(started: &Started, ca: Option<PathBuf>, me: Option<&Member>, worker: Option<&Worker>) -> Self {
        Self {
            http: started.http,
            api: started.api,
            scheme: started.scheme,
            ca,
            me: me.cloned(),
            memory: worker.map(|worker| worker.info().memory.to_string()),
            missing: worker.map(|worker| worker.missing().to_vec()).unwrap_or_default(),
        }
    }

    /// Says where it listens. JSON logs get an event instead, so that they stay JSON.
    pub(super) fn show(&self, settings: &NodeSettings, quiet: bool) {
        if let Some(warning) = settings.server.warning() {
            tracing::warn!(event = "open_ports", "{warning}");
        }
        if quiet {
            return;
        }
        let Self { http, api, me, memory, .. } = self;
        let (data, source) = (settings.server.data.display(), settings.sources.shown());
        let (gossip, peer) = (me.as_ref().map(|me| display(me.gossip)), me.as_ref().map(|me| display(me.peer)));
        tracing::info!(
            event = "started", version = env!("CARGO_PKG_VERSION"), node = %settings.server.name, roles = %settings.roles,
            http = http.map(display), %api, gossip, peer, %data, source, memory, "serving"
        );
        if !settings.server.telemetry.json {
            // Nobody to tell if standard error is gone.
            let _ = writeln!(std::io::stderr(), "{}", self.text(settings, source));
        }
    }

    fn text(&self, settings: &NodeSettings, source: Option<String>) -> String {
        let Self { http, api, scheme, ca, me, memory, missing } = self;
        let (version, name, roles) = (env!("CARGO_PKG_VERSION"), &settings.server.name, settings.roles);
        let of = memory.as_ref().map(|memory| format!(", {memory} of memory for models")).unwrap_or_default();
        let answers = match http {
            Some(http) => format!("{scheme}://{http}/v2   (REST and gRPC)"),
            None => "on other nodes (this one is no gateway)".to_owned(),
        };
        let also = settings.server.also_http.iter().filter(|_| http.is_some());
        let also: Vec<String> = also.map(|address| format!("{scheme}://{address}")).collect();
        let mut lines = vec![("models answer", answers)];
        lines.extend((!also.is_empty()).then(|| ("also at", also.join(", "))));
        lines.push(("control API", format!("{scheme}://{api}")));
        lines.push(("dashboard", format!("{scheme}://{api}/dashboard/")));
        lines.extend(ca.as_ref().map(|ca| ("clients trust", format!("--ca {}   (curl: --cacert)", ca.display()))));
        lines.extend(me.as_ref().map(|me| ("other nodes", format!("{} (TLS), {} (gossip)", me.peer, me.gossip))));
        lines.push(("state", settings.server.data.display().to_string()));
        match source {
            Some(source) => lines.push(("follows", source)),
            None if me.is_none() => lines.push(("declare models", "berth apply -f FILE".to_owned())),
            None => {}
        }
        let who = match me {
            Some(_) => format!("node {name} ({roles})"),
            None => format!("worker {name}"),
        };
        let mut text = format!("\nberth {version}: {who}{of}\n\n");
        for (what, value) in lines {
            let _infallible = writeln!(text, "  {what:<15} {value}");
        }
        for missing in missing {
            let _infallible = write!(text, "\n  warning: {missing}\n");
        }
        text
    }
}
