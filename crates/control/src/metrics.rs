//! Prometheus metrics of the control plane. Names from docs/operations.md that do not begin with `berth_` follow the
//! registry's own document, with underscores for dots.

use std::{
    collections::{BTreeMap, HashSet},
    sync::atomic::{AtomicI64, AtomicU64},
    time::Duration,
};

use berth_plan::{World, drift::DriftKind, world::Liveness};
use berth_spec::Time;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::controller::{CommandKind, Effect};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CommandLabels {
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DriftLabels {
    r#type: &'static str,
}

type Count = Gauge<i64, AtomicI64>;
type Ratio = Gauge<f64, AtomicU64>;

/// The metrics of the control plane. Clones count together: a process registers them once and gives them to the controller
/// of each term.
#[derive(Debug, Clone)]
pub struct Metrics {
    leader: Count,
    /// Planning, storing and sending.
    loop_duration: Histogram,
    /// Duration of planning alone.
    plan_duration: Histogram,
    decisions: Counter,
    evictions: Counter,
    eviction_age: Histogram,
    lru_age: Ratio,
    dispatched: Counter,
    dispatched_by_type: Family<CommandLabels, Counter>,
    pub(crate) store_commit: Histogram,
    never_told: Counter,
    pub(crate) time_to_ready: Histogram,
    drift: Count,
    drift_by_type: Family<DriftLabels, Count>,
    drifted: Family<DriftLabels, Counter>,
    schema_violations: Counter,
    workers_healthy: Count,
    workers_suspect: Count,
    workers_failed: Count,
    memory_available: Count,
    memory_used: Count,
    deployments: Count,
    deployments_active: Count,
    deployments_failed: Count,
    deployments_loaded: Count,
    models_per_worker: Ratio,
    utilization: Ratio,
}

/// 0.1 ms to 100 s.
fn seconds() -> Histogram {
    Histogram::new([
        1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 100.0,
    ])
}

/// 0.1 s to an hour, with the 10 minutes that an alert looks at.
fn minutes() -> Histogram {
    Histogram::new([0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_200.0, 3_600.0])
}

impl Metrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            leader: Count::default(),
            loop_duration: seconds(),
            plan_duration: seconds(),
            decisions: Counter::default(),
            evictions: Counter::default(),
            // 30 s to 90 days.
            eviction_age: Histogram::new([
                30.0,
                300.0,
                900.0,
                3_600.0,
                14_400.0,
                43_200.0,
                86_400.0,
                604_800.0,
                2_592_000.0,
                7_776_000.0,
            ]),
            lru_age: Ratio::default(),
            dispatched: Counter::default(),
            dispatched_by_type: Family::default(),
            store_commit: seconds(),
            never_told: Counter::default(),
            time_to_ready: minutes(),
            drift: Count::default(),
            drift_by_type: Family::default(),
            drifted: Family::default(),
            schema_violations: Counter::default(),
            workers_healthy: Count::default(),
            workers_suspect: Count::default(),
            workers_failed: Count::default(),
            memory_available: Count::default(),
            memory_used: Count::default(),
            deployments: Count::default(),
            deployments_active: Count::default(),
            deployments_failed: Count::default(),
            deployments_loaded: Count::default(),
            models_per_worker: Ratio::default(),
            utilization: Ratio::default(),
        };
        metrics.register_activity(registry);
        metrics.register_state(registry);
        metrics.begin_at_zero();
        metrics
    }

    /// Creates all counters at 0, so that a rate covers the first increment.
    fn begin_at_zero(&self) {
        for kind in DriftKind::ALL {
            let labels = DriftLabels { r#type: kind.as_str() };
            drop(self.drifted.get_or_create(&labels));
            drop(self.drift_by_type.get_or_create(&labels));
        }
        for kind in [CommandKind::Load, CommandKind::Reload, CommandKind::Unload] {
            drop(self.dispatched_by_type.get_or_create(&CommandLabels { r#type: kind.as_str() }));
        }
    }

    fn register_activity(&self, registry: &mut Registry) {
        let histograms = [
            (
                "broker_reconciliation_loop_duration",
                "One reconciliation cycle: planning, storing, sending",
                &self.loop_duration,
            ),
            ("berth_plan_duration", "Making one plan, before it is stored and sent", &self.plan_duration),
            ("berth_store_commit", "Storing one plan", &self.store_commit),
            (
                "system_deployment_time_to_ready",
                "From a declaration until all that it wants is ready",
                &self.time_to_ready,
            ),
        ];
        for (name, help, histogram) in histograms {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        registry.register("berth_plan_decisions", "Records that plans changed", self.decisions.clone());
        registry.register("berth_plan_evictions", "Replicas that left to make room", self.evictions.clone());
        registry.register_with_unit(
            "berth_eviction_age",
            "Time since the last use of replicas that left to make room",
            Unit::Seconds,
            self.eviction_age.clone(),
        );
        registry.register(
            "berth_store_changes_never_told",
            "Keys that differed from what the store's watch had told, found and repaired: should stay 0",
            self.never_told.clone(),
        );
        registry.register("broker_commands_dispatched", "Commands sent to workers", self.dispatched.clone());
        registry.register(
            "broker_commands_dispatched_by_type",
            "Commands sent to workers, by type",
            self.dispatched_by_type.clone(),
        );
        registry.register(
            "broker_reconciliation_state_drift_detected",
            "Differences between what is wanted and what workers say, each counted when it begins, by type",
            self.drifted.clone(),
        );
        registry.register(
            "broker_schema_compatibility_violations",
            "Model cards that no worker they may go to reads, each counted when it is found",
            self.schema_violations.clone(),
        );
    }

    fn register_state(&self, registry: &mut Registry) {
        let counts = [
            ("berth_leader", "1 where the controller that decides runs, 0 on those that stand by", &self.leader),
            (
                "broker_reconciliation_state_drift_count",
                "Differences between what is wanted and what workers say",
                &self.drift,
            ),
            ("broker_workers_healthy_count", "Workers that are attached and have reported", &self.workers_healthy),
            ("broker_workers_suspect_count", "Workers that are attached and have not reported", &self.workers_suspect),
            (
                "broker_workers_failed_count",
                "Workers that are gone or never came, and have replicas or are named by a source",
                &self.workers_failed,
            ),
            (
                "broker_capacity_total_memory_available",
                "Bytes that models may take on all workers",
                &self.memory_available,
            ),
            ("broker_capacity_total_memory_used", "Bytes of them that are set aside", &self.memory_used),
            ("system_deployments_total_count", "Deployments", &self.deployments),
            ("system_deployments_active_count", "Deployments that may have replicas", &self.deployments_active),
            ("berth_deployments_loaded", "Deployments with at least one copy that is ready", &self.deployments_loaded),
            (
                "system_deployments_failed_count",
                "Deployments with a failed replica, without room, or with a rollout that was given up or is overdue",
                &self.deployments_failed,
            ),
        ];
        for (name, help, gauge) in counts {
            registry.register(name, help, gauge.clone());
        }
        registry.register(
            "broker_reconciliation_state_drift_by_type_count",
            "Differences between what is wanted and what workers say, by type",
            self.drift_by_type.clone(),
        );
        registry.register_with_unit(
            "berth_lru_age",
            "Time since the last use of the model on demand that would leave first; 0: there is none",
            Unit::Seconds,
            self.lru_age.clone(),
        );
        registry.register("system_models_per_worker_average", "Replicas per worker", self.models_per_worker.clone());
        registry.register(
            "system_capacity_utilization_percent",
            "Memory set aside, of all there is",
            self.utilization.clone(),
        );
    }

    /// Says that a controller decides here, until what it returns is dropped.
    pub(crate) fn leading(&self) -> Leading {
        // Counted, not set: a term may begin before the end of the last one has been noticed.
        self.leader.inc();
        Leading(self.clone())
    }

    pub(crate) fn dispatched(&self, kind: CommandKind) {
        self.dispatched.inc();
        self.dispatched_by_type.get_or_create(&CommandLabels { r#type: kind.as_str() }).inc();
    }

    /// So many keys differed from what the store's watch had told.
    pub(crate) fn never_told(&self, keys: usize) {
        self.never_told.inc_by(keys as u64);
    }

    /// Making a plan took this long and came to this.
    pub(crate) fn planned(&self, took: Duration, effects: &[Effect]) {
        for effect in effects {
            if let Effect::Commit(commit) = effect {
                self.decisions.inc_by(commit.records.len() as u64);
            }
        }
        self.plan_duration.observe(took.as_secs_f64());
    }

    /// From the beginning of a plan until it was sent took this long.
    pub(crate) fn cycle(&self, took: Duration) {
        self.loop_duration.observe(took.as_secs_f64());
    }

    /// Something differs that did not before.
    pub(crate) fn drifted(&self, kind: DriftKind) {
        self.drifted.get_or_create(&DriftLabels { r#type: kind.as_str() }).inc();
    }

    /// So much differs now.
    pub(crate) fn drifting(&self, counted: &BTreeMap<DriftKind, usize>) {
        for kind in DriftKind::ALL {
            let count = counted.get(&kind).copied().unwrap_or(0);
            self.drift_by_type.get_or_create(&DriftLabels { r#type: kind.as_str() }).set(signed(count as u64));
        }
        self.drift.set(signed(counted.values().sum::<usize>() as u64));
    }

    /// A model card was found that no worker it may go to reads.
    pub(crate) fn schema_violation(&self) {
        self.schema_violations.inc();
    }

    pub(crate) fn evicted(&self, evictions: usize, ages: &[Duration]) {
        self.evictions.inc_by(evictions as u64);
        ages.iter().for_each(|age| self.eviction_age.observe(age.as_secs_f64()));
    }

    /// Sets the gauges by a walk over everything.
    pub(crate) fn gauges(&self, world: &World, now: Time) {
        let (mut healthy, mut suspect, mut failed, mut replicas) = (0, 0, 0, 0);
        let mut loaded = HashSet::new();
        // One that a source names is expected, also after its replicas have gone elsewhere, and if it never came.
        let never_came = world.all_terms().keys().filter(|id| world.worker(id).is_none()).count();
        failed += signed(never_came as u64);
        for (id, tracked) in world.workers() {
            match tracked.liveness {
                Liveness::Alive if tracked.reported => healthy += 1,
                Liveness::Alive | Liveness::Detached { .. } => suspect += 1,
                Liveness::Lost { .. } | Liveness::Unseen => {
                    failed += i64::from(!tracked.assigned.is_empty() || world.terms(id).is_some());
                }
            }
            replicas += tracked.assigned.len();
            let ready = tracked.inventory.iter().filter(|(_, residency)| residency.is_ready());
            loaded.extend(ready.map(|(revision, _)| revision.deployment()));
        }
        let (total, active) = world.deployments().fold((0, 0), |(total, active), deployment| {
            (total + 1, active + i64::from(deployment.spec.replicas.max > 0 && !deployment.deleting))
        });
        let (available, used) = world.memory();
        self.workers_healthy.set(healthy);
        self.workers_suspect.set(suspect);
        self.workers_failed.set(failed);
        self.memory_available.set(signed(available.0));
        self.memory_used.set(signed(used.0));
        self.deployments.set(total);
        self.deployments_active.set(active);
        self.deployments_loaded.set(signed(loaded.len() as u64));
        self.lru_age.set(world.lru_age(now).map_or(0.0, |age| age.as_secs_f64()));
        self.deployments_failed.set(signed(berth_plan::report::failing(world).count() as u64));
        let workers = (healthy + suspect).max(1);
        self.models_per_worker.set(replicas as f64 / workers as f64);
        self.utilization.set(100.0 * used.0 as f64 / available.0.max(1) as f64);
    }

    /// Clears the gauges about the cluster.
    fn forget(&self) {
        let workers = [&self.workers_healthy, &self.workers_suspect, &self.workers_failed];
        let deployments =
            [&self.deployments, &self.deployments_active, &self.deployments_failed, &self.deployments_loaded];
        for gauge in workers.into_iter().chain(deployments).chain([&self.memory_available, &self.memory_used]) {
            gauge.set(0);
        }
        self.models_per_worker.set(0.0);
        self.utilization.set(0.0);
        self.lru_age.set(0.0);
        self.drifting(&BTreeMap::new());
    }
}

/// While it lives, a controller decides here.
pub(crate) struct Leading(Metrics);

impl Drop for Leading {
    /// Clears the gauges at the end of a term: stale values would keep alerts firing.
    fn drop(&mut self) {
        if self.0.leader.dec() == 1 {
            self.0.forget();
        }
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_worker_that_a_source_names_counts_as_failed_until_it_comes() {
        let metrics = Metrics::register(&mut Registry::default());
        let mut world = World::new(berth_plan::Policy::default());
        let named: berth_spec::WorkerId = "worker-eu-1a".parse().expect("an id");
        metrics.gauges(&world, Time::ZERO);
        assert_eq!(metrics.workers_failed.get(), 0);
        world.set_terms(&named, Some(Arc::new(berth_spec::WorkerTerms::default())));
        metrics.gauges(&world, Time::ZERO);
        assert_eq!(metrics.workers_failed.get(), 1);
    }

    #[test]
    fn what_was_true_in_a_term_ends_with_it() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let term = metrics.leading();
        metrics.workers_failed.set(2);
        metrics.utilization.set(90.0);
        metrics.drifting(&[(DriftKind::FailedModel, 3)].into());
        metrics.dispatched(CommandKind::Load);
        drop(term);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        let gauges = text.lines().filter(|line| line.starts_with("broker_workers") || line.starts_with("broker_recon"));
        let stale: Vec<&str> = gauges.filter(|line| line.contains("_count") && !line.ends_with(" 0")).collect();
        assert!(stale.is_empty(), "{stale:?}");
        assert!(text.contains("system_capacity_utilization_percent 0.0"), "{text}");
        assert!(text.contains("broker_commands_dispatched_total 1"), "counters count on: {text}");
    }

    #[test]
    fn who_decides_says_so_for_as_long() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let said = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
            text.lines().find_map(|line| line.strip_prefix("berth_leader ").map(str::to_owned))
        };
        assert_eq!(said().as_deref(), Some("0"));
        let first = metrics.leading();
        let second = metrics.clone().leading();
        drop(first);
        assert_eq!(said().as_deref(), Some("1"), "the next term began before the last one was over");
        drop(second);
        assert_eq!(said().as_deref(), Some("0"));
    }
}
