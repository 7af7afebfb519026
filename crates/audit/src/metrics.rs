//! Prometheus metrics of the audit log.

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    pub(crate) records: Counter,
    pub(crate) refused: Counter,
    pub(crate) dropped: Counter,
    pub(crate) unwritten: Gauge,
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("berth_audit_records", "Records of the audit log that were written", self.records.clone());
        registry.register(
            "berth_audit_refused",
            "Requests that were refused for want of a role or a token",
            self.refused.clone(),
        );
        registry.register("berth_audit_dropped", "Records of the audit log that were lost", self.dropped.clone());
        registry.register(
            "berth_audit_unwritten",
            "Records of the audit log that wait to be written",
            self.unwritten.clone(),
        );
    }
}
