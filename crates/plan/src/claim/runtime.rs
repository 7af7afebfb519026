//! Claims on a runtime that has limits of its own: memory, device memory, models.

use berth_spec::{ByteSize, Spec, deployment::GpuNeed};

/// The claim of one replica on its runtime: memory and device memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RuntimeClaim {
    pub(crate) memory: ByteSize,
    /// By the author's word: nobody else knows it before the model runs.
    pub(crate) device_memory: ByteSize,
}

impl RuntimeClaim {
    pub(crate) fn of(memory: ByteSize, spec: &Spec) -> Self {
        Self::with_gpu(memory, spec.gpu.as_ref())
    }

    pub(crate) fn with_gpu(memory: ByteSize, need: Option<&GpuNeed>) -> Self {
        let of = |need: &GpuNeed| ByteSize(need.memory.unwrap_or_default().0.saturating_mul(need.count.into()));
        Self { memory, device_memory: need.map(of).unwrap_or_default() }
    }
}

/// A replica's claim, and its runtime by its place among the worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlacedClaim {
    pub(crate) runtime: usize,
    pub(crate) claim: RuntimeClaim,
}

/// The claims of several replicas in one runtime, and their number. Thousands may be held, and a plan asks at each step: the sum is
/// kept, never made anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RuntimeTotal {
    pub(crate) claims: RuntimeClaim,
    pub(crate) models: u32,
}

impl RuntimeTotal {
    pub(crate) fn add(&mut self, claim: RuntimeClaim) {
        *self = self.with(Self { claims: claim, models: 1 });
    }

    pub(crate) fn remove(&mut self, claim: RuntimeClaim) {
        *self = self.without(Self { claims: claim, models: 1 });
    }

    pub(crate) fn with(self, other: Self) -> Self {
        let claims = RuntimeClaim {
            memory: self.claims.memory + other.claims.memory,
            device_memory: self.claims.device_memory + other.claims.device_memory,
        };
        Self { claims, models: self.models.saturating_add(other.models) }
    }

    pub(crate) fn without(self, other: Self) -> Self {
        let claims = RuntimeClaim {
            memory: self.claims.memory.saturating_sub(other.claims.memory),
            device_memory: self.claims.device_memory.saturating_sub(other.claims.device_memory),
        };
        Self { claims, models: self.models.saturating_sub(other.models) }
    }
}
