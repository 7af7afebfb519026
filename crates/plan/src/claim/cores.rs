//! Claims of a replica beside memory: processor cores and GPUs.

use std::{
    fmt,
    ops::{Add, Sub},
};

use berth_spec::{Gpu, Spec, WorkerInfo, deployment::GpuNeed};

/// Processor cores in thousandths, so that sums are exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cores(pub u64);

impl Cores {
    /// No cores: what a model claims whose author says nothing.
    pub const ZERO: Self = Self(0);

    /// Of a number of cores as manifests and workers write it; what is no number, or below 0, is 0.
    #[must_use]
    pub fn of(cores: f32) -> Self {
        // The cast saturates, and no machine has 10^16 cores.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped, and it saturates")]
        let thousandths = (f64::from(cores).max(0.0) * 1e3).round() as u64;
        Self(thousandths)
    }

    /// All cores that a worker gives to models.
    #[must_use]
    pub fn in_all(info: &WorkerInfo) -> Self {
        Self::of(info.cpus)
    }

    /// Never below 0.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Cores {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Cores {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl fmt::Display for Cores {
    /// `1.5`, with as many digits as it takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// The claims of a replica beside memory. Only the author's figures count: none of them is measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hardware {
    pub(crate) cores: Cores,
    pub(crate) gpu: Option<GpuNeed>,
}

impl Hardware {
    /// The claims of each replica of a deployment.
    pub(crate) fn of(spec: &Spec) -> Self {
        Self { cores: cores(spec), gpu: spec.gpu.clone() }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.cores == Cores::ZERO && self.gpu.is_none()
    }
}

/// The cores that each replica of a deployment claims.
pub(crate) fn cores(spec: &Spec) -> Cores {
    spec.cpu.map_or(Cores::ZERO, Cores::of)
}

/// True if a device meets a need.
pub(crate) fn suits(device: &Gpu, need: &GpuNeed) -> bool {
    device.suits(need)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_exact_and_never_negative() {
        assert_eq!((0..10).fold(Cores::ZERO, |sum, _| sum + Cores::of(0.1)), Cores::of(1.0));
        assert_eq!((Cores::of(f32::NAN), Cores::of(-1.0), Cores::of(1.0) - Cores::of(2.0)), Default::default());
        let written = [0.5, 4.0, 0.125, 0.0].map(|cores| Cores::of(cores).to_string());
        assert_eq!(written, ["0.5", "4", "0.125", "0"]);
    }
}
