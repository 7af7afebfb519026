//! Metrics of membership.

use berth_spec::Health;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::members::MemberTable;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByHealth {
    health: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

/// Counters and gauges. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    members: Family<ByHealth, Gauge>,
    pub(super) probes: Counter,
    pub(super) unanswered: Counter,
    pub(super) sent: Counter,
    pub(super) received: Counter,
    dropped: Family<ByReason, Counter>,
}

impl Metrics {
    /// Puts them where they are scraped.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("berth_members", "Members of the cluster, by health", self.members.clone());
        registry.register("berth_member_probes", "Probes sent to other members", self.probes.clone());
        let unanswered = "Probes without an answer, direct or through other nodes";
        registry.register("berth_member_probes_unanswered", unanswered, self.unanswered.clone());
        registry.register("berth_gossip_datagrams_sent", "Datagrams of gossip sent", self.sent.clone());
        registry.register("berth_gossip_datagrams_received", "Datagrams of gossip received", self.received.clone());
        let dropped = "Datagrams and hints of gossip that were dropped, by reason";
        registry.register("berth_gossip_dropped", dropped, self.dropped.clone());
    }

    pub(super) fn drop_for(&self, reason: &'static str) {
        self.dropped.get_or_create(&ByReason { reason }).inc();
    }

    pub(super) fn members(&self, table: &MemberTable) {
        for health in [Health::Alive, Health::Suspect, Health::Failed, Health::Left] {
            let some = table.values().filter(|(_, now)| *now == health).count();
            let gauge = self.members.get_or_create(&ByHealth { health: health.as_str() });
            gauge.set(i64::try_from(some).unwrap_or(i64::MAX));
        }
    }
}
