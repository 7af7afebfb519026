//! Information that the control API shows and the controller does not have: metrics of the process and counters of
//! the gateway.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use berth_audit::AuditLog;
use berth_control::api::{
    ApiDependencies, Beside, Issuing, LeaderSource, MembersSource, log::LogSource, top::ModelCounters,
};
use berth_wire::access::Access;
use prometheus_client::{encoding::text::encode, registry::Registry};

use super::trial;
use crate::failure::Failure;

/// Parts of the process that the API shows: settings that controllers share, a service beside it, logs of models.
pub(super) type Parts = (Option<String>, Beside, Option<LogSource>);

/// Tokens, the file of the first one, and the audit log.
pub(super) type Admitting = (Arc<Access>, Option<PathBuf>, AuditLog);

/// The dependencies over one registry and one gateway.
pub(super) fn of(
    registry: Arc<Mutex<Registry>>,
    (gateway, scheme): (berth_mesh::Handle, &str),
    members: MembersSource,
    leader: LeaderSource,
    ((rules, beside, logs), (access, admin_token, audit)): (Parts, Admitting),
    issuing: Option<Arc<Issuing>>,
) -> Result<ApiDependencies, Failure> {
    let trial = trial::source(gateway.local_addr(), scheme, &access)?;
    Ok(ApiDependencies {
        metrics: Arc::new(move || metrics(&registry)),
        top: Arc::new(move |each| gateway.each_used(|row| each(counters(&row)))),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        members,
        leader,
        beside: Some(beside),
        rules,
        trial,
        logs,
        access,
        audit,
        admin_token,
        issuing,
    })
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
