//! Information that the control API shows and the controller does not have: metrics of the process and counters of
//! the gateway.

use std::sync::{Arc, Mutex, PoisonError};

use berth_audit::AuditLog;
use berth_control::{
    api::{
        ApiDependencies, Issuing, Leader,
        log::{LogQuery, LogSource},
        top::ModelCounters,
    },
    leadership::LeadershipView,
};
use berth_wire::access::Access;
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::sync::watch;

use super::{cluster::Membership, settings::NodeSettings, trial};
use crate::{failure::Failure, management::Management, settings::tls::scheme, telemetry::Telemetry};

/// Parts of a node that the control API depends on.
pub(super) struct ApiParts<'a> {
    pub(super) settings: &'a NodeSettings,
    pub(super) telemetry: &'a Telemetry,
    pub(super) leadership: &'a watch::Receiver<LeadershipView>,
    /// Metrics of the whole process.
    pub(super) registry: Registry,
    pub(super) access: &'a Arc<Access>,
    pub(super) audit: &'a AuditLog,
    /// `None`: the node issues no certificates.
    pub(super) issuing: Option<Arc<Issuing>>,
}

impl ApiParts<'_> {
    /// The dependencies over one gateway. `membership`: `None` on a node that is alone.
    pub(super) fn dependencies(
        self,
        membership: Option<&Membership>,
        gateway: berth_mesh::Handle,
    ) -> Result<ApiDependencies, Failure> {
        let Self { settings, telemetry, leadership, registry, access, audit, issuing } = self;
        let (node, lines) = (settings.server.name.clone(), telemetry.model_logs.clone());
        let logs: Option<LogSource> =
            settings.roles.worker.then(|| Arc::new(move |query: &LogQuery| lines.read(&node, query)) as LogSource);
        let (me, leadership, terms) = (settings.server.name.clone(), leadership.clone(), membership.is_some());
        let leader = move || {
            let (name, epoch) = leadership.borrow().leader(&me)?;
            Some(Leader { name, epoch: terms.then_some(epoch) })
        };
        let everybody = membership.map(|membership| membership.members.clone());
        let members = move || match &everybody {
            Some(everybody) => everybody.table().values().cloned().collect(),
            None => Vec::new(),
        };
        let trial = trial::source(gateway.local_addr(), scheme(settings.server.tls.is_some()), access)?;
        let registry = Mutex::new(registry);
        Ok(ApiDependencies {
            metrics: Arc::new(move || metrics(&registry)),
            top: Arc::new(move |each| gateway.each_used(|row| each(counters(&row)))),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            members: Arc::new(members),
            leader: Arc::new(leader),
            beside: Some(Management::beside(settings.management.clone())),
            rules: (membership.is_some() && settings.roles.controller).then(|| settings.server.rules()),
            trial,
            logs,
            access: Arc::clone(access),
            audit: audit.clone(),
            admin_token: settings.server.admin_token(),
            issuing,
        })
    }
}

fn metrics(registry: &Mutex<Registry>) -> String {
    let mut text = String::new();
    let registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = encode(&mut text, &registry) {
        tracing::error!(event = "metrics_failed", %error, "metrics cannot be encoded");
    }
    text
}

fn counters(row: &berth_mesh::top::Row) -> ModelCounters {
    ModelCounters {
        deployment: row.deployment.to_string(),
        in_flight: u64::from(row.in_flight) + u64::from(row.parked),
        requests: row.requests,
        failures: row.errors,
        misses: row.misses,
        latency: row.latency.cumulative_ms(),
    }
}
