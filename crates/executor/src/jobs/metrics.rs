//! Metrics of asynchronous serving.

use std::sync::{Arc, atomic::AtomicI64};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{
    attempt::Next,
    job::Priority,
    queue::{Completion, Depth, Kind, Submitted},
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    port: Arc<str>,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PriorityLabels {
    port: Arc<str>,
    priority: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortLabel {
    port: Arc<str>,
}

type Level<L> = Family<L, Gauge<i64, AtomicI64>>;

/// Counters of all ports.
#[derive(Clone, Default)]
pub(crate) struct JobFamilies {
    submitted: Family<ResultLabels, Counter>,
    attempts: Family<ResultLabels, Counter>,
    callbacks: Family<ResultLabels, Counter>,
    jobs: Level<PriorityLabels>,
    dead: Level<PortLabel>,
    cancelled: Family<PortLabel, Counter>,
}

impl JobFamilies {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "berth_executor_jobs_submitted",
            "Jobs that were handed in, by result",
            self.submitted.clone(),
        );
        registry.register("berth_executor_job_attempts", "Attempts to run a job, by result", self.attempts.clone());
        registry.register(
            "berth_executor_callbacks",
            "Attempts to deliver a callback, by result",
            self.callbacks.clone(),
        );
        registry.register("berth_executor_jobs_cancelled", "Jobs that clients have ended", self.cancelled.clone());
        registry.register("berth_executor_jobs", "Jobs that have not ended, by priority", self.jobs.clone());
        registry.register("berth_executor_jobs_dead", "Jobs that were given up and are kept", self.dead.clone());
    }

    pub(crate) fn of(&self, port: Arc<str>) -> JobMetrics {
        JobMetrics { families: self.clone(), port }
    }
}

/// Counters of one port.
#[derive(Clone)]
pub(crate) struct JobMetrics {
    families: JobFamilies,
    port: Arc<str>,
}

impl JobMetrics {
    pub(crate) fn submitted(&self, submitted: &Submitted) {
        let result = match submitted {
            Submitted::New => "new",
            Submitted::Known(_) => "known",
            Submitted::Conflict => "conflict",
            Submitted::Full => "full",
        };
        self.families.submitted.get_or_create(&self.result(result)).inc();
    }

    pub(crate) fn attempted(&self, kind: Kind, next: &Next) {
        let result = match next {
            Next::End(Completion::Answered(_) | Completion::Delivered) => "ended",
            Next::End(Completion::Dead { .. }) => "dead",
            Next::Again { .. } => "again",
        };
        let family = if kind == Kind::Run { &self.families.attempts } else { &self.families.callbacks };
        family.get_or_create(&self.result(result)).inc();
    }

    pub(crate) fn cancelled(&self) {
        self.families.cancelled.get_or_create(&PortLabel { port: Arc::clone(&self.port) }).inc();
    }

    pub(crate) fn depth(&self, depth: Depth) {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        for (priority, count) in Priority::ALL.into_iter().zip(depth.jobs) {
            let labels = PriorityLabels { port: Arc::clone(&self.port), priority: priority.as_str() };
            self.families.jobs.get_or_create(&labels).set(number(count));
        }
        self.families.dead.get_or_create(&PortLabel { port: Arc::clone(&self.port) }).set(number(depth.dead));
    }

    fn result(&self, result: &'static str) -> ResultLabels {
        ResultLabels { port: Arc::clone(&self.port), result }
    }
}
