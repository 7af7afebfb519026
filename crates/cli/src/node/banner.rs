//! The first words of a node, on standard error.

use std::{io::Write, net::SocketAddr};

use berth_spec::Member;
use berth_worker::Worker;

use super::settings::NodeSettings;

/// Addresses and settings shown at the start.
pub(super) struct Banner {
    /// `None`: it answers no clients.
    http: Option<SocketAddr>,
    api: SocketAddr,
    me: Member,
    memory: Option<String>,
    missing: Vec<String>,
}

impl Banner {
    pub(super) fn of((http, api): (Option<SocketAddr>, SocketAddr), me: &Member, worker: Option<&Worker>) -> Self {
        Self {
            http,
            api,
            me: me.clone(),
            memory: worker.map(|worker| worker.info().memory.to_string()),
            missing: worker.map(|worker| worker.missing().to_vec()).unwrap_or_default(),
        }
    }

    /// Says where it listens. JSON logs get an event instead, so that they stay JSON.
    pub(super) fn show(&self, settings: &NodeSettings) {
        let Self { http, api, me, memory, missing } = self;
        let (data, version) = (settings.server.data.display(), &me.version);
        tracing::info!(
            event = "started", version, node = %me.name, roles = %me.roles, http = http.map(tracing::field::display), %api, gossip = %me.gossip, peer = %me.peer,
            %data, memory, "serving"
        );
        if settings.server.telemetry.json {
            return;
        }
        let of = memory.as_ref().map(|memory| format!(", {memory} of memory for models")).unwrap_or_default();
        let answers = match http {
            Some(http) => format!("http://{http}/v2   (REST and gRPC)"),
            None => "on other nodes (this one is no gateway)".to_owned(),
        };
        let mut text = format!(
            "\nberth {version}: node {} ({}){of}\n\n  models answer   {answers}\n  control API     http://{api}\n  dashboard       http://{api}/dashboard/\n  other nodes     {} (TLS), {} (gossip)\n  state           {data}\n",
            me.name, me.roles, me.peer, me.gossip
        );
        for missing in missing {
            text.push_str(&format!("\n  warning: {missing}\n"));
        }
        // Nobody to tell if standard error is gone.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}
