//! Time to each member and back, from probes and their answers.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use berth_spec::WorkerId;
use foca::ProbeNumber;

/// Weight of a new sample, as TCP smooths round trips (RFC 6298).
const WEIGHT: f64 = 1.0 / 8.0;

/// The probe under way, and what earlier ones told.
#[derive(Default)]
pub(super) struct Rtts {
    asked: Option<(WorkerId, ProbeNumber, Instant)>,
    smoothed: BTreeMap<WorkerId, Duration>,
    fresh: bool,
}

impl Rtts {
    pub(super) fn asked(&mut self, name: WorkerId, probe: ProbeNumber, now: Instant) {
        self.asked = Some((name, probe, now));
    }

    pub(super) fn answered(&mut self, name: &WorkerId, probe: ProbeNumber, now: Instant) {
        let Some((_, _, at)) = self.asked.take_if(|(asked, number, _)| asked == name && *number == probe) else {
            return;
        };
        let sample = now.saturating_duration_since(at);
        let smoothed = self.smoothed.entry(name.clone()).or_insert(sample);
        *smoothed = smoothed.mul_f64(1.0 - WEIGHT) + sample.mul_f64(WEIGHT);
        self.fresh = true;
    }

    pub(super) fn forget(&mut self, name: &WorkerId) {
        self.smoothed.remove(name);
    }

    /// All of them, if any changed since the last time.
    pub(super) fn take(&mut self) -> Option<BTreeMap<WorkerId, Duration>> {
        std::mem::take(&mut self.fresh).then(|| self.smoothed.clone())
    }
}
