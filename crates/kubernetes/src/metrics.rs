//! The metrics of Kubernetes sources, in Prometheus.

use std::{collections::BTreeMap, sync::Arc};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::{
    kind::Kind,
    objects::{KindState, Objects},
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    source: Arc<str>,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    source: Arc<str>,
    result: &'static str,
}

/// The metrics of all Kubernetes sources of a process, which registers them once. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct KubernetesMetrics {
    objects: Family<KindLabels, Gauge>,
    readable: Family<KindLabels, Gauge>,
    refused: Family<SourceLabel, Gauge>,
    waiting: Family<SourceLabel, Gauge>,
    writes: Family<ResultLabels, Counter>,
}

impl KubernetesMetrics {
    /// Registers the families `berth_kubernetes_…`; their samples come with the sources.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self { objects, readable, refused, waiting, writes } = metrics.clone();
        registry.register("berth_kubernetes_objects", "Objects that are followed", objects);
        registry.register(
            "berth_kubernetes_readable",
            "1 while all objects of a kind are known, 0 while the API server does not answer or refuses; none for kinds that are not installed",
            readable,
        );
        registry.register("berth_kubernetes_refused_objects", "Objects whose newest spec is not served", refused);
        registry.register("berth_kubernetes_waiting_objects", "Objects whose status is to be looked at", waiting);
        registry.register("berth_kubernetes_writes", "Writes of statuses and routes", writes);
        metrics
    }

    /// The metrics of one source.
    #[must_use]
    pub fn of(&self, source: &str) -> SourceMetrics {
        SourceMetrics { all: self.clone(), source: Arc::from(source) }
    }
}

/// The metrics of one source. They count under its name as label `source`.
#[derive(Debug, Clone)]
pub struct SourceMetrics {
    all: KubernetesMetrics,
    source: Arc<str>,
}

impl SourceMetrics {
    fn kind(&self, kind: Kind) -> KindLabels {
        KindLabels { source: Arc::clone(&self.source), kind: kind.name() }
    }

    fn set(&self, family: &Family<SourceLabel, Gauge>, number: usize) {
        let label = SourceLabel { source: Arc::clone(&self.source) };
        family.get_or_create(&label).set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// The objects that are here, and the kinds that can be read.
    pub(crate) fn followed(&self, objects: &Objects) {
        let mut counts: BTreeMap<Kind, i64> = objects.kinds().iter().map(|kind| (*kind, 0)).collect();
        for (key, _) in objects.iter() {
            *counts.entry(key.kind).or_default() += 1;
        }
        for (kind, count) in counts {
            let label = self.kind(kind);
            self.all.objects.get_or_create(&label).set(count);
            let readable = match objects.known(kind) {
                KindState::Listed => Some(1),
                KindState::Failing(_) => Some(0),
                KindState::Unknown | KindState::Absent => None,
            };
            if let Some(readable) = readable {
                self.all.readable.get_or_create(&label).set(readable);
            } else {
                self.all.readable.remove(&label);
            }
        }
    }

    pub(crate) fn refused(&self, objects: usize) {
        self.set(&self.all.refused, objects);
    }

    pub(crate) fn waiting(&self, objects: usize) {
        self.set(&self.all.waiting, objects);
    }

    pub(crate) fn wrote(&self, result: &'static str) {
        self.all.writes.get_or_create(&ResultLabels { source: Arc::clone(&self.source), result }).inc();
    }

    /// Forgets what is true only while the source follows.
    pub(crate) fn ended(&self) {
        for kind in Kind::ALL {
            self.all.objects.remove(&self.kind(kind));
            self.all.readable.remove(&self.kind(kind));
        }
        for family in [&self.all.refused, &self.all.waiting] {
            family.remove(&SourceLabel { source: Arc::clone(&self.source) });
        }
    }
}
