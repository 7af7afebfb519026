//! The block `berth` of a registry's manifest: settings that the registry's own format has no field for.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::convert::DRAIN;
use crate::manifest::raw::{
    RawBatching, RawConcurrency, RawLimits, RawPlacement, RawRegion, RawReplicas, RawRollout, RawScaling, RawSpec,
    RawWarmup, RawWhenFull, ReplicaRange, Span, WarmupWord, Whole,
};

/// The warm-up where a registry says nothing: what operations deploy serves once it has proved itself.
const WARMUP: RawWarmup = RawWarmup::Word(WarmupWord::Required);

/// Settings of Berth's own, named and written as in its manifests. What is left out has the default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Extension {
    /// Replicas that are kept whatever happens; `deployment_config.replicas` is the most. 0: on demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<Whole<0, 1000>>,
    /// Replicas per region, in place of `deployment_config.region`. Together they are `deployment_config.replicas`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub regions: BTreeMap<String, RawRegion>,
    /// Time without requests after which an on-demand deployment is unloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_after: Option<Span>,
    /// Its replicas never leave to make room for other models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
    /// Conditions for more replicas than `minReplicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<RawScaling>,
    /// Spread of the replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<RawPlacement>,
    /// Replacement of one version by the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutExtension>,
    /// Validation inference of a new replica. Not given: `required`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup: Option<RawWarmup>,
    /// The longest a request may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// A request may be run twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// Limits on requests at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<RawConcurrency>,
    /// Limits on the use by all callers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<RawLimits>,
    /// Joining of requests into batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batching: Option<RawBatching>,
}

/// Replacement of one version by the next.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolloutExtension {
    /// The procedure when both versions do not fit beside each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_full: Option<RawWhenFull>,
    /// The longest time that requests in flight have; 60 s if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<Span>,
    /// The longest time that the new version has to become ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Span>,
    /// The share of requests that the new version gets until it is promoted, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Whole<0, 100>>,
}

impl Extension {
    /// True for a manifest without the block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The number of replicas, where `replicas` is the most. None at all stays none.
    pub(super) fn replicas(&self, most: Whole<0, 1000>) -> RawReplicas {
        if most.get() == 0 || (self.min_replicas.is_none() && self.regions.is_empty()) {
            return RawReplicas::Exactly(most);
        }
        let range = ReplicaRange { min: self.min_replicas, max: Some(most), regions: self.regions.clone() };
        RawReplicas::Between(range)
    }

    /// Writes all but the number of replicas into the hub version.
    pub(super) fn apply(&self, spec: &mut RawSpec) {
        let rollout = self.rollout.clone().unwrap_or_default();
        spec.rollout.drain_timeout = rollout.drain_timeout.unwrap_or(Span(DRAIN));
        set(&mut spec.rollout.when_full, &rollout.when_full);
        set(&mut spec.rollout.deadline, &rollout.deadline);
        spec.rollout.canary = rollout.canary;
        spec.idle_after.clone_from(&self.idle_after);
        set(&mut spec.pinned, &self.pinned);
        set(&mut spec.scaling, &self.scaling);
        set(&mut spec.placement, &self.placement);
        spec.warmup = self.warmup.clone().unwrap_or(WARMUP);
        set(&mut spec.timeout, &self.timeout);
        set(&mut spec.idempotent, &self.idempotent);
        set(&mut spec.concurrency, &self.concurrency);
        set(&mut spec.limits, &self.limits);
        set(&mut spec.batching, &self.batching);
    }

    /// The block that says what a deployment of the hub has beyond the defaults, and the most of its replicas.
    pub(super) fn of(spec: &RawSpec) -> (Self, Whole<0, 1000>) {
        let plain = RawSpec::of(spec.model.clone());
        let plain_rollout = RawRollout { drain_timeout: Span(DRAIN), ..plain.rollout.clone() };
        let rollout = RolloutExtension {
            when_full: other(&spec.rollout.when_full, &plain_rollout.when_full),
            drain_timeout: other(&spec.rollout.drain_timeout, &plain_rollout.drain_timeout),
            deadline: other(&spec.rollout.deadline, &plain_rollout.deadline),
            canary: spec.rollout.canary,
        };
        let (min_replicas, most, regions) = match &spec.replicas {
            RawReplicas::Exactly(replicas) => (None, *replicas, BTreeMap::new()),
            RawReplicas::Between(range) => (range.min, range.max.unwrap_or_default(), range.regions.clone()),
        };
        let block = Self {
            min_replicas,
            regions,
            idle_after: spec.idle_after.clone(),
            pinned: other(&spec.pinned, &plain.pinned),
            scaling: other(&spec.scaling, &plain.scaling),
            placement: other(&spec.placement, &plain.placement),
            rollout: other(&rollout, &RolloutExtension::default()),
            warmup: other(&spec.warmup, &WARMUP),
            timeout: other(&spec.timeout, &plain.timeout),
            idempotent: other(&spec.idempotent, &plain.idempotent),
            concurrency: other(&spec.concurrency, &plain.concurrency),
            limits: other(&spec.limits, &plain.limits),
            batching: other(&spec.batching, &plain.batching),
        };
        (block, most)
    }
}

fn set<T: Clone>(field: &mut T, given: &Option<T>) {
    if let Some(given) = given {
        field.clone_from(given);
    }
}

/// The value, unless it is the default.
fn other<T: Clone + PartialEq>(value: &T, plain: &T) -> Option<T> {
    (value != plain).then(|| value.clone())
}
